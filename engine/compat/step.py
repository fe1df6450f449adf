"""The worker's side of a step: the hooks that the installed model runner calls, in its order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import copy_kv_blocks
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kvconform.engine.compat.fit import fitting, parameters


def register_kv_caches(config: VllmConfig, caches: Mapping[str, Any], runner: str) -> Any:
    """Hand the KV tensors to the process' transfer agent, as the model runner does.

    Returns:
        What runs the connector's side of each step under the second model runner, else None.
    """
    if runner == "v2":
        from kvconform.engine.compat.second import SecondRunner

        return SecondRunner(config, dict(caches))
    agent = kv_transfer_state.get_kv_transfer_group()
    agent.register_kv_caches(dict(caches))
    agent.set_host_xfer_buffer_ops(copy_kv_blocks)
    return None


class Ran:
    """What the connector's side of a step reported; ``output`` is there when the step is over."""

    output: Any = None


@contextlib.contextmanager
def connector_step(
    second: Any,
    scheduler_output: Any,
    layers: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    deferred: bool = False,
) -> Iterator[Ran]:
    """The life cycle of one step, in a forward context, as the installed runner has it.

    Args:
        second: what :func:`register_kv_caches` returned.
        scheduler_output: the step.
        layers: attention layers by name.
        metadata: attention metadata by layer; None: no forward.
        deferred: saving ends behind the drafter, when all else has been reported.
    """
    context = ForwardContext(
        **fitting(
            ForwardContext,
            no_compile_layers=dict(layers),
            attn_metadata=dict(metadata) if metadata is not None else None,
            slot_mapping={},
            virtual_engine=0,
        )
    )
    ran = Ran()
    with override_forward_context(context):
        if second is None:
            life_cycle = KVConnectorModelRunnerMixin._get_kv_connector_output
            # Until 0.27 nothing is saved in a step without a forward; later there is no choice.
            choice = fitting(
                life_cycle, wait_for_save=metadata is not None, defer_finalize=deferred
            )
            with life_cycle(scheduler_output, **choice) as ran.output:
                yield ran
            if deferred:
                KVConnectorModelRunnerMixin.finalize_kv_connector()
            return
        batch = None
        if metadata is not None:
            names = list(scheduler_output.num_scheduled_tokens)
            batch = SimpleNamespace(
                idx_mapping=torch.arange(len(names), dtype=torch.int32),
                req_ids=names,
                num_tokens=scheduler_output.total_num_scheduled_tokens,
            )
        second.pre_forward(scheduler_output, batch, metadata)
        yield ran
        second.finish_forward()
        ran.output = second.post_forward(scheduler_output.finished_req_ids)


def handle_preemptions(connector: Any, scheduler_output: Any) -> None:
    """What the model runner does before it updates its batch: nothing at all until 0.13."""
    hook = getattr(KVConnectorBase_V1, "handle_preemptions", None)
    if hook is None:
        return
    if "kv_connector_metadata" in parameters(hook):
        connector.handle_preemptions(scheduler_output.kv_connector_metadata)
    elif scheduler_output.preempted_req_ids:  # 0.17 and 0.18 pass the ids, if there are any
        connector.handle_preemptions(scheduler_output.preempted_req_ids)


def calls_layer_hooks(connector: Any) -> bool:
    """Whether attention layers call the connector's hooks in this step."""
    if hasattr(KVConnectorBase_V1, "has_connector_metadata"):
        return connector.has_connector_metadata()
    return True  # 0.11.0 does not ask
