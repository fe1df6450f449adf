"""The target on real engines: vLLM processes on the CPU that prefill, decode, and share a store."""
