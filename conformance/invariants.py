"""What public defects break, and the rules that watch it: a fixed table.

The defects of the zoo name what they break; which rules have to notice follows from here, and not
from what was seen to fire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant.

    Attributes:
        id: ``I02``.
        text: what has to hold.
        rules: who watches it; empty: nobody yet.
        by: what it shows as where no rule watches the cause: KV that is wrong when it is read, say.
    """

    id: str
    text: str
    rules: tuple[str, ...]
    by: tuple[str, ...] = ()


_CONTENT = ("KVC-501", "KVC-404")
"""Nearly everything ends in KV that is not what it has to be."""

INVARIANTS: tuple[Invariant, ...] = (
    Invariant("I01", "completions name requests that the scheduler knows", ("KVC-301",),
              ("KVC-303", "KVC-304", "KVC-305")),
    Invariant("I02", "only waiting or finished requests are received", ("KVC-302",), ("KVC-301",)),
    Invariant("I03", "one completion per transfer and direction", ("KVC-303", "KVC-304"),
              ("KVC-301", "KVC-302", "KVC-305", "KVC-402")),
    Invariant("I04", "a send is completed if and only if the finish was delayed",
              ("KVC-305", "KVC-307", "KVC-402"),
              ("KVC-206", "KVC-301", "KVC-303", "KVC-304", "KVC-306", "KVC-401")),
    Invariant("I05", "in the end all blocks are free, and no request is left", ("KVC-402",),
              ("KVC-304", "KVC-603", "KVC-701", "VLL-701")),
    Invariant("I06", "somebody gets on", ("KVC-701", "KVC-702", "KVC-106", "VLL-701", "VLL-703"),
              ("KVC-304", "KVC-402", "KVC-010")),
    Invariant("I07", "blocks of an open transfer are nobody else's",
              ("KVC-206", "KVC-306", "KVC-401", "VLL-401"), (*_CONTENT, "KVC-305", "KVC-407")),
    Invariant("I08", "attention finds the KV of exactly this prefix", ("KVC-501",),
              ("KVC-205", "KVC-306", "KVC-401", "KVC-404", "KVC-407", "KVC-504", "KVC-601")),
    Invariant("I09", "promises are within bounds", ("KVC-101", "KVC-102", "KVC-104"),
              ("KVC-103", "KVC-010")),
    Invariant("I10", "asynchronous means that something will be completed", ("KVC-103",),
              ("KVC-302", "KVC-701", "KVC-301")),
    Invariant("I11", "a lookup can be repeated", ("KVC-105", "KVC-106", "KVC-107"),
              ("KVC-010", "KVC-405", "KVC-501")),
    Invariant("I12", "what was promised is loaded, once for each admission",
              ("KVC-501", "KVC-108", "KVC-205", "KVC-804"),
              ("KVC-102", "KVC-105", "KVC-010", "KVC-404", "KVC-701")),
    Invariant("I13", "metadata describes its step, and crosses the wire",
              ("KVC-201", "KVC-202", "KVC-203", "KVC-204", "KVC-205"),
              ("KVC-303", "KVC-401", "KVC-501")),
    Invariant("I14", "the connector's blocks are the KV manager's",
              ("KVC-404", "KVC-407", "KVC-501"), ("KVC-010", "KVC-205", "KVC-206", "KVC-401")),
    Invariant("I15", "only computed tokens are saved", ("KVC-503",), ("KVC-501",)),
    Invariant("I16", "each failed load is reported, with its completion",
              ("KVC-601", "KVC-602", "KVC-604", "KVC-701"),
              ("KVC-010", "KVC-501", "KVC-304", "KVC-402")),
    Invariant("I17", "the output after a failure is that of a run without", ("VLL-201", "VLL-202"),
              _CONTENT),
    Invariant("I18", "what is reserved outside is given back",
              ("KVC-108", "KVC-307", "KVC-403", "KVC-405", "KVC-603"),
              ("KVC-402", "KVC-105", "KVC-501")),
    Invariant("I19", "ranks agree", ("KVC-303", "KVC-402"), ("KVC-501", "KVC-601", "KVC-701")),
    Invariant("I20", "block lists of groups and layers are the right ones",
              ("KVC-501", "KVC-803", "KVC-804"), ("KVC-404", "KVC-010", "KVC-108")),
    Invariant("I21", "a child of a composition sees the contract that it would see alone",
              ("KVC-805", "KVC-806", "KVC-807"), ("KVC-302", "KVC-303", "KVC-501")),
    Invariant("I22", "after a reset nothing old is found", ("KVC-801",), _CONTENT),
    Invariant("I23", "keys cover all that makes KV different",
              ("KVC-504", "KVC-506", "KVC-507", "KVC-508"),
              ("KVC-301", "KVC-501")),
    Invariant("I24", "statistics and events are well formed",
              ("KVC-901", "KVC-902", "KVC-903", "KVC-904", "KVC-905", "KVC-906")),
    Invariant("I25", "the engine goes on while a completion is owed", ("VLL-702", "KVC-702"),
              ("KVC-402", "KVC-701")),
    Invariant("I26", "transfers keep their order with writes", ("KVC-401", "KVC-501"),
              ("KVC-306", "KVC-404", "KVC-503")),
    Invariant("I27", "what has expired is not read", ("KVC-401",), ("KVC-501", "KVC-603")),
    Invariant("I28", "overrides fit the base class", ("KVC-001", "KVC-002", "KVC-003", "KVC-011"),
              ("KVC-010",)),
    Invariant("I29", "the finish hook comes once, in any state", ("KVC-010", "VLL-102")),
    Invariant("I30", "a configuration works or is refused", ("KVC-010",), ("KVC-501", "KVC-701")),
    Invariant("I31", "no token counts as computed that is not", ("VLL-203",), ("VLL-202",)),
    Invariant("I32", "preempted requests are resumed as such", ("VLL-202",),
              ("KVC-010", "KVC-501", "KVC-305", "KVC-402")),
    Invariant("I33", "queues keep their order", ()),
    Invariant("I34", "common blocks are common", ("VLL-101",)),
    Invariant("I35", "what the policy promises to keep is found again",
              ("KVC-505", "KVC-509"), ("KVC-406",)),
    Invariant("I36", "what is kept for a request goes with it", ("KVC-405", "KVC-406"),
              ("KVC-304", "KVC-402", "KVC-010")),
    Invariant("I37", "a request is not loaded and saved at once", ("KVC-401",),
              ("KVC-010", "KVC-501", "KVC-305")),
    Invariant("I38", "what is stored is not stored again", ()),
    Invariant("I39", "shared blocks are not written", ("KVC-404",), ("KVC-401", "KVC-501")),
)  # fmt: skip

BY_ID = {invariant.id: invariant for invariant in INVARIANTS}


def expected(breaks: tuple[str, ...]) -> frozenset[str]:
    """The rules that have to notice when these invariants are broken; any one of them does."""
    return frozenset(rule for i in breaks for rule in (*BY_ID[i].rules, *BY_ID[i].by))
