"""What has to be so before the rest of vLLM is imported. Importing this module does it."""

from __future__ import annotations

import torch

# Older releases ask torch for these at import; newer torch has other names for them.
for _name in (
    "_is_avx2_supported",
    "_is_avx512_supported",
    "_is_avx512_bf16_supported",
    "_is_amx_tile_supported",
):
    if not hasattr(torch._C._cpu, _name):
        setattr(torch._C._cpu, _name, lambda: False)

from vllm import platforms  # noqa: E402
from vllm.platforms.interface import UnspecifiedPlatform  # noqa: E402

if isinstance(platforms.current_platform, UnspecifiedPlatform):
    # A build for a device that this machine has not, or one that cannot tell what it was built for.
    # Nothing here runs a kernel.
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    platforms.__dict__["current_platform"] = platforms._current_platform
