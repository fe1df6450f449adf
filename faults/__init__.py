"""Fault packages, and the worlds that they act on."""
