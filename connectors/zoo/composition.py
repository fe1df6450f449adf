"""Compositions that are wrong, and children that are wrong in one.

The first are vLLM's MultiConnector with a mistake, over children that are right. The second are
the reference connector with a mistake that needs a sibling to show.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


# -- compositions ----------------------------------------------------------------------------------


class KeepsTheCount(MultiConnector):
    """How many sends are owed stays in the scheduler half; the workers report the first. B-052."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        metadata.extra_async_saves = None
        return metadata


class Swaps(MultiConnector):
    """What was sent is reported as received, and the other way round. B-053."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        sent, received = results.finished_sending, results.finished_recving
        results.finished_sending, results.finished_recving = received, sent
        return results


class CountsByItself(MultiConnector):
    """How many reports a child sends for a request is not passed on. B-046."""

    def get_finished_count(self) -> int | None:
        return None


class EnginesOfTheirOwn(MultiConnector):
    """Each half of each child believes in another name of its engine. B-054."""

    _numbers = itertools.count()

    @classmethod
    def _get_connector_classes_and_configs(cls, vllm_config: Any) -> Any:
        found = super()._get_connector_classes_and_configs(vllm_config)
        for _, config in found:
            assert config.kv_transfer_config is not None
            config.kv_transfer_config.engine_id += f"_{next(cls._numbers)}"
        return found


class OneGroup(MultiConnector):
    """Children that know groups are asked without them when a request ends. B-055."""

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> Finish:
        return self.request_finished(request, block_ids[0])


class FirstLoads(MultiConnector):
    """The first child is told to load, whoever has promised."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0]:
            self._requests_to_connector[request.request_id] = 0
        return answer


class AllLoad(MultiConnector):
    """All children are told to load what one has promised. B-057, on the other side."""

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        for child in self._connectors:
            child.update_state_after_alloc(request, blocks, num_external_tokens)


class LastWord(MultiConnector):
    """Whether blocks are kept is what the last child says."""

    def request_finished(self, request: Request, blocks: list[int]) -> Finish:
        answers = [child.request_finished(request, blocks) for child in self._connectors]
        self._requests_to_connector.pop(request.request_id, None)
        return answers[-1]

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> Finish:
        return self.request_finished(request, block_ids[0])


# -- children that the compositions above are wrong with -------------------------------------------


class _FirstRankSpeaks(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        finished = super().get_finished(finished_req_ids)
        return (None, None) if self.rank else finished


class FirstRankSpeaks(AscendConnector):
    """One rank reports for all, as connectors do whose ranks agree among themselves."""

    worker_half_class = _FirstRankSpeaks

    def get_finished_count(self) -> int | None:
        return 1


class KnowsGroups(AscendConnector):
    """It has the finish hook for groups, and not the one without."""

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return KVConnectorBase_V1.request_finished(self, request, block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> Finish:
        return self.scheduler.request_finished(request, block_ids[0])


# -- wrong children --------------------------------------------------------------------------------


class _LoadsAllTheSame(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        promised, life.promised = getattr(life, "promised", 0), 0  # type: ignore[attr-defined]
        super().update_state_after_alloc(request, blocks, num_external_tokens or promised)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        life = self._lives[request.request_id]
        life.promised = (answer[0] or 0) if self.mine(life.pulls) else 0  # type: ignore[attr-defined]
        return answer

    def mine(self, pulls: bool) -> bool:
        """Whether the mistake is made in such a load."""
        return True


class LoadsAllTheSame(AscendConnector):
    """Loads what it has promised, though it is told to load nothing. KVC-805; B-057."""

    scheduler_half_class = _LoadsAllTheSame


class _PullsAllTheSame(_LoadsAllTheSame):
    def mine(self, pulls: bool) -> bool:
        return pulls


class PullsAllTheSame(AscendConnector):
    """Pulls from the engine that prefilled, though a store has served the request. B-059."""

    scheduler_half_class = _PullsAllTheSame


class _NotChosenNotSaved(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        life = self._lives[request.request_id]
        if not num_external_tokens and not life.in_background:
            life.epoch = -1  # the mistake: it is somebody else's, and is not saved


class NotChosenNotSaved(AscendConnector):
    """Saves only what it was chosen to load in part. KVC-505; B-056."""

    scheduler_half_class = _NotChosenNotSaved


class _ReportsAnyway(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        if life.in_background and not num_external_tokens:
            life.in_background = False  # the mistake: a load of nothing, which ends like any other
            self._plan(self._new_id("load"), request, life, "load", (), ())
            return
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            life.in_background = False


class ReportsAnyway(AscendConnector):
    """Reports what it had promised as received, though it was told to load nothing. B-058."""

    scheduler_half_class = _ReportsAnyway
