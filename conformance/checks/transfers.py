"""Rules about transfers that can be seen: when they begin, for whom, with which blocks, once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


def _kind(direction: str) -> str:
    """A pull is a load from another engine."""
    return "load" if direction in ("load", "pull") else "save"


class StartedOnce(Check):
    """KVC-205."""

    rule = "KVC-205"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._started: defaultdict[tuple[int, int | None, str], set[int]] = defaultdict(set)
        self._promised: dict[tuple[int, str | None], bool] = {}

    def on_admitted(self, event: Event) -> None:
        self._promised[event.engine, event.request] = event.data["external"] > 0
        if not event.data["external"]:
            return  # the call after a load
        for key in [k for k in self._started if (k[0], k[2]) == (event.engine, event.request)]:
            del self._started[key]

    def on_opened(self, event: Event) -> None:
        if _kind(event.data["direction"]) != "load" or not event.data["blocks"]:
            return
        self.reached += 1
        started = self._started[event.engine, event.rank, event.request or ""]
        again = sorted(started & set(event.data["blocks"]))
        started.update(event.data["blocks"])
        if again:
            self.fail(
                event, "started twice", where="build_connector_meta",
                expected=f"one load of each block of {event.request} for each admission",
                got=f"block {again[0]} is loaded a second time",
                why="the first may be reported while the second still writes",
            )  # fmt: skip
        elif not self._promised.get((event.engine, event.request), True):
            self.fail(
                event, "started without a promise", where="update_state_after_alloc",
                expected=f"no load for {event.request}, which was admitted with 0 external tokens",
                got=f"a load of {len(event.data['blocks'])} block(s)",
                why="vLLM computes these tokens itself: two write there",
            )  # fmt: skip

    def on_moved(self, event: Event) -> None:
        # What failed may be tried again.
        started = self._started[event.engine, event.rank, event.request or ""]
        started.difference_update(event.data["failed"])


class NothingForTheGone(Check):
    """KVC-206."""

    rule = "KVC-206"

    def on_hook(self, event: Event) -> None:
        if event.data["name"].startswith("request_finished"):
            self.reached += event.data["status"] == "FINISHED_ABORTED"

    def on_opened(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if facts is None or not event.data["blocks"]:
            return
        if facts.status is None or facts.status == "PREEMPTED":
            self.fail(
                event, f"{_kind(event.data['direction'])} begins too late",
                where="build_connector_meta",
                expected=f"nothing for {facts.name}, which "
                + ("the scheduler has forgotten" if facts.status is None else "was preempted"),
                got=f"a {event.data['direction']} of {len(event.data['blocks'])} block(s)",
                why="its blocks may belong to another request by now",
            )  # fmt: skip


class ReportedWhenDone(Check):
    """KVC-306."""

    rule = "KVC-306"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: defaultdict[tuple[int, int | None, str, str], set[str]] = defaultdict(set)

    def _of(self, event: Event, direction: str, request: str) -> set[str]:
        return self._open[event.engine, event.rank, request, _kind(direction)]

    def on_opened(self, event: Event) -> None:
        self._of(event, event.data["direction"], event.request or "").add(event.data["transfer"])

    def on_moved(self, event: Event) -> None:
        moved = event.data["transfer"]
        self._of(event, event.data["direction"], event.request or "").discard(moved)

    def on_restarted(self, event: Event) -> None:
        for key in [k for k in self._open if k[0] == event.engine]:
            del self._open[key]  # no byte of it moves any more

    def on_redeployed(self, event: Event) -> None:
        self._open.clear()

    def on_ran(self, event: Event) -> None:
        for direction, kind in (("recving", "load"), ("sending", "save")):
            for name in sorted(event.data[direction]):
                self.reached += self.ledger.held
                still = self._of(event, kind, name)
                if still:
                    self.fail(
                        event, f"{kind} still open", where=f"get_finished: finished_{direction}",
                        expected=f"{name} in finished_{direction} of rank {event.rank} when its "
                        f"{kind} there has ended",
                        got=f"the report, and {min(still)} is still under way",
                        why="vLLM gives the blocks on, or computes with them", request=name,
                    )  # fmt: skip


class ReadsOwnBlocks(Check):
    """KVC-407."""

    rule = "KVC-407"

    def on_opened(self, event: Event) -> None:
        if _kind(event.data["direction"]) != "save":
            return
        facts = self.ledger.requests.get(event.request or "")
        self.reached += facts is not None and facts.known >= self.ledger.shape.block_size
        foreign = event.data.get("foreign")
        if foreign:
            self.fail(
                event, "not its blocks", where="build_connector_meta",
                expected=f"a save of blocks of {event.request}",
                got=f"block {foreign[0]}, which {event.request} does not have",
                why="another request's KV is saved under this one's key",
            )  # fmt: skip


class PromisesHold(Check):
    """KVC-108."""

    rule = "KVC-108"
    _outside = ("forget", "expire", "peer-gone", "repeat", "corrupt", "restart", "redeploy")
    """After these a load may fail that nobody told to."""
    _late = False
    """Copies of a device have run late: what was saved may have changed since."""

    def on_device(self, event: Event) -> None:
        self._late |= bool(event.data["waited"])

    def on_moved(self, event: Event) -> None:
        data = event.data
        if _kind(data["direction"]) != "load" or not data["blocks"]:
            return
        self.reached += data["opened"] != event.step or data["direction"] == "pull"
        missing = sorted(set(data["failed"]) - set(data["given"]))
        outside = self.ledger.resets or any(self.ledger.faults[name] for name in self._outside)
        if missing and not outside:
            self.fail(
                event, f"{data['direction']} of what is not there", where="transport",
                side="composition" if self._late else None,
                expected=f"what {event.request} was promised, in block {missing[0]} too",
                got="nothing: it is not there, or not any more, and nothing outside has failed",
                why="the load fails and is computed after all, or its request fails",
            )  # fmt: skip


CHECKS = (PromisesHold, StartedOnce, NothingForTheGone, ReportedWhenDone, ReadsOwnBlocks)
