"""Devices that obey orders, by the names that targets give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvconform.scenario.target import Device as Name

if TYPE_CHECKING:
    from kvconform.engine.device import Device


def prepare(name: Name) -> None:
    """Make a device ready, which has to be done before vLLM is imported.

    Raises:
        UsageError: it cannot be simulated here.
    """
    if name == "ascend-sim":
        from kvconform.faults.devices import cann

        cann.load()


def make_device(name: Name) -> Device:
    """The device that a target needs: ``cpu`` or ``ascend-sim``.

    Raises:
        UsageError: it cannot be simulated here.
    """
    if name == "ascend-sim":
        from kvconform.faults.devices.ascend import SimulatedAscend

        return SimulatedAscend()
    from kvconform.engine.device import Device

    return Device()


def describe(name: Name) -> str:
    """A device in a few words, for reports."""
    if name == "ascend-sim":
        from kvconform.faults.devices import cann

        return f"torch_npu {cann.version()} on kvconform's simulated CANN"
    return "the host's memory"
