"""KVC-9xx: statistics, KV events, the workers' metadata, and answers that are used later."""

from __future__ import annotations

from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Side


def _side(event: Event) -> Side:
    return "worker half" if event.data["half"] == "worker half" else "scheduler half"


class _Observed(Check):
    """Hears what was told; provoked where something was, after a fault."""

    what: str

    added_up = ""
    """The hook whose answers vLLM adds up; empty: it does not, or another check judges that."""

    def on_observed(self, event: Event) -> None:
        data = event.data
        if data["what"] == self.what:
            nothing = data.get("nothing") or data.get("events") == []
            self.reached += bool(self.ledger.faults) and not nothing
            self.told(event)

    def told(self, event: Event) -> None:
        """Judge it, be it that there was nothing to tell."""

    def on_broke(self, event: Event) -> None:
        """vLLM raised in a method of what it was handed."""
        data = event.data
        if data.get("handed") == self.what and self.added_up:
            self.fail(
                event, f"{data['error']} in {data['where'].rpartition('.')[2]}",
                where=self.added_up,
                expected=f"{self.what} that can be added up",
                got=f"{data['error']}: {data['message']}",
                why="vLLM adds it up in the engine core, which dies",
            )  # fmt: skip


class AddsUp(_Observed):
    """KVC-901."""

    rule = "KVC-901"
    what = "statistics"
    added_up = "get_kv_connector_stats"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._types: dict[int, tuple[str, str]] = {}  # of an engine's first, and whose it was

    def on_observed(self, event: Event) -> None:
        super().on_observed(event)
        if event.data["what"] == "log":
            self._problem(event, "composition")

    def told(self, event: Event) -> None:
        data = event.data
        if data.get("nothing"):
            return
        self._problem(event, _side(event))
        kind, half = self._types.setdefault(event.engine, (data["type"], data["half"]))
        if kind != data["type"]:
            self.fail(
                event, "of several types", where=data["hook"], side="composition",
                expected=f"{kind}, as the {half} has told", got=f"{data['type']}",
                why="vLLM adds the one to the other: an assertion, or a method that is not there",
            )  # fmt: skip

    def _problem(self, event: Event, side: Side) -> None:
        data = event.data
        if data["problem"]:
            self.fail(
                event, data["problem"], where=data["hook"], side=side, got=data["detail"],
                expected="statistics that are added up, sent, and reduced to numbers of 0 or more",
                why="the engine core, or the process that logs them, dies of it",
            )  # fmt: skip


class _Quiet(_Observed):
    """Knows whether anything has happened at an engine since a half was asked last."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._since: dict[int, set[tuple[str, int | None]]] = {}
        self._obeys = False  # whether transfers can be seen at all

    def _happened(self, event: Event) -> None:
        self._since.pop(event.engine, None)

    on_admitted = on_status = on_forwarded = on_reset = on_answered = _happened

    def _moves(self, event: Event) -> None:
        self._obeys = True
        # Whoever offers and whoever pulls are two.
        self._since.clear()

    on_opened = on_moved = on_closed = _moves

    def on_ran(self, event: Event) -> None:
        self._happened(event)

    def on_scheduled(self, event: Event) -> None:
        if event.data["tokens"] or event.data["finished"] or event.data["preempted"]:
            self._happened(event)

    def on_hook(self, event: Event) -> None:
        data = event.data
        busy = event.request is not None or data["name"] == "reset_cache"
        answer = data.get("answer")
        busy |= data["name"] == "get_finished" and isinstance(answer, tuple) and any(answer)
        busy |= data["name"] == "get_transfer_results" and data["told"]
        if busy:
            self._happened(event)

    def on_action(self, event: Event) -> None:
        if event.data["action"]["do"] != "step":  # time passes, say
            self._since.clear()

    def quiet(self, event: Event) -> bool:
        """Whether nothing has; asked once for each answer."""
        asked = self._since.setdefault(event.engine, set())
        key = (event.data["half"], event.rank)
        quiet = self._obeys and key in asked
        asked.add(key)
        return quiet


class StatisticsStartAnew(_Quiet):
    """KVC-902: counters, not levels, and only of what was seen to grow before."""

    rule = "KVC-902"
    what = "statistics"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._last: dict[tuple[int, str, int | None], dict[str, float]] = {}
        self._grown: set[tuple[tuple[int, str, int | None], str]] = set()

    def told(self, event: Event) -> None:
        data, quiet = event.data, self.quiet(event)
        key = (event.engine, data["half"], event.rank)
        values = data.get("values", {})
        last = self._last.get(key)
        self._last[key] = values
        if last is None:
            return
        self._grown |= {(key, name) for name in values if values[name] > last.get(name, 0)}
        again = [
            name for name in data.get("adds", ())
            if quiet and values[name] == last.get(name) and (key, name) in self._grown
        ]  # fmt: skip
        if again:
            self.fail(
                event, "told again", where=data["hook"], side=_side(event),
                expected="nothing: nothing has happened since the last reading",
                got=f"{again[0]} is {values[again[0]]:g}, as it was then",
                why="vLLM adds up what each step tells: the counters grow by themselves",
            )  # fmt: skip


class WellFormed(_Observed):
    """KVC-903."""

    rule = "KVC-903"
    what = "events"

    def told(self, event: Event) -> None:
        for one in event.data["events"]:
            if one["problem"]:
                self.fail(
                    event, one["problem"], where=event.data["hook"], got=one["detail"],
                    expected="events of vLLM's, which tell of a block what it is",
                    why="subscribers cannot read it, or take the block for another",
                )  # fmt: skip


class EventsOnce(_Quiet):
    """KVC-904."""

    rule = "KVC-904"
    what = "events"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._last: dict[int, list[str]] = {}

    def told(self, event: Event) -> None:
        data, quiet = event.data, self.quiet(event)
        texts = [one["text"] for one in data["events"]]
        last, self._last[event.engine] = self._last.get(event.engine), texts
        again = next((one["text"] for one in data["events"] if one["again"]), None)
        if again is None and quiet and texts and texts == last:
            again = texts[0]
        if again is not None:
            self.fail(
                event, "handed out again", where=data["hook"], got=again,
                expected="only what has happened since the last reading",
                why="subscribers apply it twice, and the list grows",
            )  # fmt: skip


class Announced(_Observed):
    """KVC-905."""

    rule = "KVC-905"
    what = "events"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._saved: set[str] = set()  # requests of which bytes were saved
        self._obeys = False
        self._there: dict[int, set[str]] = {}  # announced by an engine, and not removed since
        self._ever: set[str] = set()
        self._least: dict[int, int] = {}  # tokens of an engine's shortest load
        self._missed: list[tuple[Event, int]] = []  # and how many were announced then

    def on_opened(self, event: Event) -> None:
        self._obeys = True

    def on_moved(self, event: Event) -> None:
        if event.data["direction"] == "save" and event.request is not None:
            self._saved.add(event.request)

    def on_admitted(self, event: Event) -> None:
        if event.data["external"] > 0:
            least = self._least.get(event.engine, event.data["external"])
            self._least[event.engine] = min(least, event.data["external"])

    def on_restarted(self, event: Event) -> None:
        # Whoever routes by announcements begins anew with an engine that does.
        self._there.pop(event.engine, None)
        self._missed = [one for one in self._missed if one[0].engine != event.engine]

    def on_redeployed(self, event: Event) -> None:
        self._there.clear()
        self._least.clear()
        self._missed.clear()

    def on_observed(self, event: Event) -> None:
        super().on_observed(event)
        if event.data["what"] == "miss":
            there = self._there.get(event.engine, set())
            self._missed.append((event, _leading(event.data["names"], there)))

    def told(self, event: Event) -> None:
        data, there = event.data, self._there.setdefault(event.engine, set())
        for one in data["events"]:
            for block in one["stored"]:
                self._stored(event, block)
                there.add(block["name"])
                self._ever.add(block["name"])
            for block in one["removed"]:
                if block["computed"] is not None and block["name"] not in self._ever:
                    self.fail(
                        event, "removed, and never stored", where=data["hook"],
                        expected="the removal of what was announced", got=f"block {block['name']}",
                        why="what was announced under another name, or not at all, stays for ever",
                    )  # fmt: skip
                there.discard(block["name"])
            if one.get("cleared"):
                there.clear()
        missed = [one for one in self._missed if one[0].engine == event.engine]
        self._missed = [one for one in self._missed if one[0].engine != event.engine]
        for miss, then in missed:
            self._not_found(miss, min(then, _leading(miss.data["names"], there)))

    def _stored(self, event: Event, block: dict[str, Any]) -> None:
        if block["computed"] is False:
            kind, got = "not computed", "nobody has computed it yet"
        elif self._obeys and block["of"] and not self._saved.intersection(block["of"]):
            kind, got = "not saved", f"nothing of {', '.join(block['of'])} has been saved yet"
        else:
            return
        self.fail(
            event, kind, where=event.data["hook"], request=min(block["of"]),
            expected=f"block {block['name']} announced when it can be fetched", got=got,
            why="requests are sent here for KV that is not there",
        )  # fmt: skip

    def _not_found(self, miss: Event, count: int) -> None:
        """A lookup found nothing of so many blocks that were announced, and still are.

        By now the engine has told what was there no longer.
        """
        ledger, names = self.ledger, miss.data["names"]
        size = miss.data["block_size"]
        facts = ledger.requests.get(miss.request or "")
        least = self._least.get(miss.engine)
        if (
            ledger.shape.topology != "store"
            or least is None  # it has not loaded anything yet: perhaps it does not
            or count < 2
            or count * size < least
            or facts is None
            or facts.load_failed
            or any(ledger.faults[name] for name in _SPOILS)
        ):
            return
        self.fail(
            miss, "announced, and not found", where="get_num_new_matched_tokens",
            request=miss.request, got=f"nothing, from block {names[0]} on",
            expected=f"some of the {count} blocks that were announced and not removed",
            why="requests are sent here for KV that is gone",
        )  # fmt: skip


def _leading(names: list[str], there: set[str]) -> int:
    return next((i for i, name in enumerate(names) if name not in there), len(names))


_SPOILS = ("fail-load", "lost", "forget", "repeat", "fail-save", "fail-copy")
"""After these a connector may leave aside what it has."""


class MetadataOnce(_Quiet):
    """KVC-906."""

    rule = "KVC-906"
    what = "worker metadata"
    added_up = "build_connector_worker_meta"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._last: dict[tuple[int, int | None], str] = {}
        self._rests: set[tuple[int, int | None]] = set()  # have had nothing to tell

    def told(self, event: Event) -> None:
        data, quiet = event.data, self.quiet(event)
        key = (event.engine, event.rank)
        content = data.get("content", "")
        last, self._last[key] = self._last.get(key), content
        if not content:
            self._rests.add(key)
        if data.get("problem"):
            self.fail(
                event, data["problem"], where=data["hook"], got=data["detail"],
                expected="metadata that can be sent, and added to that of other ranks",
                why="the engine core dies of it",
            )  # fmt: skip
        if content and quiet and content == last and key in self._rests:
            self.fail(
                event, "told again", where=data["hook"],
                expected="nothing: nothing has happened since the last step",
                got=f"the same {data['type']} once more",
                why="the scheduler half takes it for new reports: it counts ranks twice",
            )  # fmt: skip


class AnswersStay(_Observed):
    """KVC-907."""

    rule = "KVC-907"
    what = "answer"

    def told(self, event: Event) -> None:
        if event.data["changed"]:
            self.fail(
                event, "changed", where=event.data["hook"],
                expected=f"the answer of {event.data['hook']} as it was given: "
                f"{event.data['detail']}",
                got="something else, when the step was processed",
                why="with one rank vLLM holds the object itself, and goes by what it has become",
            )  # fmt: skip


CHECKS = (
    AddsUp,
    StatisticsStartAnew,
    WellFormed,
    EventsOnce,
    Announced,
    MetadataOnce,
    AnswersStay,
)
