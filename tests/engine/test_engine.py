"""The engine by itself: right connectors give the oracle's output, in every shape."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from kvconform.conformance.run import Run, play
from kvconform.engine import compat
from kvconform.engine.blame import Found, blame
from kvconform.engine.cluster import Cluster
from kvconform.engine.memory import Memory, Promise
from kvconform.engine.oracle import stream
from kvconform.engine.world import World
from kvconform.scenario.actions import Abort, Action, Arrive, Reset, Step
from kvconform.scenario.errors import RefusedError, UsageError
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind, Trace
from tests.engine.plain import KeepsForEver, Nothing, NothingInGroups, target

BUSY: tuple[Action, ...] = (
    Arrive(Prompt(0, 50), 20),
    Arrive(Prompt(0, 40, 5), 20),
    Arrive(Prompt(1, 33), 12),
    Step(3),
    Reset(running=True),
    Arrive(Prompt(0, 50), 8),
    Step(4),
    Abort(1, mid_step=True),
    Step(2),
)

SHAPES = {
    "default": Shape(),
    "two ranks": Shape(tp=2),
    "chunked prefill": Shape(max_num_batched_tokens=24),
    "preemption": Shape(num_blocks=9),
    "async": Shape(async_scheduling=True),
    "async, preemption": Shape(num_blocks=9, async_scheduling=True),
    "no prefix cache": Shape(prefix_caching=False),
    "small blocks": Shape(block_size=1, num_blocks=200),
    "large blocks": Shape(block_size=64),
    "drafts": Shape(drafts=3),
    "drafts, lookahead, preemption": Shape(drafts=3, lookahead=True, num_blocks=10),
    "two groups": Shape(window=32),
    "two groups, tight": Shape(window=32, num_blocks=16, max_num_batched_tokens=24),
}


def needs(shape: Shape) -> None:
    for field in ("window", "drafts"):
        if not compat.supports(field, getattr(shape, field)):
            pytest.skip(f"not with this vLLM: {field}")


@pytest.mark.parametrize("name", SHAPES)
def test_output_equals_the_oracle_and_nothing_is_left(name: str) -> None:
    needs(SHAPES[name])
    outcome = play(target(NothingInGroups), Scenario(SHAPES[name], BUSY))
    assert outcome.violation is None
    delivered: dict[str, list[int]] = {}
    for event in outcome.trace.of(Kind.TOKENS):
        assert event.request is not None
        delivered.setdefault(event.request, []).extend(event.data["tokens"])
    assert [len(tokens) for tokens in delivered.values()].count(20) == 2
    assert len(list(outcome.trace.of(Kind.QUIET))) == 1


def test_preemption_happens_when_the_pool_is_tight() -> None:
    outcome = play(
        target(Nothing),
        Scenario(Shape(num_blocks=7), (Arrive(Prompt(0, 40), 30), Arrive(Prompt(1, 20), 40))),
    )
    assert outcome.violation is None
    assert any(e.data["new"] == "PREEMPTED" for e in outcome.trace.of(Kind.STATUS))


def drafted(shape: Shape) -> tuple[list[int], Trace]:
    """A request of 20 tokens: how many came in each step, and what was seen."""
    needs(shape)
    outcome = play(target(Nothing), Scenario(shape, (Arrive(Prompt(0, 40), 20),)))
    assert outcome.violation is None
    return [len(e.data["tokens"]) for e in outcome.trace.of(Kind.TOKENS)], outcome.trace


def test_drafts_are_accepted_as_far_as_they_are_right() -> None:
    counts, _ = drafted(Shape(drafts=3))
    assert sum(counts) == 20
    assert counts[0] == 1  # the prompt's step has none yet
    assert {1, 2, 4} <= set(counts)  # none, some, all


class SaysWhen(Nothing):
    """Says when it is asked for what was transferred, and when to end saving."""

    order: ClassVar[list[str]] = []

    def wait_for_save(self) -> None:
        self.order.append("save")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, None]:
        self.order.append("report")
        return None, None


@pytest.mark.parametrize("drafts", [0, 1])
def test_with_a_drafter_saving_ends_behind_all_other_hooks(drafts: int) -> None:
    needs(Shape(drafts=drafts))
    SaysWhen.order.clear()
    play(target(SaysWhen), Scenario(Shape(drafts=drafts), (Arrive(Prompt(0, 40), 20),)))
    assert SaysWhen.order[:2] == (["report", "save"] if drafts else ["save", "report"])


def test_a_draft_model_takes_slots_of_its_own() -> None:
    shape = Shape(drafts=3, block_size=1, num_blocks=200)
    held = []
    for lookahead in (False, True):
        this = dataclasses.replace(shape, lookahead=lookahead)
        needs(this)
        cluster = Cluster(target(Nothing), this, World(), Trace())
        cluster.arrive(Prompt(0, 40), 20, Identity(), 0)
        cluster.step(0)
        pool = cluster.engines[0].scheduler.kv_cache_manager.block_pool
        held.append(this.num_blocks - 1 - pool.get_num_free_blocks())
        cluster.close()
    assert held[1] == held[0] + shape.drafts


def test_leaks_are_found_in_every_group() -> None:
    needs(Shape(window=32))
    outcome = play(target(KeepsForEver), Scenario(Shape(window=32), BUSY))
    left = {e.data["what"] for e in outcome.trace.of(Kind.LEFT)}
    assert {"request", "blocks", "block table of group 0", "block table of group 1"} <= left
    assert outcome.violation is not None
    assert outcome.violation.fingerprint.rule == "KVC-402"


@pytest.mark.skipif(not compat.ABORTS_WITHIN_STEPS, reason="this vLLM aborts after the step")
def test_aborts_come_between_execute_and_update() -> None:
    outcome = play(
        target(Nothing),
        Scenario(Shape(), (Arrive(Prompt(0, 20), 5), Step(2), Abort(0, mid_step=True), Step(1))),
    )
    assert outcome.violation is None
    kinds = [
        (e.kind, e.data.get("name")) for e in outcome.trace.events if e.step == 3 and e.engine == 0
    ]
    order = [name for kind, name in kinds if kind is Kind.HOOK]
    # The workers ran (get_finished has another name now) before the abort reached the connector.
    ran = next(
        i for i, name in enumerate(order) if name in ("get_finished", "get_transfer_results")
    )
    assert ran < order.index("request_finished")
    assert not [e for e in outcome.trace.of(Kind.TOKENS) if e.step == 3]


def test_a_block_is_poisoned_when_it_changes_hands_and_not_when_it_is_freed() -> None:
    cluster = Cluster(target(Nothing), Shape(), World(), Trace())
    cluster.arrive(Prompt(0, 32), 1, Identity(), 0)
    engine = cluster.engines[0]
    memory = engine.memory
    while engine.step():
        pass
    used = [b for b, owner in enumerate(memory.owners) if owner == "r0"]
    kept = memory.words[0][:, used].copy()
    assert memory.computed[used[0]].all()  # freed, and still a valid local hit
    cluster.arrive(Prompt(0, 40), 1, Identity(), 0)
    engine.step()
    assert (memory.words[0][:, used[:2]] == kept[:, :2]).all()
    before = list(memory.epochs)
    engine.memory.hand_over(used[:1], "r9")
    assert memory.epochs == before
    engine.memory.apply()
    assert memory.epochs[used[0]] == before[used[0]] + 1
    assert not memory.computed[used[0]].any()
    assert not (memory.words[0][:, used[:1]] == kept[:, :1]).any()
    cluster.close()


@pytest.mark.parametrize("tp", [1, 2])
def test_pairs_of_k_and_v_hold_the_same_kv_as_whole_tensors(tp: int) -> None:
    words = []
    for caches in ("whole", "pairs"):
        made = dataclasses.replace(target(Nothing), caches=caches)
        cluster = Cluster(made, Shape(tp=tp), World(), Trace())
        cluster.arrive(Prompt(0, 40), 3, Identity(), 0)
        while cluster.engines[0].step():
            pass
        memory = cluster.engines[0].memory
        words.append(memory.words[0].copy())
        cluster.close()
    assert (words[0] == words[1]).all()
    k, v = memory.tensors[0][0]
    assert k.shape == v.shape == (64, 16, 2 // tp, 4)
    assert k.is_contiguous()
    block = memory.owners.index("r0")
    assert (k[block].numpy().view("u8")[5, 0] == words[1][0, block, 0, 5, 0]).all()
    assert (v[block].numpy().view("u8")[5, 0] == words[1][0, block, 0, 5, 1]).all()


def test_a_loaded_block_that_vllm_gives_to_another_is_no_fault_of_the_connectors() -> None:
    loaded, reader = (stream(Prompt(0, 16).tokens(), Identity(salt), 1) for salt in ("a", "b"))
    memory = Memory(0, Shape(), 2)
    memory.promise(Promise("r0", 0, 16, is_async=True, blocks=(1,)))
    actual = tuple(int(word) for word in loaded.words(0, 0)[3])
    found = Found(3, 1, 3, layer=0, rank=0, local_head=0, actual=actual)
    streams = {"r0": loaded, "r1": reader}
    assert blame(found, memory, reader, streams.items()).kind == "stale-block"
    streams = {"r0": reader, "r1": loaded}  # it was loaded for the one that reads it
    assert blame(found, memory, reader, streams.items()).kind == "other-tenant"


def test_steps_cross_the_wire_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    loads = pickle.loads

    def counted(blob: bytes) -> Any:
        seen.append(blob)
        return loads(blob)

    monkeypatch.setattr(pickle, "loads", counted)
    outcome = play(target(Nothing), Scenario(Shape(tp=2), (Arrive(Prompt(0, 20), 1),)))
    assert outcome.violation is None
    assert len(seen) == 2 * 2 * outcome.steps  # to each rank, and back


def test_process_global_state_is_restored() -> None:
    from vllm.distributed import parallel_state
    from vllm.distributed.kv_transfer import kv_transfer_state

    play(target(Nothing), Scenario(Shape(tp=2), BUSY))
    assert kv_transfer_state._KV_CONNECTOR_AGENT is None
    assert parallel_state._TP is None


@pytest.mark.parametrize(
    "fields", [{"runner": "v2"}, {"load_failure_policy": "fail"}, {"window": 32}], ids=str
)
def test_a_shape_that_this_vllm_does_not_have_is_refused(fields: dict[str, Any]) -> None:
    ((field, value),) = fields.items()
    scenario = Scenario(Shape(**fields), BUSY)
    if compat.supports(field, value):
        assert play(target(NothingInGroups), scenario).violation is None
    else:
        with pytest.raises(RefusedError, match=f"has no {field}"):
            play(target(NothingInGroups), scenario)


class BadConstructor(Nothing):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no route to the store")


def test_a_constructor_that_raises_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="could not be set up: OSError: no route to the store"):
        Run(target(BadConstructor))


class ChangesConfig(Nothing):
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._vllm_config.scheduler_config.max_num_seqs = 1
        return super().build_connector_meta(scheduler_output)


def test_a_config_that_a_target_changed_is_not_used_again() -> None:
    scenario = Scenario(Shape(max_num_seqs=7), (Arrive(Prompt(0, 20), 1),))
    with Run(target(ChangesConfig), scenario.shape) as run:
        run.do(scenario.actions[0])
        run.drain()
    assert any("changed vLLM's config" in e.data["message"] for e in run.trace.of(Kind.LOG))
    with Run(target(ChangesConfig), scenario.shape) as run:
        assert run._cluster.engines[0].config.scheduler_config.max_num_seqs == 7
