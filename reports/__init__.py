"""Consumers of what a check found: terminal, JSON, crash files, pytest code.

They know plain data only; the catalogue and the verdicts come to them as data.
"""
