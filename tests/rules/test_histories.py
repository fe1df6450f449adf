"""Each rule fires on one short history, on the right side; the reference connector survives it.

What exploration finds depends on what is drawn; these histories do not.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kvconform.conformance.rules import BY_ID
from kvconform.conformance.run import Outcome, play
from kvconform.connectors.ascend import AscendConnector
from kvconform.connectors.zoo import (
    books,
    completion,
    content,
    failure,
    groups,
    hooks,
    identity,
    lookup,
    memory,
    metadata,
    observation,
    restart,
)
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Busy,
    Corrupt,
    Cut,
    Fail,
    Hold,
    Lose,
    Redeploy,
    Release,
    Reset,
    Restart,
    Step,
    Stop,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Side
from tests.rules.targets import ASCEND, wrong_target
from tests.rules.wrong import WRONG


def a(length: int, max_tokens: int = 1, *, salt: str | None = None, engine: int = 0) -> Arrive:
    """A request of the one family of prompts."""
    return Arrive(Prompt(0, length), max_tokens, salt, engine)


def saved(length: int) -> tuple[Action, ...]:
    """Blocks of a prompt of this length are outside, and none are inside."""
    return (a(length), Step(3), Reset())


@dataclass(frozen=True)
class History:
    """What happens, and what comes of it.

    Attributes:
        rule: the rule that the connector breaks.
        cls: the connector.
        actions: what happens.
        kind: how the rule is broken, as the fingerprint says.
        side: who owes it, where the rule leaves that open.
        shape: of the run.
        seen: whether transfers can be seen; if not, only what attention reads tells.
    """

    rule: str
    cls: type[AscendConnector]
    kind: str
    actions: tuple[Action, ...]
    shape: Shape = field(default_factory=Shape)
    side: Side | None = None
    seen: bool = True

    def __str__(self) -> str:
        return f"{self.rule}-{self.cls.__name__}"


FINISHED = "request_finished" + ("_all_groups" if hasattr(base, "SupportsHMA") else "")
"""The hook that vLLM calls when a request of a connector that knows groups has ended."""

RESULTS = "get_transfer_results" if hasattr(KVConnectorBase_V1, "get_transfer_results") else (
    "get_finished"
)  # fmt: skip
"""The hook in which workers tell what was transferred."""

P = Prompt(0, 40)
FULL = Shape(num_blocks=8)
ASYNC = Shape(async_scheduling=True)
APART = Shape(topology="pd", engines=2)
TIGHT = Shape(topology="pd", engines=2, num_blocks=8)
WINDOW = Shape(window=24)
HISTORIES = (
    History("KVC-010", hooks.CancelsOnTheWorker, f"AssertionError in {FINISHED}",
            (a(1), Abort()), side="scheduler half"),
    History("KVC-010", hooks.RaisesOnFailure, f"RuntimeError in {RESULTS}",
            (*saved(50), Fail(), a(50), Step()), side="worker half"),
    History("KVC-011", hooks.NoErrorsIsNone, "wrong answer", (a(1),), side="worker half"),
    History("KVC-011", hooks.AnswersBool, "wrong answer", (a(1),), side="scheduler half"),
    History("KVC-101", lookup.NegativePromise, "negative", (a(16), a(17))),
    History("KVC-102", lookup.WholePrompt, "whole prompt, synchronous", (a(16), Step(2), a(16))),
    History("KVC-102", lookup.CountsTheTail, "more than the prompt", (*saved(50), a(50))),
    History("KVC-103", lookup.NothingInBackground, "zero and asynchronous", (a(2),)),
    History("KVC-104", lookup.NumpyPromise, "wrong types", (*saved(17), a(17))),
    History("KVC-105", lookup.ConsumesInLookup, "less than before",
            (*saved(33), Arrive(Prompt(1, 100), 8), Step(2), a(33), Step(3)), FULL),
    History("KVC-106", lookup.PendingForEver, "deferred for ever", (Busy(), a(2), Step())),
    History("KVC-201", metadata.UnpicklableMetadata, "unpicklable", (*saved(17), a(17))),
    History("KVC-201", metadata.SendsNothing, "none", (a(1),)),
    History("KVC-202", metadata.LiveMetadata, "aliased", (a(16, 4),), Shape(async_scheduling=True)),
    History("KVC-203", metadata.ChangesOutput, "modified", (a(16),)),
    History("KVC-204", metadata.OffersASet, "params", (a(16),), APART),
    History("KVC-304", WRONG["KVC-304"], "never completed",
            (*saved(50), a(50, 20), Step(3), Reset(running=True), Hold("load"), Step(2), Abort())),
    History("KVC-301", completion.ReportsCleanUp, "forgotten, recving",
            (a(1), Abort(mid_step=True))),
    History("KVC-301", completion.ReportsJobs, "never existed", (a(16),)),
    History("KVC-302", completion.ReportsSynchronousLoads, "neither waiting nor finished",
            (*saved(17), a(17))),
    History("KVC-302", completion.Swaps, "finished, but not while loading", (a(16),)),
    History("KVC-303", WRONG["KVC-303"], "twice, sending", (a(16), a(1, 4))),
    History("KVC-303", WRONG["KVC-303"], "twice, recving",
            (a(32), Step(), a(32, engine=1)), Shape(engines=2)),
    History("KVC-304", WRONG["KVC-304"], "never completed",
            (*saved(33), Hold("load"), a(33), Step(), Abort())),
    History("KVC-304", completion.InventsSends, "completed twice, recving",
            (*saved(33), Hold("load"), a(33), Step(), Abort(), a(1, 9), Step(2), Release())),
    History("KVC-206", completion.SavesWithoutDelay, "save begins too late", (a(16),)),
    History("KVC-305", completion.SavesWithoutDelay, "not delayed", (a(16),), seen=False),
    History("KVC-305", completion.ReportsBothWays, "not finished", (*saved(33), a(33))),
    History("KVC-306", memory.SentTooSoon, "save still open",
            (Hold("save"), a(60), Step(3), Arrive(Prompt(1, 100)), Step(2)), FULL),
    History("KVC-306", memory.AbandonsTheDead, "load still open",
            (*saved(50), Hold("load"), a(50), Step(), Abort(), Step(2), Arrive(Prompt(1, 100)),
             Step(2)), FULL),
    History("KVC-402", completion.AlwaysDelays, "send never completed", (a(1),)),
    # What is owed to nobody else is not excused because another engine cannot be reached.
    History("KVC-402", completion.AlwaysDelays, "send never completed",
            (a(1), Step(3), Step(4, 1), Cut()), APART),
    History("KVC-402", completion.FirstRankOnly, "send never completed", (a(16),), Shape(tp=2)),
    History("KVC-402", completion.SurplusReport, "surplus report", (a(1),), Shape(tp=2)),
    History("KVC-401", memory.SentWhenOffered, "offered blocks changed hands",
            (Hold("load"), a(50), Step(2), Step(1, 1), Arrive(Prompt(1, 100)), Step(2)), TIGHT),
    History("KVC-403", memory.TellsNobody, "not told",
            (a(33), Step(2), Step(6, 1), a(33)), APART),
    History("KVC-403", memory.ForgetsTheQueue, "not told",
            (a(33), Step(), Abort(), Step(2, 1)), APART),
    History("KVC-404", memory.LoadsFromTheStart, "outside the promise",
            (*saved(32), a(16), a(33)), side="scheduler half"),
    History("KVC-404", memory.OverwritesLocalHit, "outside the promise",
            (*saved(32), a(16), a(33)), side="scheduler half"),
    History("KVC-404", memory.OverwritesLocalHit, "overwritten",
            (a(17, engine=1), a(50), Step(4, 1), Step(4), a(50, engine=1), Step(1, 1)),
            Shape(engines=2), seen=False),
    History("KVC-501", WRONG["KVC-501"], "other-tokens", (*saved(32), a(16), a(33)),
            side="scheduler half"),
    History("KVC-501", content.DoesNotWait, "never-loaded",
            (*saved(17), Hold("load"), a(17), Step())),
    History("KVC-502", WRONG["KVC-502"], "torn",
            (Fail(1, "torn", direction="save"), a(33), Step(4), Reset(), a(33), Step(3))),
    History("KVC-503", WRONG["KVC-503"], "not computed", (a(16),)),
    History("KVC-503", content.SavesTheLastToken, "not computed", (a(15), Step(3)),
            side="scheduler half"),
    # Where transfers cannot be seen it shows in what is announced.
    History("KVC-905", content.SavesTheLastToken, "not computed",
            (a(15), Step(3), a(15, 20), Step(3), Reset(running=True), Step(3)),
            side="scheduler half", seen=False),
    History("KVC-503", books.CountsOn, "not computed",
            (a(17), Step(4), Reset(), Fail(), a(70, 4), Step(8)),
            Shape(max_num_batched_tokens=24), side="scheduler half"),
    History("KVC-504", content.KeysOfTokens, "other-tenant", (a(16), Step(2), a(17, salt="b"))),
    History("KVC-501", groups.OneKeyForAllGroups, "other-layer", (*saved(32), a(33)), WINDOW),
    History("KVC-503", groups.ExportsTheUntrimmedTail, "not computed", (*saved(33), a(40)), WINDOW,
            side="scheduler half"),
    History("KVC-504", identity.ForgetsAdapters, "other-tenant",
            (a(16), Step(2), Arrive(Prompt(0, 17), adapter="x"))),
    History("KVC-506", WRONG["KVC-506"], "other-media",
            (Arrive(P, media="cat"), Step(3), Arrive(P, media="dog"), Step(2))),
    History("KVC-506", WRONG["KVC-506"], "other-media",
            (Arrive(P, media="cat", media_at=20), Step(3), Reset(),
             Arrive(P, media="dog", media_at=20), Step(2))),
    History("KVC-507", WRONG["KVC-507"], "other-embeds",
            (Arrive(P, embeds="m"), Step(3), Arrive(P, embeds="n"), Step(2))),
    History("KVC-507", WRONG["KVC-507"], "other-embeds",  # vLLM has zeros for any
            (Arrive(P, embeds="m"), Step(3), Arrive(Prompt(1, 40), embeds="m"), Step(2))),
    History("KVC-508", WRONG["KVC-508"], "other-model",
            (a(33), Step(3), Redeploy("b"), a(33), Step(2))),
    History("KVC-509", WRONG["KVC-509"], "not found",
            (a(33, salt="a"), Step(4), Reset(), a(33, salt="a"), Step())),
    History("KVC-605", WRONG["KVC-605"], "rotten", (*saved(33), Corrupt(), a(33), Step(3))),
    History("KVC-808", WRONG["KVC-808"], "RuntimeError", (a(16), Step(), Restart())),
    History("KVC-808", restart.KeepsAJournal, "of a former life, sending",
            (Hold("save"), a(16), Step(3), Restart(), a(1), Step()), side="worker half"),
    History("KVC-601", WRONG["KVC-601"], "reported as loaded",
            (*saved(32), Fail(), a(32), Step())),
    History("KVC-601", failure.SwallowsFailures, "reported as loaded",
            (*saved(32), Fail(), a(32), Step())),
    History("KVC-601", failure.SwallowsFailures, "never reported",
            (*saved(17), Fail(), a(17), Step())),
    History("KVC-602", failure.RepeatsFailures, "not a load's block",
            (*saved(17), Fail(), a(17), Step())),
    History("KVC-601", groups.SaysNothingOfGroups, "reported as loaded",
            (*saved(32), Fail(), a(33), Step()), WINDOW),
    History("KVC-604", WRONG["KVC-604"], "blocks named",
            (*saved(32), Fail(), a(33), Step()), WINDOW),
    History("KVC-603", WRONG["KVC-603"], "kept for ever",
            (Hold("route"), a(16), Step(), Lose()), APART),
    History("KVC-801", content.ResetInNameOnly, "found again",
            (a(33), Step(4), Reset(connector=True), a(33), Step())),
    History("KVC-401", memory.SavesAtOnce, "save after hand-over",
            (Hold("save"), a(96), Step(2), Arrive(Prompt(1, 96)), Step(2), Release()), FULL,
            side="scheduler half"),
    History("KVC-107", lookup.CountsAhead, "request", (*saved(33), a(33))),
    # Two loads pin the same blocks; when one has ended, the store needs room.
    History("KVC-108", WRONG["KVC-108"], "load of what is not there",
            (*saved(33), Hold("load"), a(33), a(33), Step(), Release(1), Step(),
             Arrive(Prompt(1, 60)), Step(4), Release()), Shape(store_blocks=4)),
    History("KVC-205", metadata.PlansAgain, "started twice", (*saved(33), a(33))),
    History("KVC-405", memory.KeepsPins, "still held", (*saved(33), Fail(), a(33), Step())),
    History("KVC-205", lookup.ReloadsWhatFailed, "started without a promise",
            (*saved(33), Fail(), a(33), Step(6))),
    History("KVC-307", WRONG["KVC-307"], "FINISHED_STOPPED",
            (a(16), Step(2), Arrive(Prompt(1, 16), 2, stop=1), Step(2)), APART),
    History("KVC-505", WRONG["KVC-505"], "not found", (*saved(33), a(33), Step())),
    History("KVC-702", WRONG["KVC-702"], "pending for ever", (a(16),)),
    History("KVC-108", groups.LooksUpLessThanItLoads, "load of what is not there",
            (*saved(45), a(45)), WINDOW),
    History("KVC-505", groups.NeverSavesTheLast, "not found", (*saved(33), a(33), Step()), WINDOW),
    History("KVC-505", groups.DropsABlockPerGroup, "not found", (*saved(33), a(33), Step()),
            WINDOW),
    History("KVC-803", WRONG["KVC-803"], "save of the null block", (a(60),), WINDOW),
    History("KVC-804", WRONG["KVC-804"], "a block was left out", (*saved(33), a(33)), WINDOW,
            side="scheduler half"),
    History("KVC-804", groups.RoundsTheWindow, "a block was left out", (*saved(33), a(33)), WINDOW,
            side="scheduler half"),
    History("KVC-804", groups.OneTableForAll, "a block was left out", (*saved(33), a(33)), WINDOW,
            side="scheduler half"),
    History("KVC-804", groups.CountsNominalBlocks, "a block was left out", (*saved(48), a(49)),
            WINDOW, side="scheduler half"),
    History("KVC-802", WRONG["KVC-802"], "AssertionError in shutdown",
            (Hold("save"), a(16), Step(2), Stop()), side="scheduler half"),
    History("KVC-406", memory.RemembersTheDead, "still remembered",
            (Arrive(Prompt(1, 90), 9), Step(2), a(50), Step(2), Abort()), FULL),
    History("KVC-407", memory.SavesTheFirstTable, "not its blocks",
            (a(33, 4), Step(2), Arrive(Prompt(1, 20), 9), Step(), Reset(running=True), Step(5))),
    History("KVC-701", failure.PollsOnlyWhenBusy, "load never completed",
            (*saved(32), Hold("load"), a(32), Step())),
    History("KVC-901", WRONG["KVC-901"], "of several types", (*saved(17), a(17))),
    History("KVC-901", observation.RebuiltAsBase, "NotImplementedError in is_empty", (a(16),)),
    History("KVC-901", observation.KeysAreThere, "KeyError in aggregate", (*saved(17), a(17))),
    History("KVC-901", observation.ReducedToText, "not a number", (a(16),)),
    # Found here at the first lookup, and from outside by the time that there is room.
    History("KVC-901", observation.SubtractsSnapshot, "not a number of things",
            (a(50), Step(4), Arrive(Prompt(1, 60), 9), Step(2), a(50), Step(12)), FULL,
            side="scheduler half"),
    History("KVC-902", WRONG["KVC-902"], "told again",
            (*saved(33), Hold("load"), a(33), Step(5))),
    History("KVC-903", WRONG["KVC-903"], "wrong parent",
            (a(32), Step(3), Arrive(Prompt(1, 16)))),
    History("KVC-903", observation.NamesAreText, "not received", (a(16),)),
    History("KVC-904", WRONG["KVC-904"], "handed out again", (a(16), Step(3), a(1, 4))),
    History("KVC-905", WRONG["KVC-905"], "not saved",
            (a(16), Step(3), Hold("save"), Arrive(Prompt(1, 16)), Step())),
    History("KVC-905", observation.EvictsInSilence, "announced, and not found",
            (*saved(33), a(33), Step(4), Reset(connector=True), a(49), Step(3))),
    History("KVC-905", observation.FirstOfMany, "removed, and never stored",
            (a(33), Step(4), Reset(connector=True), a(1))),
    History("KVC-906", WRONG["KVC-906"], "told again",
            (*saved(33), Hold("load"), a(33), Step(5))),
    History("KVC-906", observation.AddsInPlace, "aggregate gives nothing", (a(16),)),
    History("KVC-907", observation.OneObject, "changed",
            (a(50), Step(6), Reset(), a(50, 4), Step(6)), ASYNC),
    History("KVC-907", observation.OwnErrors, "changed",
            (a(50), Step(6), Reset(), Fail(), a(50), Step(4)), ASYNC),
    History("KVC-907", WRONG["KVC-907"], "changed", (a(16), a(1, 9)), ASYNC),
    History("KVC-701", failure.DropsFailures, "load never completed",
            (*saved(50), Fail(1, "last"), a(50), Step())),
)  # fmt: skip


def played(history: History, target: Target) -> Outcome:
    if not history.seen:
        target = dataclasses.replace(target, extra={"store": "{run}"}, world="plain")
    return play(target, Scenario(history.shape, history.actions))


def test_there_is_a_history_for_each_wrong_connector() -> None:
    assert {(h.rule, h.cls) for h in HISTORIES} >= set(WRONG.items())


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_fires(history: History) -> None:
    violation = played(history, wrong_target(history.cls)).violation
    assert violation is not None
    found = violation.fingerprint
    assert (found.rule, found.kind) == (history.rule, history.kind)
    assert found.side == (history.side or BY_ID[history.rule].side)


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_the_reference_connector_survives(history: History) -> None:
    assert played(history, ASCEND).violation is None
