"""KVC-5xx, and what else wrong KV can mean: the last writer has decided (engine/blame.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import Facts
from kvconform.scenario.identity import Identity
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Side

_WHERE = "attention"

RULE_OF: Mapping[str, str] = {
    "other-tenant": "KVC-504",
    "other-media": "KVC-506",
    "other-embeds": "KVC-507",
    "other-model": "KVC-508",
    "torn": "KVC-502",
    "rotten": "KVC-605",
    "unfilled": "KVC-410",
}
"""The rules of wrong KV whose cause can be read off it."""

_MEANT: Mapping[str, tuple[str, str]] = {
    "other-tenant": ("KV of {}", "one tenant's KV is served to another"),
    "other-media": ("KV of {}", "the model sees another image"),
    "other-embeds": ("KV of {}", "the model is answered another prompt"),
    "other-model": ("KV of {}", "KV of other weights: wrong tokens, without an error"),
    "torn": ("KV that was saved whole", "a save that failed was promised all the same"),
    "rotten": (
        "a failed load, or KV as it was saved",
        "damaged KV: wrong tokens, without an error",
    ),
    "unfilled": (
        "KV as the device has it",
        "a buffer was read before the copy that fills it: wrong tokens, without an error",
    ),
}
"""For each of these what was to be read, and what follows."""


class Content(Check):
    """KVC-501; hands over to its neighbours and the VLL rules as the evidence says."""

    rule = "KVC-501"
    also = ("KVC-404", "KVC-601", "VLL-201", "VLL-203", *sorted(RULE_OF.values()))

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._unread: set[str] = set()
        self._late = False  # copies of a device have run late

    def on_device(self, event: Event) -> None:
        self._late |= bool(event.data["waited"])

    def on_admitted(self, event: Event) -> None:
        if event.data["external"] > 0 and event.request:
            self._unread.add(event.request)

    def on_scheduled(self, event: Event) -> None:
        read = self._unread & event.data["tokens"].keys()
        self._unread -= read
        self.reached += len(read)

    def on_wrong_kv(self, event: Event) -> None:
        data = event.data
        got = (
            f"on rank {event.rank}, layer {data['layer']}, position {data['position']} of "
            f"{event.request}: {data['text']}"
        )
        what = data["what"]
        if not data["connector"]:
            failed = what == "failed-load-used"
            self.fail(
                event, what, rule="VLL-201" if failed else "VLL-203", where="vLLM", got=got,
                expected="blocks of a failed load are recomputed before anyone reads them"
                if failed else f"the KV of {event.request}",
                why="the request goes on with wrong tokens",
            )  # fmt: skip
            return
        promised_to = data["loaded_for"]
        if what == "overwritten":
            self.fail(
                event, what, rule="KVC-404", where=_WHERE, got=got,
                expected=f"the KV of {event.request}, which the engine had written there",
                why="a load wrote outside the blocks that were allocated for it",
            )  # fmt: skip
        elif what in RULE_OF:
            expected, why = _MEANT[what]
            identity = self.ledger.requests[event.request or ""].identity
            self.fail(
                event, what, rule=RULE_OF[what], where=_WHERE, got=got, why=why,
                expected=expected.format(identity),
            )  # fmt: skip
        elif (
            what == "never-loaded"
            and (event.engine, event.rank, data["block"]) in self.ledger.unreported
        ):
            self.fail(
                event, "never reported", rule="KVC-601", where=_WHERE, got=got,
                expected=f"block {data['block']}, whose load failed, among those reported",
                why="the request computes with KV that was never loaded",
            )  # fmt: skip
        else:
            self.fail(
                event, what, where=_WHERE, got=got, side=self._planner(event),
                expected=f"the KV that the connector promised to {promised_to}",
                why="the request computes with wrong KV: wrong tokens, without an error",
            )  # fmt: skip

    def _planner(self, event: Event) -> Side | None:
        """The scheduler half, where the ranks did what it had planned and the KV is wrong still.

        Nothing was written where nobody was told to: where the workers have not heard of the load,
        or have heard of other blocks of it.
        """
        facts = self.ledger.requests.get(event.data["loaded_for"] or "")
        if facts is not None and event.data["what"] == "never-loaded":
            told = facts.planned
            unplanned = told is None or bool(told and event.data["block"] not in told)
            return "scheduler half" if unplanned else None
        followed = facts is not None and facts.plan_followed and self.ledger.saved_as_planned
        # Who copies late copies what is there by then, from where it was told.
        misplaced = event.data["what"] in ("other-tokens", "never-computed") and not self._late
        return "scheduler half" if followed and misplaced else None


class OnlyPromisedBlocks(Check):
    """KVC-404; where transfers cannot be seen, the evidence comes to :class:`Content`."""

    rule = "KVC-404"

    def on_admitted(self, event: Event) -> None:
        self.reached += bool(event.data["external"] > 0 and event.data["local"] > 0)

    def on_moved(self, event: Event) -> None:
        data = event.data
        facts = self.ledger.requests.get(event.request or "")
        if data["direction"] != "load" or facts is None:
            return
        outside = sorted(set(data["blocks"]) - set(data["failed"]) - set(facts.blocks))
        if outside:
            self.fail(
                event, "outside the promise",
                side="scheduler half" if data["planned"] else None,  # the rank did as it was told
                expected=f"the load of {facts.name} writes only the blocks that were allocated "
                "for it", got=f"block {outside[0]} written too",
                why="a block that was found locally is shared: others may be reading it",
                where="transport",
            )  # fmt: skip


class FoundAgain(Check):
    """KVC-505; KVC-509 for requests that have something of their own beside their tokens."""

    rule = "KVC-505"

    def judges(self, facts: Facts) -> bool:
        """Whether the request is one of those that the rule is for."""
        return dataclasses.replace(facts.identity, model="") == Identity()

    def on_hook(self, event: Event) -> None:
        data = event.data
        if data["name"] != "get_num_new_matched_tokens" or event.request is None:
            return
        size, answer, local = self.ledger.shape.block_size, data["answer"], data["local"]
        facts = self.ledger.requests[event.request]
        if not self.judges(facts):
            return
        if facts.load_failed or local % size or not isinstance(answer, tuple):
            return
        kept = min(self.ledger.kept_tokens(facts), (data["total"] - 1) // size * size)
        if kept <= local or not isinstance(answer[0], int):
            return
        self.reached += 1
        if local + answer[0] < kept:
            self.fail(
                event, "not found", where="get_num_new_matched_tokens",
                expected=f"{kept} tokens of {facts.name} ({facts.identity}), local ones included: "
                "requests like it have ended, and nothing is being saved any more",
                got=f"{answer[0]} beyond {local} local ones",
                why="a cache that does not hit costs room and time, and nobody notices",
            )  # fmt: skip


class EqualsShare(FoundAgain):
    """KVC-509."""

    rule = "KVC-509"

    def judges(self, facts: Facts) -> bool:
        return not super().judges(facts)


CHECKS = (FoundAgain, EqualsShare, Content, OnlyPromisedBlocks)
