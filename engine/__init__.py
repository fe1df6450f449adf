"""A vLLM that can be stepped: the installed scheduler, mixin and aggregator, driven by hand.

Importing this package sets what vLLM reads from the environment at import, so it must be imported
before vLLM is.
"""

from __future__ import annotations

import logging
import os

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the worker halves are driven through the V1 runner's mixin
    "VLLM_LOGGING_LEVEL": "ERROR",  # while it is imported: kernels and devices that are not here
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONHASHSEED": "0",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}

for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# torch says at import that it misses Triton, on every machine without a GPU.
logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
