"""Fault-injection and conformance harness for vLLM V1 KV connectors.

This package holds links only: ``kvconform.scenario``, ``kvconform.engine`` and the others are the
folders of the same name beside it. Importing it imports none of them, and neither vLLM nor torch.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
