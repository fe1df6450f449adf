"""Connectors: the reference (ascend), wrong ones (zoo), set-ups of known ones (targets)."""
