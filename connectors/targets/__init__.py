"""Targets: the set-up of known connectors, and targets from the command line or a file."""
