"""What a worker answers to a step, and how the answers of several become one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    DraftTokenIds,
    KVConnectorOutput,
    ModelRunnerOutput,
)

from kvconform.engine.compat.fit import fitting, parameters, required

_NOTHING: dict[str, Any] = {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}
"""What has to be said until 0.13 when there is nothing to say."""

_FILLED = {name: value for name, value in _NOTHING.items() if name in required(ModelRunnerOutput)}

_IN_ARRAYS = "ndarray" in str(ModelRunnerOutput.__annotations__["sampled_token_ids"])
"""Whether the tokens of a request are an array (0.11.2) or a list."""


def runner_output(
    request_ids: list[str], sampled: list[list[int]], connector_output: Any
) -> ModelRunnerOutput:
    """A step's output with a forward."""
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={r: i for i, r in enumerate(request_ids)},
        sampled_token_ids=[np.array(t, dtype=np.int64) for t in sampled] if _IN_ARRAYS else sampled,
        kv_connector_output=connector_output,
        **_FILLED,
    )


def no_forward_output(connector_output: Any) -> ModelRunnerOutput:
    """A step's output without a forward."""
    if hasattr(ModelRunnerOutput, "with_kv_conn_output_only"):
        return ModelRunnerOutput.with_kv_conn_output_only(connector_output)
    # As the mixin writes it out until 0.20.
    output = copy.copy(EMPTY_MODEL_RUNNER_OUTPUT)
    if hasattr(connector_output, "is_empty"):
        empty = connector_output.is_empty()
    else:
        empty = not (connector_output.finished_sending or connector_output.finished_recving)
    output.kv_connector_output = None if empty else connector_output
    return output


def draft_token_ids(proposed: Mapping[str, list[int]]) -> DraftTokenIds:
    """A drafter's proposals, by request."""
    return DraftTokenIds(list(proposed), list(proposed.values()))


def world_output(connector: Any, world_size: int) -> KVOutputAggregator | None:
    """The installed aggregator; vLLM aggregates only for more than one rank."""
    if world_size == 1:
        return None
    if hasattr(KVOutputAggregator, "from_connector"):
        return KVOutputAggregator.from_connector(connector, world_size)
    return KVOutputAggregator(connector.get_finished_count() or world_size)


def awaited(aggregator: KVOutputAggregator) -> Mapping[str, str]:
    """Requests of which an aggregator expects more reports, and what it waits for."""
    waits: dict[str, str] = {}
    for direction in ("recv", "send"):
        for name, count in getattr(aggregator, f"_{direction}_remaining_count").items():
            waits[name] = f"{direction}: {count} reports more expected"
    for name in getattr(aggregator, "_failed_recving_pending", ()):
        waits[name] = "failed_recving without finished_recving"
    return waits


class Report(NamedTuple):
    """What a connector reported in a step, as far as the installed vLLM can be told.

    Attributes:
        recving: requests whose load has ended.
        sending: requests whose save has ended.
        invalid: blocks that a load could not fill.
        failed: requests whose load has failed.
    """

    recving: frozenset[str] = frozenset()
    sending: frozenset[str] = frozenset()
    invalid: frozenset[int] = frozenset()
    failed: frozenset[str] = frozenset()

    def and_then(self, more: Report) -> Report:
        """What was reported in both."""
        return Report(
            self.recving | more.recving,
            self.sending | more.sending,
            self.invalid | more.invalid,
            self.failed | more.failed,
        )


def reported(output: KVConnectorOutput | None) -> Report:
    """The report in a worker's output, or in that of all of them."""
    if output is None:
        return Report()
    return Report(
        frozenset(output.finished_recving or ()),
        frozenset(output.finished_sending or ()),
        frozenset(getattr(output, "invalid_block_ids", None) or ()),
        frozenset(getattr(output, "failed_recving", None) or ()),
    )


def report_of(answer: Any) -> Report:
    """The report in the answer of ``get_finished``, or of ``get_transfer_results``."""
    if isinstance(answer, tuple):
        sending, recving = answer
        return Report(frozenset(recving or ()), frozenset(sending or ()))
    return Report(
        frozenset(answer.finished_recving),
        frozenset(answer.finished_sending),
        failed=frozenset(answer.failed_recving),
    )


def aggregated(aggregator: KVOutputAggregator, reports: Sequence[Report]) -> Report:
    """What an aggregator of its own makes of the ranks' reports."""
    outputs = []
    for report in reports:
        said = fitting(
            KVConnectorOutput,
            finished_recving=set(report.recving),
            finished_sending=set(report.sending),
            invalid_block_ids=set(report.invalid),
            failed_recving=set(report.failed),
        )
        # A copy: the aggregator writes into it, and vLLM has one for all that say nothing.
        outputs.append(copy.copy(no_forward_output(KVConnectorOutput(**said))))
    return reported(aggregator.aggregate(outputs, 0).kv_connector_output)


REPORTS_FAILED_LOADS = "invalid_block_ids" in parameters(KVConnectorOutput)
"""Whether a connector can say that a load has failed (not in 0.11.0)."""

NAMES_FAILED_REQUESTS = "failed_recving" in parameters(KVConnectorOutput)
"""Whether it can say so with several KV groups: of a request, not of blocks (since 0.32)."""
