"""Profiles: which part of the contract a connector is held to."""

from __future__ import annotations

from dataclasses import dataclass

from kvconform.conformance.rules import RULES, Rule
from kvconform.scenario.errors import UsageError


@dataclass(frozen=True, slots=True)
class Profile:
    """A named part of the contract.

    Attributes:
        name: as given to ``--profile``.
        title: one line.
        without: features that this kind of connector does not have, even when a method is
            overridden; rules that need them are not asked.
        composed: it is checked as a child of a MultiConnector, before a companion and after it.
    """

    name: str
    title: str
    without: frozenset[str] = frozenset()
    composed: bool = False


PROFILES: tuple[Profile, ...] = (
    Profile("store", "saves KV somewhere and finds it again, for any engine"),
    Profile("offload", "saves KV to the host's memory and loads it again, for its own engine"),
    Profile("consumer-async", "loads KV in the background, requests wait for it"),
    Profile("consumer-sync", "loads KV within the step", frozenset({"async"})),
    Profile("multi", "is a child of vLLM's MultiConnector, beside a companion", composed=True),
)

_BY_NAME = {p.name: p for p in PROFILES}


def find(name: str) -> Profile:
    """The profile of this name.

    Raises:
        UsageError: there is none.
    """
    profile = _BY_NAME.get(name)
    if profile is None:
        raise UsageError(f"There is no profile {name!r}; choose from {', '.join(_BY_NAME)}.")
    return profile


def applies(rule: Rule, profile: Profile, features: frozenset[str]) -> bool:
    """Whether a rule is asked of a target with these features."""
    return rule.features <= features - profile.without


def rules_of(profile: Profile, features: frozenset[str]) -> list[Rule]:
    """The KVC rules that apply."""
    return [r for r in RULES if r.id.startswith("KVC") and applies(r, profile, features)]
