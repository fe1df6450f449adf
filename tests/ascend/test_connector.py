"""The reference connector in the real scheduler: every path of a request's life."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from kvconform.connectors.ascend import AscendConnector
from kvconform.connectors.ascend.metadata import StepJobs
from tests.ascend.rig import SIZE, Engine, expected, make_config, make_kv_cache_config, prompt

HELD = "tests.ascend.held:connect"
FOREGROUND = 100  # async_min_blocks that no load reaches


@pytest.fixture(params=[False, True], ids=["sync-scheduling", "async-scheduling"])
def async_scheduling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def tp(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """A store's name of this test's own."""
    return request.node.nodeid


@pytest.fixture
def filled(store: str, tp: int, async_scheduling: bool) -> Engine:
    """An engine that has saved the four blocks of ``prompt(17)`` in the store."""
    engine = Engine(store=store, tp=tp, async_scheduling=async_scheduling)
    engine.complete("first", prompt(17))
    assert engine.told("finished_sending") == ["first"]
    assert engine.store.used_blocks == 4
    engine.assert_quiet()
    return engine


class TestLoading:
    @pytest.fixture(autouse=True)
    def _setup(self, filled: Engine, store: str, tp: int, async_scheduling: bool) -> None:
        self.filled = filled
        self.same: dict[str, Any] = {
            "store": store,
            "tp": tp,
            "async_scheduling": async_scheduling,
        }

    def test_a_foreground_load_is_there_in_its_own_step(self) -> None:
        engine = Engine(**self.same, async_min_blocks=FOREGROUND)
        engine.add("again", prompt(17), 5)
        so = engine.step()
        assert so.scheduled_new_reqs[0].num_computed_tokens == 16
        assert so.num_scheduled_tokens == {"again": 1}
        engine.run()
        assert engine.outputs["again"] == expected(prompt(17), 5)
        assert engine.misread == []
        assert engine.told("finished_recving") == []
        engine.assert_quiet()

    def test_a_background_load_lets_its_request_wait(self) -> None:
        engine = Engine(**self.same)
        engine.add("again", prompt(17), 5)
        so = engine.step()
        assert so.num_scheduled_tokens == {}
        assert engine.status("again") == "WAITING_FOR_REMOTE_KVS"
        engine.run()
        assert engine.outputs["again"] == expected(prompt(17), 5)
        assert engine.misread == []
        assert engine.told("finished_recving") == ["again"]
        engine.assert_quiet()

    def test_a_background_load_may_cover_the_whole_prompt(self) -> None:
        engine = Engine(**self.same)
        request = engine.add("whole", prompt(16), 3)
        engine.step()
        assert request.num_computed_tokens == 16
        engine.run()
        assert engine.outputs["whole"] == expected(prompt(16), 3)
        assert engine.misread == []
        engine.assert_quiet()

    def test_a_foreground_load_leaves_a_token_to_compute(self) -> None:
        engine = Engine(**self.same, async_min_blocks=FOREGROUND)
        engine.add("whole", prompt(16), 3)
        so = engine.step()
        assert so.scheduled_new_reqs[0].num_computed_tokens == 12
        engine.run()
        assert engine.outputs["whole"] == expected(prompt(16), 3)
        engine.assert_quiet()

    def test_only_what_is_not_there_locally_is_loaded(self) -> None:
        engine = Engine(**self.same, transport=HELD)
        engine.complete("short", prompt(5))  # its first block is local from now on
        for transport in engine.held:
            transport.hold = True
        engine.add("long", prompt(17))
        engine.step()
        own = engine.scheduler.kv_cache_manager.get_block_ids("long")[0]
        for transport in engine.held:
            (transfer,) = transport.waiting
            assert transfer.block_ids == tuple(own[1:4])
            transport.release()
        engine.run()
        assert engine.misread == []
        engine.assert_quiet()

    def test_a_full_local_hit_starts_nothing(self) -> None:
        self.filled.reports.clear()
        self.filled.complete("again", prompt(17))
        assert self.filled.told("finished_recving") == []
        assert self.filled.told("finished_sending") == []
        self.filled.assert_quiet()

    def test_a_preempted_request_loads_again(self) -> None:
        engine = Engine(**self.same, prefix_caching=False)
        engine.add("again", prompt(17), 8)
        while len(engine.outputs["again"]) < 3:
            engine.step()
        with contextlib.suppress(RuntimeError):  # it preempts, and is upset by a step on its way
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert engine.status("again") == "PREEMPTED"
        engine.run()
        assert engine.outputs["again"] == expected(prompt(17), 8)
        assert engine.misread == []
        assert engine.told("finished_recving") == ["again", "again"]
        engine.assert_quiet()

    def test_salts_do_not_share(self) -> None:
        engine = Engine(**self.same)
        engine.add("mine", prompt(17), salt="mine")
        engine.run()
        assert engine.told("finished_recving") == []
        engine.assert_quiet()
        assert engine.store.used_blocks == 8

    def test_a_request_for_prompt_logprobs_computes_its_prompt(self) -> None:
        engine = Engine(**self.same)
        request = engine.add("logprobs", prompt(17), prompt_logprobs=1)
        assert engine.connector.get_num_new_matched_tokens(request, 0) == (0, False)
        engine.run()
        assert engine.told("finished_recving") == []
        engine.assert_quiet()

    def test_a_producer_loads_nothing(self) -> None:
        engine = Engine(**self.same, role="kv_producer")
        engine.complete("again", prompt(17))
        assert engine.told("finished_recving") == []
        engine.assert_quiet()

    def test_an_unanswered_lookup_is_asked_again(self) -> None:
        engine = Engine(**self.same, transport=HELD)
        transport: Any = engine.half.transport
        transport.answers = False
        request = engine.add("again", prompt(17))
        assert engine.connector.get_num_new_matched_tokens(request, 0) == (None, False)
        engine.step()
        assert engine.status("again") == "WAITING"
        transport.answers = True
        engine.run()
        assert engine.outputs["again"] == expected(prompt(17), 1)
        assert engine.told("finished_recving") == ["again"]
        engine.assert_quiet()

    def test_a_lookup_holds_nothing_and_can_be_repeated(self) -> None:
        engine = Engine(**self.same)
        request = engine.add("again", prompt(17))
        for local, promised in ((0, 16), (8, 8), (0, 16)):
            answer = engine.connector.get_num_new_matched_tokens(request, local)
            assert answer == (promised, True)
        assert engine.store.holders == frozenset()
        engine.abort("again")
        engine.run()
        engine.assert_quiet()

    def test_less_may_be_asked_for_than_was_promised(self) -> None:
        engine = Engine(**self.same)
        request = engine.add("again", prompt(17))
        assert engine.connector.get_num_new_matched_tokens(request, 0) == (16, True)

        class Blocks:
            def get_block_ids(self) -> tuple[list[int]]:
                return ([1, 2, 3, 4, 5],)

        engine.connector.update_state_after_alloc(request, Blocks(), 0)
        assert not engine.half._open
        engine.connector.update_state_after_alloc(request, Blocks(), 2 * SIZE)
        (opened,) = engine.half._open.values()
        assert opened.job.block_ids == (1, 2)
        assert len(opened.job.keys) == 2


class TestEnds:
    """A request may end in any state; nothing is left over, and nothing reported twice."""

    @pytest.fixture(autouse=True)
    def _setup(self, filled: Engine, store: str, tp: int, async_scheduling: bool) -> None:
        self.engine = Engine(store=store, tp=tp, async_scheduling=async_scheduling, transport=HELD)

    def hold(self, hold: bool) -> None:
        for transport in self.engine.held:
            transport.hold = hold
            if not hold:
                transport.release()

    def test_before_it_was_scheduled(self) -> None:
        self.engine.add("again", prompt(17))
        self.engine.abort("again")
        self.engine.run()
        assert self.engine.told("finished_recving") == []
        assert self.engine.told("finished_sending") == []
        self.engine.assert_quiet()

    def test_while_it_loads(self) -> None:
        engine = self.engine
        self.hold(True)
        engine.add("again", prompt(17))
        engine.step()
        engine.abort("again")
        free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        for _ in range(4):
            engine.step()
        assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
        assert len(engine.store.holders) == 1  # what is being read stays
        self.hold(False)
        engine.run()
        assert engine.told("finished_recving") == ["again"]
        assert engine.told("finished_sending") == []
        engine.assert_quiet()

    def test_between_schedule_and_update(self) -> None:
        engine = self.engine
        self.hold(True)
        engine.add("again", prompt(17))
        so = engine.scheduler.schedule()
        output = engine._execute(so)
        engine.abort("again")
        engine._update(so, output)
        self.hold(False)
        engine.run()
        assert engine.told("finished_recving") == ["again"]
        engine.assert_quiet()

    def test_while_it_runs(self) -> None:
        engine = self.engine
        engine.add("new", prompt(17, family=1), 8)
        engine.step()
        engine.abort("new")
        engine.run()
        assert engine.told("finished_sending") == []
        assert engine.store.used_blocks == 4  # aborted requests are not saved
        engine.assert_quiet()

    def test_while_it_is_saved(self) -> None:
        engine = self.engine
        self.hold(True)
        engine.add("new", prompt(17, family=1))
        while engine.status("new") != "FINISHED_LENGTH_CAPPED":
            engine.step()
        for _ in range(4):
            engine.step()
            engine.abort("new")  # a client that does not know yet
        assert engine.status("new") == "FINISHED_LENGTH_CAPPED"
        self.hold(False)
        engine.run()
        assert engine.told("finished_sending") == ["new"]
        assert engine.store.used_blocks == 8
        engine.assert_quiet()

    def test_its_id_may_come_back(self) -> None:
        for _ in range(2):
            self.engine.add("again", prompt(17), 2)
            self.engine.run()
            self.engine.abort("again")
        assert self.engine.outputs["again"] == expected(prompt(17), 2)
        self.engine.assert_quiet()

    def test_by_shutdown(self) -> None:
        engine = self.engine
        self.hold(True)
        engine.add("again", prompt(17))
        engine.step()
        assert engine.store.holders
        for _ in range(2):
            for worker in engine.workers:
                worker.connector.shutdown()
            engine.connector.shutdown()
        assert engine.store.holders == frozenset()


class TestFailures:
    @pytest.fixture(autouse=True)
    def _setup(self, filled: Engine, store: str, tp: int) -> None:
        # Not with async scheduling: vLLM 0.32 miscounts tokens after a failed foreground load.
        self.same: dict[str, Any] = {"store": store, "tp": tp, "transport": HELD}

    @pytest.mark.parametrize("failed", [(0,), (2,), (0, 1, 2, 3)])
    @pytest.mark.parametrize("async_min_blocks", [2, FOREGROUND])
    def test_what_was_not_loaded_is_computed(
        self, failed: tuple[int, ...], async_min_blocks: int
    ) -> None:
        engine = Engine(**self.same, async_min_blocks=async_min_blocks)
        engine.held[-1].fail = failed
        request = engine.add("again", prompt(17), 3)
        engine.step()
        assert request.num_computed_tokens == failed[0] * SIZE
        reported = {i for report in engine.reports for i in report.invalid_block_ids}
        assert len(reported) == len(failed)
        engine.run()
        assert engine.outputs["again"] == expected(prompt(17), 3)
        background = async_min_blocks == 2
        assert engine.told("finished_recving") == (["again"] if background else [])
        engine.assert_quiet()

    def test_one_failure_is_enough_for_a_request(self) -> None:
        engine = Engine(**self.same)
        engine.held[-1].fail = (0,)
        engine.add("again", prompt(17), 3)
        engine.run()
        assert engine.told("finished_recving") == ["again"]  # asked again, it promised nothing
        engine.held[-1].fail = ()
        engine.complete("another", prompt(17, family=1), 3)
        assert engine.half._lives == {}

    @pytest.mark.parametrize("async_min_blocks", [2, FOREGROUND])
    def test_the_policy_may_be_to_fail(self, async_min_blocks: int) -> None:
        engine = Engine(**self.same, async_min_blocks=async_min_blocks, policy="fail")
        engine.held[-1].fail = (1,)
        engine.add("again", prompt(17), 3)
        engine.run()
        assert engine.reasons == {"again": "error"}
        assert engine.told("finished_sending") == []  # failed requests are not saved
        engine.assert_quiet()

    def test_what_was_promised_and_is_gone_is_reported(self) -> None:
        engine = Engine(**self.same)
        transport: Any = engine.half.transport
        transport.boast = True
        engine.add("more", prompt(25), 2)  # six blocks are promised, four are there
        engine.step()
        (report,) = engine.reports
        assert len(report.invalid_block_ids) == 2
        engine.run()
        assert engine.outputs["more"] == expected(prompt(25), 2)
        engine.assert_quiet()

    def test_a_save_that_failed_on_one_rank_is_not_found(self) -> None:
        engine = Engine(**self.same)
        engine.held[-1].fail = (1,)
        engine.complete("new", prompt(17, family=1))
        assert engine.told("finished_sending") == ["new"]
        assert engine.store.used_blocks == 4
        engine.assert_quiet()


class TestSaving:
    def test_the_block_of_the_last_token_is_not_complete(
        self, store: str, tp: int, async_scheduling: bool
    ) -> None:
        engine = Engine(store=store, tp=tp, async_scheduling=async_scheduling)
        output = expected(prompt(14), 2)
        # It stops at token 16, which fills its block, and which under async scheduling is being
        # computed when the scheduler learns of it.
        request = engine.add("new", prompt(14), 8, stop=output[-1])
        engine.run()
        assert engine.outputs["new"] == output
        assert request.num_tokens == 4 * SIZE
        assert engine.store.used_blocks == 3
        engine.assert_quiet()

    def test_saves_start_in_steps_in_which_vllm_does_not_wait_for_them(self, store: str) -> None:
        engine = Engine(store=store, transport=HELD)
        engine.add("new", prompt(17))
        engine.step()
        metadata = engine.scheduler.schedule().kv_connector_metadata
        worker = engine.workers[0].connector
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        assert worker.get_finished({"new"}) == ({"new"}, None)
        worker.wait_for_save()  # late, as with speculative decoding
        worker.clear_connector_metadata()
        assert worker.get_finished(set()) == (None, None)


class TestStore:
    def test_what_is_being_loaded_is_not_evicted(self, store: str, async_scheduling: bool) -> None:
        same: dict[str, Any] = {
            "store": store,
            "capacity_blocks": 4,
            "async_scheduling": async_scheduling,
        }
        writer = Engine(**same)
        writer.complete("first", prompt(17))
        reader = Engine(**same, transport=HELD)
        reader.held[0].hold = True
        reader.add("again", prompt(17))
        reader.step()
        writer.complete("other", prompt(17, family=1))
        assert writer.told("finished_sending") == ["first"]  # no room: not saved, not waited for
        reader.held[0].hold = False
        reader.held[0].release()
        reader.run()
        assert reader.misread == []
        assert reader.outputs["again"] == expected(prompt(17), 1)
        writer.complete("another", prompt(17, family=2))
        assert writer.told("finished_sending") == ["first", "another"]
        assert writer.store.used_blocks == 4
        for engine in (reader, writer):
            engine.assert_quiet()

    def test_engines_save_what_they_share_once(self, store: str) -> None:
        one = Engine(store=store, transport=HELD)
        two = Engine(store=store)
        one.held[0].hold = True
        one.add("one", prompt(17))
        while one.status("one") != "FINISHED_LENGTH_CAPPED":
            one.step()
        two.complete("two", prompt(21))  # four of its five blocks are being saved by the other
        assert two.told("finished_sending") == ["two"]
        assert two.store.used_blocks == 5
        one.held[0].hold = False
        one.held[0].release()
        one.run()
        three = Engine(store=store)
        three.add("three", prompt(21))
        assert three.step().num_scheduled_tokens == {}
        three.run()
        assert three.misread == []
        for engine in (one, two, three):
            engine.assert_quiet()

    def test_reset_forgets(self, filled: Engine, store: str, tp: int) -> None:
        engine = Engine(store=store, tp=tp)
        assert engine.scheduler.reset_prefix_cache(reset_connector=True)
        engine.complete("again", prompt(17))
        assert engine.told("finished_recving") == []
        assert engine.told("finished_sending") == ["again"]
        engine.assert_quiet()

    def test_what_is_older_than_a_reset_is_not_saved(self, store: str) -> None:
        engine = Engine(store=store)
        engine.add("old", prompt(17), 4)
        engine.step()
        engine.scheduler.reset_prefix_cache(reset_connector=True)
        engine.run()
        assert engine.told("finished_sending") == []
        assert engine.store.used_blocks == 0
        engine.assert_quiet()

    def test_what_is_computed_again_after_a_reset_is_saved(self, store: str) -> None:
        engine = Engine(store=store)
        engine.add("old", prompt(17), 4)
        engine.step()
        engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        engine.run()
        assert engine.outputs["old"] == expected(prompt(17), 4)
        assert engine.told("finished_sending") == ["old"]
        engine.assert_quiet()

    def test_a_save_that_a_reset_overtook_is_not_found(self, store: str, tp: int) -> None:
        engine = Engine(store=store, tp=tp, transport=HELD)
        engine.held[-1].hold = True
        engine.add("old", prompt(17))
        while engine.status("old") != "FINISHED_LENGTH_CAPPED":
            engine.step()
        engine.step()
        assert engine.connector.reset_cache()
        engine.held[-1].hold = False
        engine.held[-1].release()
        engine.run()
        assert engine.told("finished_sending") == ["old"]
        assert engine.store.used_blocks == 0
        engine.assert_quiet()

    def test_a_load_that_a_reset_overtook_still_gets_what_it_was_promised(
        self, filled: Engine, store: str, tp: int
    ) -> None:
        engine = Engine(store=store, tp=tp, transport=HELD)
        for transport in engine.held:
            transport.hold = True
        engine.add("again", prompt(17))
        engine.step()
        assert engine.connector.reset_cache()
        assert engine.store.used_blocks == 4
        for transport in engine.held:
            transport.hold = False
            transport.release()
        engine.run()
        assert engine.misread == []
        assert engine.told("finished_recving") == ["again"]
        assert engine.told("finished_sending") == []
        assert engine.store.used_blocks == 0
        engine.assert_quiet()


class TestRanks:
    """One rank is late."""

    @pytest.fixture
    def same(self, store: str, async_scheduling: bool) -> dict[str, Any]:
        return {"store": store, "tp": 2, "async_scheduling": async_scheduling, "transport": HELD}

    @pytest.fixture
    def engine(self, same: dict[str, Any]) -> Engine:
        return Engine(**same)

    def test_a_save_is_found_when_all_ranks_have_saved(self, engine: Engine) -> None:
        late = engine.held[1]
        late.hold = True
        engine.add("first", prompt(17))
        while engine.status("first") != "FINISHED_LENGTH_CAPPED":
            engine.step()
        for _ in range(4):
            engine.step()
        assert engine.told("finished_sending") == []
        assert engine.store.holders
        late.hold = False
        late.release()
        engine.run()
        assert engine.told("finished_sending") == ["first"]
        engine.assert_quiet()

    def test_a_load_is_over_when_all_ranks_have_loaded(
        self, engine: Engine, same: dict[str, Any]
    ) -> None:
        engine.complete("first", prompt(17))
        other = Engine(**same)
        late = other.held[0]
        late.hold = True
        other.add("again", prompt(17), 2)
        for _ in range(4):
            other.step()
        assert other.status("again") == "WAITING_FOR_REMOTE_KVS"
        assert other.store.holders  # the pins are for both
        late.hold = False
        late.release()
        other.run()
        assert other.misread == []
        assert other.outputs["again"] == expected(prompt(17), 2)
        other.assert_quiet()


class TestMetadata:
    def test_each_job_is_handed_out_once_in_an_object_of_its_own(
        self, filled: Engine, store: str, tp: int
    ) -> None:
        engine = Engine(store=store, tp=tp)
        engine.add("again", prompt(17), 3)
        seen: list[tuple[StepJobs, bytes]] = []
        while engine.scheduler.has_requests():
            so = engine.scheduler.schedule()
            metadata = so.kv_connector_metadata
            seen.append((metadata, pickle.dumps(metadata)))
            engine._update(so, engine._execute(so))
        ids = [job.job_id for metadata, _ in seen for job in metadata.jobs]
        assert len(ids) == len(set(ids)) == 1
        assert len({id(metadata) for metadata, _ in seen}) == len(seen)
        assert all(pickle.dumps(metadata) == before for metadata, before in seen)

    def test_a_consumer_saves_nothing(self, store: str) -> None:
        engine = Engine(store=store, role="kv_consumer")
        engine.complete("first", prompt(17))
        assert engine.store.used_blocks == 0
        engine.assert_quiet()

    def test_a_hook_of_the_other_role_is_refused(self) -> None:
        connector = AscendConnector(make_config(), KVConnectorRole.WORKER, make_kv_cache_config(8))
        with pytest.raises(AssertionError, match="scheduler's hook"):
            connector.reset_cache()
