"""Whether there is a vLLM to test with, in one sentence."""

from __future__ import annotations

import gc
import importlib.util

from kvconform.scenario.errors import UsageError


def require_vllm() -> None:
    """Make sure that vLLM can be imported.

    Raises:
        UsageError: it is not installed, or broken.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(
            "vLLM is not installed in this environment: install the build that your connector runs "
            "on, or start with ./kvc, which makes an environment of its own."
        )
    try:
        import kvconform.engine
        import kvconform.engine.compat  # noqa: F401
    except Exception as error:
        raise UsageError(
            f"The installed vLLM cannot be imported: {type(error).__name__}: {error}."
        ) from error
    # vLLM and torch are a million objects that never die: keep the collector from walking them.
    gc.collect()
    gc.freeze()
