"""A scenario: a shape and a list of actions.

The one language in which Hypothesis draws, fixed tests are written, failures are stored and
replayed. After the last action every run drains: the world's faults end, the engines step until
nothing is left, and what is left over is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.scenario.actions import Action, action_from_json, action_to_json
from kvconform.scenario.codec import decode, encode
from kvconform.scenario.errors import UsageError
from kvconform.scenario.shape import Shape


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run is made of; equal scenarios give equal runs."""

    shape: Shape = field(default_factory=Shape)
    actions: tuple[Action, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON data; defaults are left out."""
        return {
            "shape": encode(self.shape),
            "actions": [action_to_json(a) for a in self.actions],
        }

    @staticmethod
    def from_json(data: Any, where: str = "scenario") -> Scenario:
        """A scenario from JSON data.

        Raises:
            UsageError: one sentence that names the place.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("actions"), list):
            raise UsageError(f"{where}: expected an object with 'shape' and a list 'actions'.")
        return Scenario(
            decode(Shape, data.get("shape", {}), f"{where}.shape"),
            tuple(
                action_from_json(a, f"{where}.actions[{i}]") for i, a in enumerate(data["actions"])
            ),
        )
