"""What connectors that were written for accelerators have to be told on a CPU."""

from __future__ import annotations


def accelerator() -> None:
    """The device's index is 0, as of a machine with one accelerator.

    vLLM's MooncakeConnector asks ``torch.accelerator`` for it, which raises where there is none,
    and uses it to name itself only.
    """
    import torch

    torch.accelerator.current_device_index = lambda: 0
