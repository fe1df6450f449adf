"""Fault packages as data: what may go wrong, in named parcels.

A package is *legal* when a correct connector must carry on as if nothing had happened, *hostile*
when the outside world broke and the connector has to say so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvconform.scenario.actions import Action, Fail, Reset
from kvconform.scenario.errors import UsageError
from kvconform.scenario.shape import Shape


@dataclass(frozen=True, slots=True)
class Package:
    """A named fault.

    Attributes:
        name: as given to ``--faults``.
        title: one line.
        legal: see the module.
        actions: names of the actions that cause it (beside arrivals and steps).
        orders: orders that the world has to obey for it; without them it cannot happen.
    """

    name: str
    title: str
    legal: bool = True
    actions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()


PACKAGES: tuple[Package, ...] = (
    Package("full-hit", "prompts return: found locally, outside, in both, or with output"),
    Package("tenants", "prompts return under another salt, or with another adapter or image"),
    Package("embeds", "prompts come as embeddings of their tokens"),
    Package(
        "delay",
        "transfers stay open and complete later, per request and rank, in any order",
        actions=("hold", "release"),
        orders=("hold", "release"),
    ),
    Package("abort", "clients abort, in every state and mid-step", actions=("abort",)),
    Package("preempt", "running requests are preempted, resumed with output", actions=("reset",)),
    Package("defer", "the store does not answer, so that lookups say None", actions=("busy",),
            orders=("busy",)),
    Package("reset", "the operator empties prefix cache and connector cache", actions=("reset",)),
    Package("tight-pool", "few blocks and a small store: waiting, preemption, eviction"),
    Package("fail-load", "loads fail, whole or in part", legal=False, actions=("fail",),
            orders=("fail",)),
    Package("full", "the store has no room for what is to be saved", actions=("refuse",),
            orders=("refuse",)),
    Package("fail-save", "saves fail, whole or in part", legal=False, actions=("fail",),
            orders=("fail-save",)),
    Package("lost", "open transfers are lost: they end late, and as failed", legal=False,
            actions=("drop",), orders=("hold", "drop")),
    Package("forget", "the store forgets between a lookup and its load", legal=False,
            actions=("forget",), orders=("forget",)),
    Package("corrupt", "what is stored is damaged where it lies", legal=False,
            actions=("corrupt",), orders=("corrupt", "verifies")),
    Package("restart", "an engine dies with all that is under way, and starts anew", legal=False,
            actions=("restart",), orders=("restart",)),
    Package("redeploy", "all engines start anew with another model or in another layout",
            actions=("redeploy",), orders=("restart",)),
    Package("shutdown", "engines are shut down with transfers open", actions=("stop",)),
    Package("same-id", "clients use an id again, once its request is over"),
    Package("handover", "one engine prefills, others decode; requests pass between them",
            orders=("route", "dialect")),
    Package("expire", "time passes, clients go away: leases run out", actions=("tick", "lose"),
            orders=("route", "dialect")),
    Package("repeat", "the router sends a hand-over twice", legal=False, actions=("repeat",),
            orders=("repeat", "dialect")),
    Package("peer-gone", "an engine cannot be reached for a while", legal=False,
            actions=("cut",), orders=("cut", "dialect")),
    Package("slow-device", "streams of the devices get on late, in an order of their own",
            actions=("stall", "flow"), orders=("device",)),
    Package("fail-copy", "copies between a device and the host fail", legal=False,
            actions=("break",), orders=("device",)),
)  # fmt: skip

TIGHT = 20
"""Blocks of 16 tokens, or of more, in a pool that counts as tight; smaller ones weigh less."""


def is_tight(shape: Shape) -> bool:
    """Whether requests are in each other's way in this pool."""
    return shape.num_blocks * min(shape.block_size, 16) <= TIGHT * 16


_BY_ACTION = {action: p.name for p in PACKAGES for action in p.actions}


def package_of(action: Action) -> str | None:
    """The package that an action belongs to; None for arrivals and steps."""
    match action:
        case Reset(running, connector):  # of vLLM's own cache: what returns is found outside
            return "preempt" if running else "reset" if connector else "full-hit"
        case Fail(direction="save"):
            return "fail-save"
        case Fail():
            return "fail-load"
        case _:
            return _BY_ACTION.get(action.do)


NAMES: tuple[str, ...] = tuple(p.name for p in PACKAGES)


def select(text: str) -> frozenset[str]:
    """Package names from ``--faults``: ``all``, or names with commas; ``none`` for none.

    Raises:
        UsageError: for an unknown name.
    """
    if text == "all":
        return frozenset(NAMES)
    if text == "none":
        return frozenset()
    names = [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"There is no fault package {name!r}; choose from {', '.join(NAMES)}, or 'all'."
            )
    return frozenset(names)


def possible(
    offers: frozenset[str],
    dialect: bool = False,
    features: Collection[str] = (),
    device: bool = False,
) -> frozenset[str]:
    """The packages that a world with these orders can carry out.

    Requests pass from a prefill to a decode engine only where the target's ``dialect`` is known,
    what is stored is damaged only for who says, in its ``features``, that it notices, and a
    ``device`` obeys orders only where it is simulated.
    """
    offers |= {"verifies"} & set(features)
    offers |= {"dialect"} if dialect else set()
    offers |= {"device"} if device else set()
    return frozenset(p.name for p in PACKAGES if offers.issuperset(p.orders))
