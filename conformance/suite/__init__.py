"""The suite for pytest: ``pytest --pyargs kvconform.conformance.suite --kvc-target=TARGET``."""
