"""What every test run starts from: the environment that vLLM reads, and Hypothesis' settings.

Both are set here, before any test module is imported, and in the processes that xdist starts.
"""

import os

from hypothesis import settings

# Read by vLLM and torch when they are imported; a value that is already set stays.
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",  # too late for this process, in time for those that it starts
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# The same examples on every machine and in every run, and no memory of earlier ones.
settings.register_profile(
    "kvc-test", derandomize=True, database=None, print_blob=True, deadline=None
)
settings.load_profile("kvc-test")
