"""The catalogue of rules: one entry for each clause of the contract.

A rule passes only when it was *provoked*: ``provoked`` says what must have been reached, and
``packages`` which fault packages can reach it. ``source`` cites vLLM 0.32.0 (paths below the
package), ``incidents`` the public defects that the rule comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kvconform.scenario.errors import UsageError
from kvconform.scenario.releases import within
from kvconform.scenario.violation import Side, is_rule_id

APART = frozenset({"handover", "expire", "peer-gone"})
"""Packages that act where prefill and decode are apart."""

RETURN = frozenset({"full-hit", "tenants", "embeds", "redeploy", "reset", "handover"})
"""Packages in which a prompt comes that another request had."""

LATE = frozenset({"delay", "lost", "expire", "peer-gone"})
"""Packages that keep transfers open."""

FAILING = frozenset(
    {"fail-load", "lost", "forget", "repeat", "expire", "peer-gone", "corrupt", "restart",
     "redeploy", "fail-copy"}
)  # fmt: skip
"""Packages in which loads fail."""

DEVICE = frozenset({"slow-device"})
"""Packages in which copies of a device run late."""

HITS = frozenset(
    {"full-hit", "tenants", "embeds", "redeploy", "preempt", "tight-pool", "reset", *APART}
)
"""Packages after which something may be found outside: prompts return, or preempted requests do, or
another engine has prefilled them."""

Level = Literal["must", "should"]


@dataclass(frozen=True, slots=True)
class Tolerant:
    """Another reading of a rule, where upstream has not settled it; it has to be asked for.

    Attributes:
        text: what it lets pass, and whose fault the rest is then.
        kinds: the ways to break the rule that it lets pass.
        source: where upstream is of two minds.
    """

    text: str
    kinds: frozenset[str]
    source: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One clause of the contract.

    Attributes:
        id: ``KVC-302``; stable for ever.
        title: a line.
        text: the clause.
        side: who owes it, as a rule.
        provoked: what must have been reached for a pass to mean something.
        packages: fault packages that reach it; empty for static rules.
        features: what the target must have (``async``, ``load-failure``) and its world must obey
            (``orders``) for the rule to apply.
        source: where vLLM relies on it.
        incidents: public defects that broke it.
        help: what to look at first.
        level: ``must``, or ``should`` (fails only under ``--strict``).
        since: first vLLM release for which it holds.
        until: last one; empty: it still does.
        tolerant: another reading, for targets that ask for it; None: there is one only.
    """

    id: str
    title: str
    text: str
    side: Side
    provoked: str
    packages: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    source: str = ""
    incidents: tuple[str, ...] = ()
    help: str = ""
    level: Level = "must"
    since: str = "0.11.0"
    until: str = ""
    tolerant: Tolerant | None = None

    @property
    def family(self) -> str:
        """``KVC-3xx``."""
        return self.id[:5] + "xx"

    def holds_for(self, vllm: str) -> bool:
        """Whether it is a rule of this vLLM; of one whose version says nothing, yes."""
        return within(vllm, self.since, self.until)

    @property
    def is_static(self) -> bool:
        """Whether it is judged without a run."""
        return self.id.startswith("KVC-0") and not self.packages


_S: Side = "scheduler half"
_W: Side = "worker half"
_V: Side = "vLLM"
_ALL = frozenset(
    {
        "full-hit",
        "tenants",
        "delay",
        "abort",
        "preempt",
        "defer",
        "reset",
        "tight-pool",
        "fail-load",
        "same-id",
        "full",
        "fail-save",
        "lost",
        "forget",
        "repeat",
        "shutdown",
        "embeds",
        "corrupt",
        "restart",
        "redeploy",
        "slow-device",
        "fail-copy",
        *APART,
    }
)
_ASYNC = frozenset({"async"})
_ORDERS = frozenset({"orders"})
_DEVICE = frozenset({"device"})

RULES: tuple[Rule, ...] = (
    # -- 0xx shape --------------------------------------------------------------------------------
    Rule(
        "KVC-001", "the class is a V1 connector",
        "The class derives from KVConnectorBase_V1, implements its abstract hooks, and its "
        "constructor takes (vllm_config, role, kv_cache_config).",
        "composition", "always judged",
        source="distributed/kv_transfer/kv_connector/v1/base.py KVConnectorBase_V1, factory.py "
        "create_connector",
        incidents=("B-205",),
        help="Compare the class with the installed base class; vLLM calls the constructor with "
        "three positional arguments.",
    ),
    Rule(
        "KVC-002", "overrides take what vLLM passes",
        "Each overridden hook accepts the arguments of the installed base class' hook, by position "
        "and by name.",
        "composition", "always judged",
        source="v1/base.py", incidents=("B-205", "B-173"),
        help="Give the override the base class' parameters; add **kwargs where the base has it.",
    ),
    Rule(
        "KVC-003", "no hook is left over",
        "The class defines no hook that other releases of vLLM call and the installed one does "
        "not.",
        "composition", "always judged", level="should",
        source="v1/base.py of each release",
        incidents=("B-205",),
        help="What it did has moved elsewhere, or is not done any more: see 'kvconform doctor "
        "--since'.",
    ),
    Rule(
        "KVC-010", "no exception escapes a hook",
        "A hook never raises for a history that vLLM may produce: whatever it is given, the engine "
        "must live on.",
        "composition", "a fault acted while a request was alive",
        packages=_ALL,
        source="v1/core/sched/scheduler.py, v1/worker/kv_connector_model_runner_mixin.py: no hook "
        "is called in a try",
        incidents=("B-156", "B-166", "B-069"),
        help="The exception kills the engine core with every request on it. Report a failed load "
        "through get_block_ids_with_load_errors or get_transfer_results instead.",
    ),
    Rule(
        "KVC-011", "hooks answer what vLLM can work with",
        "request_finished answers a pair of bool and dict or None, get_finished a pair of sets of "
        "request ids or None, get_block_ids_with_load_errors a set of block ids.",
        "composition", "a fault acted while a request was alive",
        packages=_ALL,
        source="v1/core/sched/scheduler.py _connector_finished, "
        "distributed/kv_transfer/kv_connector/utils.py KVOutputAggregator",
        incidents=("B-173",),
        help="Answer an empty set, or (False, None), where there is nothing to say.",
    ),
    # -- 1xx lookup -------------------------------------------------------------------------------
    Rule(
        "KVC-101", "a lookup never promises less than nothing",
        "get_num_new_matched_tokens answers at least 0.",
        _S, "a lookup for a prompt that shares a block with an earlier one",
        packages=RETURN,
        source="v1/core/sched/scheduler.py schedule: num_external_computed_tokens is added to the "
        "local count without a check",
        incidents=("B-041",),
        help="The local count may be larger than what the connector found: answer max(0, …).",
    ),
    Rule(
        "KVC-102", "a lookup never promises more than there is",
        "Local plus promised tokens do not exceed the request's tokens; a synchronous load leaves "
        "at least one token to compute.",
        _S, "a lookup for a prompt that was seen whole before",
        packages=RETURN,
        source="v1/core/sched/scheduler.py schedule: assert num_computed_tokens <= "
        "request.num_tokens; assert num_new_tokens > 0",
        incidents=("B-042", "B-196", "B-186"),
        help="Cap at num_tokens for an asynchronous load, at num_tokens - 1 for a synchronous one.",
    ),
    Rule(
        "KVC-103", "nothing to load is never asynchronous",
        "When the promise is 0 the second element of the answer is False.",
        _S, "a lookup that answers 0 for a prompt that was seen before",
        packages=RETURN,
        source="v1/core/sched/scheduler.py schedule: assert num_external_computed_tokens > 0",
        incidents=("B-144",),
        help="Decide for asynchronous loading only after the number of tokens is known.",
    ),
    Rule(
        "KVC-104", "a lookup answers (int or None, bool)",
        "The answer is a pair of an int (not a bool, not a numpy scalar) or None, and a bool.",
        _S, "a lookup that promises tokens, or defers",
        packages=HITS | {"defer"},
        source="v1/base.py get_num_new_matched_tokens",
        incidents=("B-173",),
        help="Convert tensors and numpy scalars with int() and bool().",
    ),
    Rule(
        "KVC-105", "a lookup can be repeated",
        "Asked again while nothing has changed (allocation failed, or the answer was None), a "
        "lookup promises no less: it reserves and consumes nothing.",
        _S, "a second lookup of a request that was not admitted after the first, with the world "
        "unchanged, and a prompt that was seen before",
        packages=frozenset({"full-hit", "tenants", "embeds", "tight-pool", "defer", "delay"}),
        source="v1/core/sched/scheduler.py schedule: allocate_slots may fail after the lookup",
        incidents=("B-192", "B-197", "B-147", "B-204", "B-162"),
        help="Move reservations to update_state_after_alloc.",
    ),
    Rule(
        "KVC-106", "None resolves",
        "A lookup that answered None answers a number once the store does.",
        _S, "a lookup that answered None",
        packages=frozenset({"defer"}), features=_ORDERS,
        source="v1/core/sched/scheduler.py schedule: the request is skipped and asked again in "
        "every step, without a limit",
        incidents=("B-118",),
        help="Give the pending query a deadline.",
    ),
    Rule(
        "KVC-107", "hooks leave requests alone",
        "A hook of the scheduler half does not change its request, but for the "
        "kv_transfer_params: status, tokens, counts and hashes are the scheduler's.",
        _S, "a lookup for a prompt that was seen before",
        packages=RETURN,
        source="v1/base.py get_num_new_matched_tokens, update_state_after_alloc, request_finished",
        help="Keep what you need to remember in a table of your own, by request id.",
    ),
    Rule(
        "KVC-108", "what is promised can be loaded",
        "A load that was promised does not fail unless something outside has failed: what a lookup "
        "has found is still there when it is loaded, and nothing is asked for twice that can be "
        "had once.",
        _S, "a load of a request whose promise could have been broken meanwhile: it was held "
        "open, or an engine that prefilled offers it",
        packages=HITS | {"delay"}, features=_ORDERS, level="should",
        source="v1/base.py get_num_new_matched_tokens: tokens that can be loaded; a failure is "
        "recomputed, and the work was for nothing",
        incidents=("B-143", "B-146", "B-182", "B-200", "B-123"),
        help="Keep what was promised from the admission to the end of its load, once for each "
        "load; remember that a hand-over was taken.",
    ),
    # -- 2xx metadata -----------------------------------------------------------------------------
    Rule(
        "KVC-201", "metadata is built every step and pickles",
        "build_connector_meta returns an object in every step, and it survives pickling.",
        _S, "a step whose metadata describes a load",
        packages=HITS,
        source="v1/worker/kv_connector_model_runner_mixin.py: assert kv_connector_metadata is not "
        "None; executors pickle the scheduler's output",
        incidents=("B-035",),
        help="Put plain data into the metadata: ids, numbers, bytes.",
    ),
    Rule(
        "KVC-202", "metadata does not alias",
        "Metadata that was handed out does not change any more: it holds no live list, request or "
        "block of the scheduler or of the connector.",
        _S, "a step whose metadata describes a load was processed",
        packages=HITS,
        source="v1/executor/uniproc_executor.py hands over the object itself, others pickle it",
        incidents=("B-202", "B-035"),
        help="Copy lists when building metadata, and build a new object for each step.",
    ),
    Rule(
        "KVC-203", "the scheduler's output is left alone",
        "build_connector_meta does not change the scheduler's output.",
        _S, "a step whose metadata describes a load",
        packages=HITS,
        source="v1/base.py build_connector_meta; v1/core/sched/scheduler.py schedule",
        help="Copy what you want to change.",
    ),
    Rule(
        "KVC-204", "what is handed over is plain data",
        "The kv_transfer_params that request_finished answers are JSON: no sets, no bytes, no keys "
        "but strings.",
        _S, "a request was handed from the engine that prefilled to one that decodes",
        packages=frozenset({"handover"}), features=frozenset({"pd"}),
        source="v1/engine/__init__.py EngineCoreOutput.kv_transfer_params goes to the front end as "
        "msgpack, and from there to the router as JSON",
        help="Turn sets into lists and bytes into hex.",
    ),
    Rule(
        "KVC-205", "a load is started once",
        "Between two admissions of a request each of its blocks is loaded once, unless it failed.",
        _S, "a load began",
        packages=HITS, features=_ORDERS,
        source="v1/base.py build_connector_meta: 'reset the state of the connector'; "
        "v1/core/sched/scheduler.py schedule calls update_state_after_alloc again after the load",
        incidents=("B-149", "B-058", "B-143"),
        help="Empty the list of planned transfers when metadata is built; the second "
        "update_state_after_alloc, with 0 external tokens, plans nothing.",
    ),
    Rule(
        "KVC-206", "nothing begins for who has gone",
        "No transfer begins for a request that the scheduler has forgotten, or that was preempted.",
        _S, "a client aborted",
        packages=frozenset({"abort"}), features=_ORDERS,
        source="v1/core/sched/scheduler.py _free_request, _preempt_request: the blocks are free "
        "from then on",
        incidents=("B-189", "B-137", "B-001"),
        help="Drop what has been planned and not handed out in request_finished, or answer True.",
    ),
    # -- 3xx completion ---------------------------------------------------------------------------
    Rule(
        "KVC-301", "only known requests are reported",
        "finished_recving and finished_sending name only requests that the scheduler has not "
        "forgotten.",
        _W, "an abort of a request that was loading or sending, or had been loaded",
        packages=frozenset({"abort"}), features=_ASYNC,
        source="v1/core/sched/scheduler.py _update_from_kv_xfer_finished: assert req_id in "
        "self.requests",
        incidents=("B-001", "B-002"),
        help="Ask the request to be kept (return True from request_finished) for as long as you "
        "will report it.",
        since="0.17.0",  # before it forgets a request that is aborted while it is loading
        tolerant=Tolerant(
            "A completion of a request that the scheduler has forgotten is late news, which it has "
            "to drop: that its assert ends the engine is vLLM's fault (VLL-001). Ids that never "
            "were are wrong all the same.",
            frozenset({"forgotten, recving", "forgotten, sending"}),
            "the pull requests for vllm issue #43226 would drop it, PR #50565 keeps the assert, PR "
            "#56089 has the scheduler keep account of what is open",
        ),
    ),
    Rule(
        "KVC-302", "only finished or waiting requests are received",
        "finished_recving names only requests that wait for remote KV, or that finished while "
        "they did.",
        _W, "a full local hit, or a completed load",
        packages=HITS, features=_ASYNC,
        source="v1/core/sched/scheduler.py _update_from_kv_xfer_finished: assert "
        "RequestStatus.is_finished(req.status)",
        incidents=("B-164", "B-142", "B-129"),
        help="A request that needed nothing, or loaded synchronously, is not reported.",
    ),
    Rule(
        "KVC-303", "each rank reports a transfer once",
        "Per direction, every rank reports a request once for each load or send.",
        _W, "a completion after a transfer had been held open",
        packages=LATE, features=_ASYNC | _ORDERS,
        source="distributed/kv_transfer/kv_connector/utils.py KVOutputAggregator: reports are "
        "counted, not ranks",
        incidents=("B-058", "B-060", "B-172", "B-191"),
        help="Forget a transfer in the same call that reports it.",
    ),
    Rule(
        "KVC-304", "an abort while loading is completed once",
        "A request that ends while it waits for remote KV is completed exactly once in all: "
        "finished_recving, or finished_sending if request_finished answered True.",
        _W, "a request that ended while it was loading",
        packages=FAILING | {"abort"}, features=_ASYNC,
        source="v1/core/sched/scheduler.py finish_requests (delay_free_blocks), "
        "_update_from_kv_xfer_finished",
        incidents=("B-002", "B-154", "B-067"),
        help="Keep polling an aborted load; report it when the transport has let go of its blocks.",
        since="0.17.0",  # before it does not wait for the completion
    ),
    Rule(
        "KVC-305", "sends pair with request_finished",
        "finished_sending names exactly the requests whose request_finished answered True.",
        _W, "a request that ended after a transfer had been held, or a client had aborted",
        packages=LATE | {"abort"}, features=_ASYNC,
        source="v1/core/sched/scheduler.py _free_blocks: assert request.is_finished()",
        incidents=("B-001", "B-153", "B-183"),
        help="Report a send only for ids whose request_finished you answered with True.",
    ),
    Rule(
        "KVC-306", "what is reported has ended",
        "A rank reports a request when its transfers there have let go of their blocks: all of "
        "them, whatever became of the request.",
        _W, "a completion after a transfer had been held open",
        packages=LATE, features=_ASYNC | _ORDERS,
        source="v1/base.py get_finished; v1/core/sched/scheduler.py _update_from_kv_xfer_finished "
        "frees or promotes at once",
        incidents=("B-003", "B-062", "B-183"),
        help="Poll the transport; a request that was aborted is not a transfer that has ended.",
    ),
    Rule(
        "KVC-307", "what was prefilled is handed over",
        "A request that was sent to be prefilled, and ended by itself, by its limit or by a stop "
        "token, leaves its blocks to the engine that decodes: request_finished answers "
        "kv_transfer_params.",
        _S, "a request that was to be prefilled ended by itself; judged where another one, of no "
        "more blocks, was handed over",
        packages=frozenset({"handover"}), features=frozenset({"pd"}), level="should",
        source="distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py, push_scheduler.py "
        "request_finished: requests that were stopped are handed over like those at their limit",
        incidents=("B-085",),
        help="Offer for every status in which a request has ended by itself.",
    ),
    # -- 4xx memory -------------------------------------------------------------------------------
    Rule(
        "KVC-401", "no byte moves after the blocks changed hands",
        "A transfer reads and writes its blocks only while they belong to its request.",
        _W, "a transfer that moved after it had been held open",
        packages=LATE, features=_ORDERS,
        source="v1/core/sched/scheduler.py _free_request_blocks; v1/base.py request_finished",
        incidents=("B-003", "B-099", "B-137", "B-189"),
        help="Report completion only when the transport has let go of the blocks, and answer True "
        "to request_finished while a save is open.",
    ),
    Rule(
        "KVC-402", "blocks come back",
        "After everything has ended no request is kept and all blocks are free.",
        "composition", "a drain after an abort, a held transfer or a failed load",
        packages=LATE | {"abort", "fail-load", "fail-save"}, features=_ASYNC,
        source="v1/core/sched/scheduler.py has_finished_requests",
        incidents=("B-063", "B-067", "B-111", "B-112", "B-184"),
        help="Each True from request_finished needs its finished_sending, on every rank.",
    ),
    Rule(
        "KVC-403", "what is not needed is given back",
        "An engine that keeps blocks for another is told when they are not needed: found "
        "locally, or their request ended before it took them. It does not wait for its lease.",
        _S, "a request with an offer was admitted without a load, or ended before it was admitted",
        packages=frozenset({"handover"}), features=frozenset({"pd"}),
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py request_finished, "
        "pull_scheduler.py update_state_after_alloc: an empty list of blocks is sent so that the "
        "prefill engine does not strand them",
        incidents=("B-063", "B-082"),
        help="Send the release in update_state_after_alloc with 0 external tokens, and in "
        "request_finished of a request that was never admitted.",
    ),
    Rule(
        "KVC-404", "only promised blocks are written",
        "A load writes only the blocks that were allocated for it: never blocks hit locally, never "
        "someone else's.",
        _W, "a load beside a local hit",
        packages=HITS,
        source="v1/core/sched/scheduler.py schedule: update_state_after_alloc gets all blocks",
        incidents=("B-150", "B-098", "B-081"),
        help="Skip the first local // block_size blocks.",
    ),
    Rule(
        "KVC-405", "what is kept outside is let go",
        "When every request has gone nothing is pinned or reserved in the store any more.",
        _S, "a drain after an abort, a held transfer or a failed load",
        packages=LATE | {"abort", "fail-load", "fail-save"}, features=_ORDERS,
        source="v1/base.py update_connector_output, request_finished: where a connector hears that "
        "a transfer has ended",
        incidents=("B-146", "B-147", "B-148", "B-197", "B-135", "B-092"),
        help="Each pin needs its unpin on every way out: abort, failure, allocation that failed.",
    ),
    Rule(
        "KVC-406", "what is kept for a request goes with it",
        "When every request has gone the connector holds no request id any more.",
        "composition", "a drain after an abort",
        packages=frozenset({"abort"}), level="should",
        source="v1/base.py request_finished: the last word on a request",
        incidents=("B-067", "B-145", "B-191"),
        help="Drop the entry in request_finished, or when the last transfer of the request ends.",
    ),
    Rule(
        "KVC-407", "own blocks are saved",
        "A save reads only blocks of its request.",
        _S, "a save of a request whose prompt was seen before",
        packages=RETURN, features=_ORDERS,
        source="v1/core/sched/scheduler.py schedule, _preempt_request: block tables are replaced "
        "when a request is resumed",
        incidents=("B-034", "B-149", "B-198", "B-013"),
        help="Replace the table when a request is in resumed_req_ids; take the blocks that "
        "request_finished is given.",
    ),
    Rule(
        "KVC-408", "what a copy touches stays as it is",
        "Memory that a copy of the device reads or writes is there, all of it, until the copy has "
        "ended, and the host does not change meanwhile what is to be read.",
        _W, "a copy that was still to run after it had been asked for",
        packages=DEVICE, features=_DEVICE,
        source="v1/worker/kv_connector_model_runner_mixin.py _get_kv_connector_output: saves are "
        "started behind a forward that was launched, and may not have run; simple_kv_offload/"
        "copy_backend.py _copy_loop: an event is recorded behind each copy",
        incidents=("B-097",),
        help="Keep staging buffers until the event behind the copy is done; reuse and free them "
        "after that.",
    ),
    Rule(
        "KVC-409", "asynchronous copies have pinned memory",
        "The host's side of an asynchronous copy is pinned memory.",
        _W, "a copy that was still to run after it had been asked for",
        packages=DEVICE, features=_DEVICE, level="should",
        source="simple_kv_offload/cuda_mem_ops.py pin_tensor; torch_npu waits for the whole stream "
        "where memory is not pinned, and a runtime that does not must not be given such memory",
        help="Allocate staging buffers with pin_memory=True.",
    ),
    Rule(
        "KVC-410", "what a copy fills is read after it has ended",
        "Memory of the host that a copy of the device fills is read, saved or sent when the copy "
        "has ended, and not before.",
        _W, "a copy that was still to run after it had been asked for",
        packages=DEVICE, features=_DEVICE,
        source="v1/base.py wait_for_save, get_finished: what is reported as sent has been read; "
        "simple_kv_offload/copy_backend.py _copy_loop",
        help="Wait for the event behind the copy, on the host, before the buffer is read.",
    ),
    Rule(
        "KVC-411", "a thread sets its device",
        "A thread that uses a device has set the rank's: another's streams and events say nothing "
        "of its copies.",
        _W, "a copy that was still to run after it had been asked for",
        packages=DEVICE, features=_DEVICE,
        source="v1/worker/gpu_worker.py init_device: each worker's own thread sets its device; "
        "simple_kv_offload/copy_backend.py _copy_loop: set_device in the thread",
        help="Call torch.npu.set_device(index) first in every thread that copies.",
    ),
    # -- 5xx content ------------------------------------------------------------------------------
    Rule(
        "KVC-501", "what was promised is there",
        "When attention reads a position that the connector promised, it finds the KV of exactly "
        "this token prefix, on every rank and layer.",
        _W, "attention read tokens that a connector loaded",
        packages=HITS,
        source="v1/base.py get_num_new_matched_tokens, start_load_kv, wait_for_layer_load",
        incidents=("B-120", "B-094", "B-159", "B-163", "B-095", "B-103"),
        help="Save only computed tokens, under a key that names what was saved; load what was "
        "promised, before the layer is read.",
    ),
    Rule(
        "KVC-502", "what failed to be saved is not promised",
        "A save that has failed, in whole or in part, leaves nothing behind that a lookup finds: "
        "of a block that has arrived by half, nobody reads the other half.",
        "composition", "a lookup for a prompt whose save had failed",
        packages=frozenset({"fail-save", "lost"}), features=_ORDERS,
        source="v1/base.py get_num_new_matched_tokens: tokens that can be loaded; wait_for_save "
        "tells vLLM nothing of a failure",
        help="Let a block be found only when every rank has said that all of it was saved.",
    ),
    Rule(
        "KVC-503", "only what is computed is saved",
        "When the bytes of a save move, each slot of its blocks has been computed, or loaded, "
        "since the block was handed to its request.",
        _W, "a save of a request whose prompt was seen before",
        packages=RETURN, features=_ORDERS,
        source="v1/core/sched/scheduler.py schedule: num_computed_tokens runs ahead of what the "
        "workers have computed; the token sampled last has no KV yet",
        incidents=("B-163", "B-103", "B-100"),
        help="Save full blocks of tokens whose forward is over, in wait_for_save or later; the "
        "last token of a request has not been computed when it ends.",
    ),
    Rule(
        "KVC-504", "tenants never share KV",
        "KV saved under one cache salt, or with one adapter, is never served under another; nor "
        "with an adapter that has taken the place of one of the same name, where vLLM tells them "
        "apart.",
        "composition", "a lookup for a prompt that was seen only under other salts or adapters",
        packages=frozenset({"tenants"}),
        source="v1/core/kv_cache_utils.py generate_block_hash_extra_keys: block hashes hold the "
        "salt and the adapter's name",
        incidents=("B-096", "B-180"),
        help="Derive keys from request.block_hashes, not from prompt_token_ids.",
    ),
    Rule(
        "KVC-505", "what is kept is found again",
        "Every full block of a request that ended by itself is found by the next request that "
        "begins with the same tokens, as long as there is room and nothing was forgotten on "
        "demand. Only for targets that say so: feature 'keeps'.",
        _S, "a lookup for a prompt of which a request had left a full block",
        packages=RETURN, features=frozenset({"keeps"}),
        source="the target's own word",
        incidents=("B-180", "B-127", "B-187", "B-191"),
        help="Compare the keys of what is saved with those that are looked up, and look for "
        "requests that are not saved.",
    ),
    Rule(
        "KVC-506", "images are told apart",
        "KV of a prompt with one image in it is never served to one with another, or with none, "
        "from the image on.",
        "composition", "a lookup for a prompt that was seen only with other images",
        packages=frozenset({"tenants"}),
        source="v1/core/kv_cache_utils.py _gen_mm_extra_hash_keys: the tokens of an image are the "
        "same for every image, block hashes hold its own hash",
        incidents=("B-096",),
        help="Derive keys from request.block_hashes, or mix in the identifiers of mm_features that "
        "lie in the block, whole.",
    ),
    Rule(
        "KVC-507", "embeddings are told apart",
        "KV of a prompt that came as embeddings is served only to one with the same embeddings.",
        "composition", "a lookup for a prompt that was seen only as tokens, or as embeddings of "
        "another encoder",
        packages=frozenset({"embeds"}), since="0.11.2",
        source="v1/core/kv_cache_utils.py _gen_prompt_embeds_extra_hash_keys; v1/request.py: their "
        "token ids are all 0",
        incidents=("B-096",),
        help="Derive keys from request.block_hashes; prompt_token_ids is None here.",
    ),
    Rule(
        "KVC-508", "models are told apart",
        "An engine that serves another model over the same store takes nothing for its own that "
        "was saved by the one before.",
        "composition", "a lookup for a prompt that was seen only by another model",
        packages=frozenset({"redeploy"}),
        source="block hashes do not hold the model's name; distributed/kv_transfer/kv_connector/v1/"
        "nixl/metadata.py compute_nixl_compatibility_hash does, with what the layout depends on",
        help="Put model, dtype, block size and ranks into each key, or into the name of the store; "
        "or refuse to start.",
    ),
    Rule(
        "KVC-509", "equals share",
        "What a request with a salt, an adapter, an image or embeddings has left is found by the "
        "next one with the same: keys hold nothing that is of one request alone. Only for targets "
        "that say so: feature 'keeps'.",
        _S, "a lookup for a prompt of which a request with the same salt, adapter, image or "
        "embeddings had left a full block",
        packages=frozenset({"tenants", "embeds"}), features=frozenset({"keeps"}),
        source="the target's own word; v1/core/kv_cache_utils.py generate_block_hash_extra_keys",
        incidents=("B-180",),
        help="Look for ids, addresses or paths in what is hashed.",
    ),
    # -- 6xx failure ------------------------------------------------------------------------------
    Rule(
        "KVC-601", "failed loads are reported",
        "Each block that could not be loaded is reported no later than the completion of its load.",
        _W, "a load failed",
        packages=FAILING, features=frozenset({"load-failure", "orders"}),
        source="v1/base.py get_block_ids_with_load_errors",
        incidents=("B-134", "B-070", "B-195", "B-026"),
        help="Return the block ids from get_block_ids_with_load_errors in the step of the load, or "
        "of its finished_recving.",
        since="0.11.2",
    ),
    Rule(
        "KVC-602", "only own blocks are reported as failed",
        "Reported block ids belong to a load of that step or to one that is still open; reported "
        "requests, to one that is open.",
        _W, "a failed load was reported",
        packages=FAILING, features=frozenset({"load-failure", "orders"}),
        source="v1/core/sched/scheduler.py _update_requests_with_invalid_blocks: every request "
        "that holds the block is rolled back",
        incidents=("B-047",),
        help="Drain the set when it is read; report ids once.",
        since="0.11.2",
    ),
    Rule(
        "KVC-603", "leases run out",
        "Blocks that are kept for another engine are given back when nobody has come for them.",
        _W, "a request's client went away, or its decoder could not be reached, while its blocks "
        "were kept",
        packages=frozenset({"expire", "peer-gone", "restart"}),
        features=frozenset({"pd", "async"}),
        source="v1/nixl/base_worker.py, v1/mooncake/mooncake_connector.py: time-outs of requests "
        "to send; v1/core/sched/scheduler.py keeps blocks until finished_sending, without a limit",
        incidents=("B-065",),
        help="Give each kept request a deadline, and report it in finished_sending when it passes.",
    ),
    Rule(
        "KVC-604", "failed loads of several groups are named as requests",
        "With several KV groups a load that failed is reported by its request, in failed_recving "
        "and in finished_recving of the same answer; no block ids are reported.",
        _W, "a load failed in an engine with several KV groups",
        packages=FAILING, features=_ORDERS | {"hma", "load-failure"},
        source="v1/base.py KVConnectorTransferResults; v1/core/sched/scheduler.py "
        "_handle_failed_recving, _handle_invalid_blocks: a RuntimeError for block ids; until 0.27 "
        "there is no way, and a ValueError",
        incidents=("B-025", "B-026"),
        help="Override get_transfer_results. A load before the forward cannot be reported at all: "
        "load in the background.",
        since="0.32.0",
    ),
    Rule(
        "KVC-605", "damage is noticed",
        "KV that was damaged where it is stored is not served: its load fails. Only for targets "
        "that say so: feature 'verifies'.",
        "composition", "a block that a lookup had found was damaged",
        packages=frozenset({"corrupt"}), features=frozenset({"verifies", "load-failure", "orders"}),
        source="the target's own word; v1/base.py get_block_ids_with_load_errors",
        help="Keep a checksum beside each block and compare it before the block is loaded.",
        since="0.11.2",
    ),
    # -- 7xx progress -----------------------------------------------------------------------------
    Rule(
        "KVC-701", "loads end",
        "With faults off, every request that waits for remote KV goes on within a bound.",
        _W, "the drain began with a request that was loading, or deferred",
        packages=HITS | {"delay", "defer"}, features=_ASYNC,
        source="v1/core/sched/scheduler.py _handle_blocked_waiting_request: waits without a limit",
        incidents=("B-021", "B-128", "B-155"),
        help="Report finished_recving for every asynchronous promise, also when it failed.",
    ),
    Rule(
        "KVC-702", "what is pending ends",
        "has_pending_block_frees and has_pending_push_work answer False when nothing is under way "
        "any more.",
        _S, "a drain after transfers were held open",
        packages=LATE, features=_ORDERS, since="0.27.1",
        source="v1/core/sched/scheduler.py schedule: nobody is preempted while block frees are "
        "pending; has_requests: the loop goes on while pushes are",
        help="Derive the answer from the transfers that are open, not from a flag of its own.",
    ),
    # -- 8xx composition --------------------------------------------------------------------------
    Rule(
        "KVC-801", "a reset forgets",
        "After reset_cache answered True, a lookup finds nothing of requests that ended before.",
        _S, "a lookup, after a reset, for a prompt that only requests before it had",
        packages=frozenset({"reset"}), features=frozenset({"reset"}),
        source="v1/core/sched/scheduler.py reset_connector_cache; called after an update of the "
        "weights",
        incidents=("B-050", "B-139"),
        help="Forget what is stored, and what is being saved: the KV is that of other weights. "
        "Answer False when that is impossible.",
    ),
    Rule(
        "KVC-802", "an engine can be shut down at any time",
        "shutdown returns, in both halves, whatever is under way; also when nothing is.",
        "composition", "engines were shut down while a completion was owed",
        packages=frozenset({"shutdown"}), level="should",
        source="v1/engine/core.py shutdown; v1/core/sched/scheduler.py shutdown",
        help="Close what was opened, wait for nothing that will not come, and expect to be called "
        "before the first step, and twice.",
    ),
    Rule(
        "KVC-803", "what is null is left alone",
        "No transfer reads or writes the null block, which stands in a table for what a group with "
        "a window has given back, or never needed.",
        _S, "a load for a request with a null block in its table",
        packages=HITS, features=_ORDERS | {"hma"},
        source="v1/core/single_type_kv_cache_manager.py remove_skipped_blocks, "
        "add_local_computed_blocks: block 0 of the pool",
        incidents=("B-114", "B-177"),
        help="Skip block id 0 in each group's table, and the key that belongs to it.",
        since="0.18.0",
    ),
    Rule(
        "KVC-804", "every group is loaded",
        "With several KV groups a load fills all blocks that were allocated for it, in each group: "
        "of a window those behind its first token, of full attention all of them.",
        _W, "a load ended in an engine with several KV groups",
        packages=HITS, features=_ORDERS | {"hma", "async"},
        source="v1/core/kv_cache_coordinator.py allocate_new_computed_blocks; "
        "v1/core/sched/scheduler.py _update_waiting_for_remote_kv: the blocks of all groups are "
        "published",
        incidents=("B-049", "B-120", "B-179"),
        help="Take the tables of all groups from get_block_ids(), and promise only what all of "
        "them can be given.",
        since="0.18.0",
    ),
    Rule(
        "KVC-805", "who is not to load loads nothing",
        "A child of a composition that is given 0 external tokens loads nothing, whatever it had "
        "promised: it begins no load, and does not report the one of another child.",
        _S, "a child that had promised tokens was given none to load",
        packages=HITS, features=frozenset({"siblings"}),
        source="distributed/kv_transfer/kv_connector/v1/multi_connector.py "
        "update_state_after_alloc: the children that were not chosen get the blocks, and 0 tokens",
        incidents=("B-057", "B-059", "B-058", "B-164"),
        help="Plan from num_external_tokens, not from your own lookup's answer, nor from whether "
        "there are blocks.",
    ),
    Rule(
        "KVC-806", "one child loads what it promised",
        "What a composition promises is what one of its children has promised, and that one alone "
        "is given these tokens to load.",
        "composition", "a composition was admitted with tokens to load",
        packages=HITS, features=frozenset({"children"}),
        source="distributed/kv_transfer/kv_connector/v1/multi_connector.py "
        "get_num_new_matched_tokens, update_state_after_alloc",
        incidents=("B-009", "B-057"),
        help="Remember who was chosen in the lookup that counts, the last one, and forget it when "
        "the request ends.",
    ),
    Rule(
        "KVC-807", "a send is over when each child's is",
        "A composition keeps a request's blocks if any of its children does, and reports "
        "finished_sending on a rank when, and as soon as, all of these children have.",
        "composition", "a composition reported a send after a transfer had been held open",
        packages=LATE, features=frozenset({"children"}),
        source="distributed/kv_transfer/kv_connector/v1/multi_connector.py "
        "_aggregate_request_finished, get_transfer_results, get_finished_count",
        incidents=("B-052", "B-046", "B-060"),
        help="Ship the number of sends that are owed with the metadata: the workers are other "
        "processes.",
    ),
    Rule(
        "KVC-808", "an engine can start anew",
        "An engine whose process has died starts again with the same configuration, whatever its "
        "former life has left outside; and reports nothing of that life's requests.",
        "composition", "an engine that had started anew computed something",
        packages=frozenset({"restart"}),
        source="v1/core/sched/scheduler.py _update_from_kv_xfer_finished: assert req_id in "
        "self.requests",
        help="Take over nothing that the former life had under way: locks, journals and "
        "reservations outside need an owner that can be told from the one before.",
    ),
    # -- 9xx observation --------------------------------------------------------------------------
    Rule(
        "KVC-901", "statistics add up",
        "Statistics are KVConnectorStats of one type, whichever rank or half tells them; they can "
        "be sent and added up, and what is made of them again for the log reduces to numbers of 0 "
        "or more.",
        "composition", "statistics were told",
        packages=_ALL, features=frozenset({"stats"}),
        source="distributed/kv_transfer/kv_connector/utils.py KVOutputAggregator.aggregate; "
        "v1/core/sched/scheduler.py update_from_output; v1/metrics.py KVConnectorLogging",
        incidents=("B-040", "B-061"),
        help="Add up into a new object, with keys that one of the two may lack; rebuild in "
        "build_kv_connector_stats what to_dict gives.",
    ),
    Rule(
        "KVC-902", "statistics start anew",
        "What was counted is told once: a step in which nothing happens does not tell the counters "
        "of the last one again. Levels, which do not add up, may be told as often as one likes.",
        "worker half", "statistics were told",
        packages=_ALL, features=frozenset({"stats", "orders"}),
        source="v1/base.py get_kv_connector_stats ('during the last interval')",
        help="Hand the object over and go on with a new one.",
    ),
    Rule(
        "KVC-903", "KV events are well formed",
        "take_events tells vLLM's own events, and they reach a subscriber. Where an event has the "
        "tokens of vLLM's blocks, they are theirs, and the parent is the block before in the "
        "request, whatever else was stored.",
        _S, "events were told",
        packages=_ALL, features=frozenset({"events"}),
        source="distributed/kv_events.py BlockStored, KVEventBatch; v1/core/block_pool.py "
        "cache_full_blocks",
        incidents=("B-122",),
        help="Take tokens and parent from the request that the block is of, when the save is "
        "planned.",
    ),
    Rule(
        "KVC-904", "KV events are told once",
        "No event is handed out twice.",
        _S, "events were told",
        packages=_ALL, features=frozenset({"events"}),
        source="v1/base.py take_events ('since the last call'); v1/core/sched/scheduler.py "
        "update_from_output",
        help="Empty the queue as it is read.",
    ),
    Rule(
        "KVC-905", "what is announced can be fetched",
        "A block is announced when it has been computed and saved, its removal is announced when "
        "it is gone, and only then. In between a lookup finds it.",
        _S, "events were told",
        packages=_ALL, features=frozenset({"events"}),
        source="distributed/kv_events.py BlockStored, BlockRemoved: what a router goes by",
        incidents=("B-122",),
        help="Announce on completion of the save, not when it is planned; and where the store "
        "evicts or forgets.",
    ),
    Rule(
        "KVC-906", "workers' metadata adds up, and is told once",
        "What build_connector_worker_meta answers can be sent, and added to that of other ranks; "
        "a step in which nothing happens does not tell it again.",
        _W, "metadata of a worker was told",
        packages=_ALL, features=frozenset({"worker-meta"}), since="0.18.0",
        source="distributed/kv_transfer/kv_connector/utils.py KVOutputAggregator.aggregate; "
        "v1/base.py build_connector_worker_meta",
        help="Take what has gathered out, and add up into a new object.",
    ),
    Rule(
        "KVC-907", "a worker's answers stay what they were",
        "Sets, statistics and metadata that a hook of the worker half has answered do not change "
        "before vLLM has processed the step.",
        _W, "an answer was looked at again",
        packages=_ALL, features=_ASYNC,
        source="v1/worker/kv_connector_model_runner_mixin.py: the objects go into the output as "
        "they are; v1/engine/core.py step_with_batch_queue: the next step runs before",
        help="Answer a copy, or hand the object over and go on with a new one.",
    ),
    # -- what vLLM itself owes: reported, never held against the target ---------------------------
    Rule(
        "VLL-001", "vLLM does not raise on a conformant history",
        "Whatever a connector may legally answer, the scheduler and the runner carry on.",
        _V, "any step",
        source="v1/core/sched/scheduler.py schedule, update_from_output; "
        "v1/worker/kv_connector_model_runner_mixin.py",
        help="Look at the connector's last answers before the line that raised: if they were "
        "legal, vLLM is to be told, with the crash file.",
    ),
    Rule(
        "VLL-101", "common blocks are common",
        "The first n blocks of every scheduled request are the same, n as the scheduler said for "
        "cascade attention. Known to fail: V-09, 0.11.0 counts references, of which a finished "
        "request that is being sent, or one that is loading, holds some (PR #23485); in 0.27.1 "
        "those whose free is deferred have references too.",
        _V, "a step of which vLLM said that its requests share blocks", until="0.27.1",
        source="0.11.0 v1/core/single_type_kv_cache_manager.py get_num_common_prefix_blocks",
        help="Turn cascade attention off on a release that fails this, or update vLLM.",
    ),
    Rule(
        "VLL-102", "request_finished is called once",
        "A request's finish hook is called exactly once (v1/core/sched/scheduler.py "
        "_connector_finished). Known to fail: V-10, in 0.11.0 for a request that is aborted while "
        "its blocks are kept, in 0.13.0 for one that is aborted in the step in which it ends, "
        "and to 0.13.0 for one that a stop token ends while its next step is under way.",
        _V, "a request ended", incidents=("B-201", "B-007"),
        source="v1/core/sched/scheduler.py _connector_finished, finish_requests",
        help="A connector that cannot wait for a fixed vLLM answers the second call as it did the "
        "first, and registers nothing.",
    ),
    Rule(
        "VLL-103", "an id is taken once",
        "A request of an id that the scheduler still knows is not let in. Known to fail: V-12, to "
        "0.13.0 it takes the place of the one whose blocks are being sent, which never come back.",
        _V, "a client used an id again",
        source="v1/core/sched/scheduler.py add_request",
        help="Let front ends make ids of their own: vLLM does so by default.",
    ),
    Rule(
        "VLL-104", "requests go the ways there are",
        "A request passes from state to state as the table in docs/life-cycle.md has it: none runs "
        "that waits for its load, none comes back that has ended. Known to fail: 0.18.0 to 0.23.0, "
        "one that was preempted and ends with a token under way is admitted after its end.",
        _V, "a step that schedules something",
        source="v1/core/sched/scheduler.py schedule, _preempt_request, finish_requests",
        help="Look at the step before: which hook had answered what when the request changed its "
        "state.",
    ),
    Rule(
        "VLL-105", "ends are told once, in the next step",
        "Each rank hears in finished_req_ids of every request that has ended since the step "
        "before, and of no other.",
        _V, "a request ended",
        source="v1/core/sched/scheduler.py _free_request, schedule",
        help="Look at what was taken out of finished_req_ids, or put into it, since the request's "
        "end.",
    ),
    Rule(
        "VLL-201", "blocks of a failed load are not used",
        "KV that the connector reported as failed is recomputed before anyone reads it, and is not "
        "left in the prefix cache. Known to fail: V-01, the request is aborted before it "
        "recomputed; V-02, a request that shares the blocks goes on without them "
        "(v1/core/sched/scheduler.py _handle_invalid_blocks evicts only under policy 'fail').",
        _V, "a failed load was reported", incidents=("B-027", "B-024"),
        source="v1/core/sched/scheduler.py _handle_invalid_blocks, "
        "_update_requests_with_invalid_blocks",
        help="kv_load_failure_policy=fail ends the requests concerned instead of computing on.",
    ),
    Rule(
        "VLL-202", "output follows from the KV that was read",
        "The tokens delivered are those that the workers sampled, in order. Known to fail: V-03, "
        "AsyncScheduler after a failed synchronous load (v1/core/sched/scheduler.py "
        "update_from_output skips the request, its placeholder stays); V-07, to 0.13.0 a preempted "
        "request that loads comes back as a new one, without its output.",
        _V, "any output", incidents=("B-023",),
        source="v1/core/sched/scheduler.py update_from_output, _update_waiting_for_remote_kv",
        help="Compare the tokens scheduled with those that the workers have: the difference is a "
        "request that vLLM has rolled back.",
    ),
    Rule(
        "VLL-203", "a request's blocks hold its own KV",
        "Blocks that the engine wrote itself are given only to requests with that prefix. Known to "
        "fail: V-08, to 0.17.0 an asynchronous load counts for whole blocks, whatever it promised; "
        "of a load to a prompt's end, where the next token's window begins with a block, vLLM has "
        "given back what its last token sees, and computes that again "
        "(v1/core/sched/scheduler.py _update_waiting_for_remote_kv).",
        _V, "any step",
        source="v1/core/sched/scheduler.py schedule, allocate_slots; v1/core/kv_cache_manager.py",
        help="Look for the step in which the block was handed to its owner, and for what vLLM took "
        "to be computed in it.",
    ),
    Rule(
        "VLL-204", "what is being loaded is not found yet",
        "Blocks of an asynchronous load are a local hit of other requests only after its "
        "finished_recving.",
        _V, "an admission while a load was open",
        source="v1/core/sched/scheduler.py schedule (delay_cache_blocks), "
        "_update_waiting_for_remote_kv; v1/core/kv_cache_manager.py allocate_slots, cache_blocks",
        help="Look for who gave the blocks their hashes before the load was received.",
    ),
    Rule(
        "VLL-401", "blocks of an open transfer are not given away",
        "While a load or send that the connector has not reported is open, its blocks belong to "
        "nobody else. Known to fail: V-06, to 0.13.0 blocks of a request that is aborted while it "
        "is loading are given away at once.",
        _V, "an admission while a transfer was open", incidents=("B-003",),
        source="v1/core/sched/scheduler.py _free_request, finish_requests",
        help="No connector can mend it; one that can cancel a transfer does so when its request "
        "has ended.",
    ),
    Rule(
        "VLL-402", "the prefix cache can be reset in the end",
        "When nothing is left to do reset_prefix_cache answers True, and no block can be found "
        "afterwards.",
        _V, "a drain after which nothing is left",
        source="v1/core/sched/scheduler.py reset_prefix_cache; v1/core/block_pool.py",
        help="Look for blocks whose reference count is not 0 although no request has them.",
    ),
    Rule(
        "VLL-701", "the engine goes on when the connector owes nothing",
        "With faults off and no transfer open, every request finishes, and nothing is left. Known "
        "to fail: V-06, to 0.13.0 the completion of a load whose request was aborted is kept for "
        "the next request of that id; a request whose load has failed (since 0.32.0), or was of "
        "less than it had when it was preempted (0.17.0 to 0.20.2), finds no room, and nobody "
        "behind it is looked at, not even one that is loaded and holds that room "
        "(v1/core/sched/scheduler.py schedule, the loop over those that wait).",
        _V, "a drain", incidents=("B-016", "B-018", "B-030"),
        source="v1/core/sched/scheduler.py has_requests, finish_requests, "
        "_update_from_kv_xfer_finished",
        help="Look for what was answered last for the request that is left: vLLM waits for "
        "something that has come.",
    ),
    Rule(
        "VLL-702", "an engine does not rest while blocks are kept",
        "The engine's loop goes on while finished_sending is owed: the connector is asked in steps "
        "only. Known to fail: V-11, to 0.20.2 it rests when no request is unfinished.",
        _V, "a drain began while a send was open",
        source="v1/core/sched/scheduler.py has_finished_requests",
        help="Send a request now and then, or update vLLM: from 0.23 on the loop goes on.",
    ),
    Rule(
        "VLL-703", "what fails to load is computed",
        "With the policy recompute, what failed to be loaded is computed: vLLM does not ask the "
        "connector for the same load more than six times in a row without a token in between. "
        "Known to fail: V-04, it asks for ever when the first block fails, and takes the "
        "connector's word each time.",
        _V, "a lookup of a request whose load has failed, and which has no token yet",
        packages=FAILING, features=frozenset({"load-failure", "orders"}),
        source="config/kv_transfer.py kv_load_failure_policy: recompute reschedules the request to "
        "recompute failed blocks; v1/core/sched/scheduler.py _handle_invalid_blocks: a request "
        "whose first block failed is looked up again in the next step, without a limit",
        help="A connector can protect itself: remember that a load of this request failed, and "
        "promise nothing from then on.",
    ),
)  # fmt: skip

BY_ID = {rule.id: rule for rule in RULES}


def find(rule_id: str) -> Rule:
    """The rule with this id.

    Raises:
        UsageError: there is none.
    """
    rule = BY_ID.get(rule_id.upper())
    if rule is None:
        hint = "" if is_rule_id(rule_id.upper()) else " A rule id looks like KVC-302."
        raise UsageError(
            f"There is no rule {rule_id!r}.{hint} 'kvconform list rules' shows them all."
        )
    return rule


def tolerated(names: Iterable[str]) -> frozenset[str]:
    """The rules that are to be read tolerantly.

    Raises:
        UsageError: there is no such rule, or no such reading of it.
    """
    rules = [find(name) for name in names]
    for rule in rules:
        if rule.tolerant is None:
            known = ", ".join(r.id for r in RULES if r.tolerant)
            raise UsageError(f"{rule.id} has one reading only; {known} can be read tolerantly.")
    return frozenset(rule.id for rule in rules)


def rule_data(rule: Rule) -> dict[str, Any]:
    """A rule of the catalogue as data."""
    return {
        "id": rule.id,
        "title": rule.title,
        "text": rule.text,
        "level": rule.level,
        "side": rule.side,
        "features": sorted(rule.features),
        "provoked": rule.provoked,
        "packages": sorted(rule.packages),
        "source": rule.source,
        "incidents": list(rule.incidents),
        "since": rule.since,
        "until": rule.until,
        "tolerant": f"{rule.tolerant.text} ({rule.tolerant.source})" if rule.tolerant else "",
        "help": rule.help,
    }
