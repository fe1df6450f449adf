"""What a connector and vLLM owe each other, statement by statement: a fixed table.

Rules are what is judged; statements are what was agreed. Each names the rules that judge it, or
says why none does. Comments elsewhere cite statements by their ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from kvconform.scenario.errors import UsageError

Owner = Literal["connector", "vLLM", "both"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of the contract.

    Attributes:
        id: ``SCH-04``; the letters say where it applies: scheduler half, worker half, data, or
            liveness.
        text: what has to hold.
        owed_by: whose duty it is.
        rules: who judges it, be it in part.
        why_not: why no rule judges it, or what its rules leave out.
    """

    id: str
    text: str
    owed_by: Owner
    rules: tuple[str, ...] = ()
    why_not: str = ""


_C: Owner = "connector"
_V: Owner = "vLLM"
_B: Owner = "both"

STATEMENTS: tuple[Statement, ...] = (
    # -- the scheduler half -----------------------------------------------------------------------
    Statement(
        "SCH-01",
        "A lookup promises at least 0 tokens and, with the local ones, at most all of the "
        "request's; a synchronous promise leaves one to compute.",
        _C, ("KVC-101", "KVC-102"),
    ),
    Statement(
        "SCH-02",
        "A promise of nothing is not asynchronous.",
        _C, ("KVC-103",),
    ),
    Statement(
        "SCH-03",
        "A lookup answers a pair: a plain int, or None for 'ask me later', and a plain bool.",
        _C, ("KVC-104",),
    ),
    Statement(
        "SCH-04",
        "A lookup has no effects: it may come again, with another local count, or never be "
        "followed by an allocation.",
        _C, ("KVC-105", "KVC-405"),
        "A target whose store cannot be seen may reserve there unnoticed.",
    ),
    Statement(
        "SCH-05",
        "What is promised can be loaded now.",
        _C, ("KVC-501", "KVC-601", "KVC-108"),
    ),
    Statement(
        "SCH-06",
        "Local and promised tokens end at a block's edge, or where the prompt does.",
        _C, ("VLL-203",),
        "Releases differ: from 0.18 on any count is served, so a rule for connectors would be a "
        "false alarm; that older ones count up to the edge is vLLM's.",
    ),
    Statement(
        "SCH-07",
        "What is loaded follows from the external tokens of update_state_after_alloc: not from the "
        "promise, which may have been more, nor from the blocks.",
        _C, ("KVC-205", "KVC-404", "KVC-805"),
        "A count between 0 and the promise is not judged yet: no request that is drawn makes vLLM "
        "lower it.",
    ),
    Statement(
        "SCH-08",
        "Every admission is one update_state_after_alloc; an asynchronous load brings a second one "
        "with 0 tokens when it has ended. A request may be admitted any number of times.",
        _B, ("KVC-205", "KVC-701"),
        "That vLLM calls it so is how the harness knows of admissions, and is not judged.",
    ),
    Statement(
        "SCH-09",
        "With 0 external tokens nothing is loaded, whatever blocks are given.",
        _C, ("KVC-205", "KVC-404", "KVC-805"),
    ),
    Statement(
        "SCH-10",
        "The blocks given are the request's own; those that were found locally may be shared, and "
        "are only read.",
        _B, ("KVC-404",),
        "Whose the blocks are is taken from vLLM's KV manager, and not judged.",
    ),
    Statement(
        "SCH-11",
        "Metadata is asked for in every step, also in one that schedules nothing, and is never "
        "None.",
        _B, ("KVC-201",),
        "That vLLM asks in every step is not judged: it is the installed scheduler that does.",
    ),
    Statement(
        "SCH-12",
        "Building metadata uses up what was planned: each load and save is handed out once.",
        _C, ("KVC-205", "KVC-303"),
        "Of saves only the second report is judged: blocks that were filled further may be saved "
        "again, and which positions a save is for cannot be seen.",
    ),
    Statement(
        "SCH-13",
        "The scheduler's output is not changed; from 0.32 on, blocks may be taken from those that "
        "are to be zeroed.",
        _C, ("KVC-203",),
    ),
    Statement(
        "SCH-14",
        "Metadata pickles, and holds nothing that the scheduler or the connector changes later.",
        _C, ("KVC-201", "KVC-202"),
    ),
    Statement(
        "SCH-15",
        "request_finished comes once for each request.",
        _V, ("VLL-102",),
    ),
    Statement(
        "SCH-16",
        "request_finished may come in any state: never looked up, never admitted, while loading, "
        "after an error, without blocks.",
        _C, ("KVC-010",),
    ),
    Statement(
        "SCH-17",
        "True from request_finished is followed by one finished_sending, of all ranks.",
        _C, ("KVC-402", "KVC-603", "KVC-303"),
    ),
    Statement(
        "SCH-18",
        "After False from request_finished no finished_sending comes.",
        _C, ("KVC-305",),
    ),
    Statement(
        "SCH-19",
        "A request that ends while it is loading is completed once in all: received, or sent if "
        "request_finished answered True, never both.",
        _C, ("KVC-304",),
    ),
    Statement(
        "SCH-20",
        "The kv_transfer_params of request_finished are None, or a dict that can be sent to other "
        "processes.",
        _C, ("KVC-011", "KVC-204"),
        "What is in the dict is judged only where requests go on to an engine that decodes.",
    ),
    Statement(
        "SCH-21",
        "update_connector_output may name requests that have ended. It comes after their "
        "request_finished and before their blocks are freed, and may be left out when there is "
        "nothing to tell.",
        _B, ("KVC-010",),
        "The order is that of the installed scheduler, and is not judged.",
    ),
    Statement(
        "SCH-22",
        "reset_cache may come while transfers are open; False says that it failed. After a reset "
        "nothing older is promised.",
        _C, ("KVC-801", "KVC-010"),
    ),
    Statement(
        "SCH-23",
        "Statistics of all ranks and of both halves are of one type, add up, and start anew when "
        "they are read.",
        _C, ("KVC-901", "KVC-902"),
        "What starts anew is judged of counters, where transfers can be seen. Whether a counter "
        "counts what its name says is the connector's own business.",
    ),
    Statement(
        "SCH-24",
        "take_events hands out each event once, and nothing when there are none.",
        _C, ("KVC-903", "KVC-904", "KVC-905"),
    ),
    Statement(
        "SCH-25",
        "has_pending_block_frees and has_pending_push_work become False in the end: while the one "
        "is True vLLM preempts nobody, while the other is it does not rest.",
        _C, ("KVC-702",),
    ),
    Statement(
        "SCH-26",
        "The constructor hands its arguments on to the base class; a class that knows one KV group "
        "only is not used with several.",
        _C, ("KVC-001",),
        "Judged by what it takes; one that raises ends the check before anything runs, and says "
        "so.",
    ),
    Statement(
        "SCH-27",
        "An id belongs to one request among those that are alive or still being sent, and may come "
        "again afterwards.",
        _V, ("VLL-103",),
    ),
    Statement(
        "SCH-28",
        "What was planned for a request that has ended or was preempted is dropped; what was "
        "handed out before is carried out, and completed as ever.",
        _C, ("KVC-206", "KVC-401", "KVC-304"),
    ),
    Statement(
        "SCH-29",
        "A connector's own block tables follow the scheduler's output: new blocks are appended, "
        "and replace the old ones when a request is resumed; after a failed load fewer tokens are "
        "computed than before.",
        _C, ("KVC-407", "KVC-404", "KVC-501"),
    ),
    # -- the worker half --------------------------------------------------------------------------
    Statement(
        "WRK-01",
        "Only requests that wait for remote KV, or ended while they did, are received; a "
        "synchronous load is not reported.",
        _C, ("KVC-302", "KVC-301"),
    ),
    Statement(
        "WRK-02",
        "Each asynchronous admission is received once.",
        _C, ("KVC-303", "KVC-701", "KVC-304"),
    ),
    Statement(
        "WRK-03",
        "Only requests whose request_finished answered True are sent, once, and not before the "
        "worker half was told of their end.",
        _C, ("KVC-305", "KVC-303"),
        "That it ended first is judged. That the worker half was told follows from it and VLL-105 "
        "here: a step is executed as soon as it is scheduled.",
    ),
    Statement(
        "WRK-04",
        "Every rank is told of each ended request once, in the step after its end. This says "
        "nothing about transfers: an aborted load may still be under way, and nothing need be "
        "sent.",
        _B, ("VLL-105", "KVC-305", "KVC-306"),
    ),
    Statement(
        "WRK-05",
        "Each rank reports each transfer once, in whichever step: reports are counted, not ranks, "
        "and the expected count is that of the ranks that report.",
        _C, ("KVC-303", "KVC-402", "KVC-701"),
    ),
    Statement(
        "WRK-06",
        "Failed blocks reach the scheduler in the step in which a rank reports them, failed "
        "requests with their completion.",
        _V, (),
        "It is what the installed aggregator does, which every run with several ranks goes "
        "through; what follows from it is judged on both sides of it.",
    ),
    Statement(
        "WRK-07",
        "Failed blocks are reported no later than the load's completion by that rank; those of a "
        "synchronous load in the step that waited for it.",
        _C, ("KVC-601",),
    ),
    Statement(
        "WRK-08",
        "A load that failed is received all the same.",
        _C, ("KVC-701", "KVC-304"),
    ),
    Statement(
        "WRK-09",
        "Blocks reported as failed are of the admission's own external ones.",
        _C, ("KVC-602",),
    ),
    Statement(
        "WRK-10",
        "Failed blocks, statistics, events and the workers' metadata are gone once they were read.",
        _C, ("KVC-602", "KVC-902", "KVC-904", "KVC-906"),
        "Of the events that workers gather (get_kv_connector_kv_cache_events) only what becomes of "
        "them is judged: what the scheduler half hands out.",
    ),
    Statement(
        "WRK-11",
        "With several KV groups failed loads are named as requests, which are also received.",
        _C, ("KVC-604",),
    ),
    Statement(
        "WRK-12",
        "Hooks come in the runner's order; metadata is bound from start_load_kv until it is "
        "cleared, and layers are not visited in a step without a forward.",
        _B, ("KVC-010",),
        "The order is that of the installed runner's own code, and is not judged; a hook that asks "
        "for metadata at another time raises.",
    ),
    Statement(
        "WRK-13",
        "A synchronous load is there before its layer is read.",
        _C, ("KVC-501",),
    ),
    Statement(
        "WRK-14",
        "When wait_for_save returns, saved blocks may be overwritten, unless the connector has "
        "them kept.",
        _C, ("KVC-401",),
    ),
    Statement(
        "WRK-15",
        "After handle_preemptions no transfer touches blocks of preempted requests. Until 0.13 "
        "there is no such hook.",
        _C, ("KVC-401", "KVC-206"),
    ),
    Statement(
        "WRK-16",
        "Transfers get on in steps that compute nothing.",
        _C, ("KVC-701", "KVC-402"),
    ),
    Statement(
        "WRK-17",
        "Hooks of the worker half answer what vLLM takes apart, and not the very sets that they go "
        "on using.",
        _C, ("KVC-011", "KVC-907"),
        "From 0.32 on vLLM itself copies the sets of get_finished.",
    ),
    # -- the data ---------------------------------------------------------------------------------
    Statement(
        "DAT-01",
        "After its completion a load has filled each promised position, in every layer and on "
        "every rank, with the KV of the request's tokens.",
        _C, ("KVC-501",),
    ),
    Statement(
        "DAT-02",
        "A load writes only the blocks of its promise: none that were found locally, are shared, "
        "or are another's.",
        _C, ("KVC-404",),
    ),
    Statement(
        "DAT-03",
        "A save reads only positions that are computed for good.",
        _C, ("KVC-503", "KVC-501", "KVC-407"),
        "Where transfers cannot be seen it shows when what was saved is read again.",
    ),
    Statement(
        "DAT-04",
        "No token counts as computed that an asynchronous load did not promise.",
        _V, ("VLL-203",),
    ),
    Statement(
        "DAT-05",
        "Blocks are nobody else's while a transfer of them is open. vLLM sees to it until a load "
        "is received, or a request is sent whose request_finished answered True; the connector in "
        "all other cases.",
        _B, ("KVC-401", "KVC-306", "VLL-401"),
    ),
    Statement(
        "DAT-06",
        "vLLM publishes blocks of a synchronous load when it admits the request: they are there, "
        "or reported as failed, in that very step.",
        _B, ("KVC-501", "KVC-601", "VLL-201"),
        "When vLLM publishes is not judged.",
    ),
    Statement(
        "DAT-07",
        "Blocks of an asynchronous load are published when it was received, up to the first that "
        "failed.",
        _V, ("VLL-201", "VLL-204"),
    ),
    Statement(
        "DAT-08",
        "Blocks that count as common to a batch are the same in each of its requests.",
        _V, ("VLL-101",),
    ),
    Statement(
        "DAT-09",
        "Blocks of an asynchronous load are not zeroed while it writes.",
        _V, (),
        "It needs a model whose blocks vLLM zeroes (state-space layers, mixed precision), which "
        "the simulated one is not.",
    ),
    Statement(
        "DAT-10",
        "After a failed load the request may be loaded again, elsewhere; nothing of the first "
        "attempt is written any more.",
        _C, ("KVC-401",),
    ),
    Statement(
        "DAT-11",
        "Keys cover all that KV depends on: tokens, salt, adapter, media, embeddings, model.",
        _C, ("KVC-501", "KVC-504", "KVC-506", "KVC-507", "KVC-508"),
    ),
    # -- liveness: after every drain --------------------------------------------------------------
    Statement(
        "LIV-01",
        "When nothing is left to do, vLLM knows no request, its queues are empty, and every block "
        "is free.",
        _B, ("KVC-402", "KVC-304", "KVC-603", "KVC-701", "VLL-701"),
    ),
    Statement(
        "LIV-02",
        "The aggregator waits for no more reports then.",
        _C, ("KVC-402",),
    ),
    Statement(
        "LIV-03",
        "The connector holds nothing of any request then, neither in its tables nor in the store.",
        _C, ("KVC-405", "KVC-406"),
    ),
    Statement(
        "LIV-04",
        "The prefix cache can be reset then.",
        _V, ("VLL-402",),
    ),
    Statement(
        "LIV-05",
        "The engine's loop does not rest before.",
        _V, ("VLL-702",),
    ),
    Statement(
        "LIV-06",
        "With the policy recompute, what failed to be loaded is computed, whatever the connector "
        "promises then.",
        _V, ("VLL-703",),
        "A connector does well to remember what failed: vLLM up to 0.33 asks it again at once, "
        "without a limit.",
    ),
)  # fmt: skip

BY_ID = {statement.id: statement for statement in STATEMENTS}

_ID = re.compile(r"(SCH|WRK|DAT|LIV)-\d+")


def is_statement_id(text: str) -> bool:
    """Whether ``text`` has the form of a statement's id (``SCH-04``)."""
    return _ID.fullmatch(text) is not None


def find(statement_id: str) -> Statement:
    """The statement with this id.

    Raises:
        UsageError: there is none.
    """
    statement = BY_ID.get(statement_id.upper())
    if statement is None:
        raise UsageError(
            f"There is no statement {statement_id!r}: 'kvconform list rules --markdown' ends with "
            "them all."
        )
    return statement


def statement_data(statement: Statement) -> dict[str, Any]:
    """A statement as data."""
    return {
        "id": statement.id,
        "text": statement.text,
        "owed_by": statement.owed_by,
        "rules": list(statement.rules),
        "why_not": statement.why_not,
    }
