"""What an engine on the CPU is told, and whether one can run here at all."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kvconform.conformance.real.inside import PREPARE
from kvconform.scenario.deployment import Deployment
from kvconform.scenario.errors import UsageError

BLOCK = 32
"""Tokens in a block: the CPU's attention kernels are made for multiples of 32."""

LONGEST = 512

OPTIONS: Mapping[str, Any] = {
    "model": "model",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": LONGEST,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 128,  # long prompts are computed in chunks
    "block_size": BLOCK,
    "num_gpu_blocks_override": 192,
    "distributed_executor_backend": "uni",  # the worker in the process of the engine core
    "enable_prefix_caching": True,
    "worker_extension_cls": "kvconform.conformance.real.inside.Inside",
    "disable_log_stats": False,
    "seed": 0,
}
"""The arguments of every engine. The model is named by a relative path, so that the swapped model
has the same name."""

_ENV = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else all engines are bound to the first cores
    # An LLM has its engine core in its own process; an AsyncLLM never has. With 1 vLLM would give
    # either one more process on the CPU, for the worker.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def environment(more: Mapping[str, object], prepare: str = "") -> dict[str, str]:
    """The environment of an engine's process: this one's, ours, and what the deployment adds."""
    path = os.pathsep.join(os.path.abspath(p or ".") for p in sys.path)
    told = {name: str(value) for name, value in more.items()}
    return {**os.environ, "PYTHONPATH": path, **_ENV, PREPARE: prepare, **told}


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens at now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


_ASK = """
import torch, vllm
from vllm.platforms import current_platform
assert current_platform.is_cpu(), "it is a build for " + str(current_platform.device_type)
current_platform.import_kernels()
assert hasattr(torch.ops._C, "cpu_attention_with_kv_cache"), "its kernels cannot be loaded here"
"""


def require_kernels() -> None:
    """Make sure that an engine can compute here.

    Raises:
        UsageError: the installed vLLM is no build for the CPU, or not for this CPU.
    """
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        env=environment({}), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(
            "Real engines cannot run here: they need vLLM's build for the CPU, on a processor "
            f"with AVX2 or AVX512 ({why.removeprefix('AssertionError: ')})."
        )


def require_parts(deployment: Deployment) -> None:
    """Make sure that what the target stands on is there.

    Raises:
        UsageError: naming what is missing, and how it is brought here.
    """
    for library, package in deployment.libraries.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            raise UsageError(
                f"{deployment.name} needs the system library {library}: install Debian's package "
                f"{package}, or what your system calls it."
            ) from None
    for module in deployment.modules:
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"{deployment.name} needs the Python package {module!r}, which is not installed; "
                f"./kvc e2e {deployment.name} fetches it."
            )
