"""What leaves an engine to be looked at: statistics for a log, KV events for routers."""

from __future__ import annotations

from typing import Any

import msgspec
from vllm.config import KVEventsConfig, VllmConfig
from vllm.distributed.kv_events import (
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventPublisher,
    EventPublisherFactory,
    KVCacheEvent,
    KVEventBatch,
)
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorLogging,
    KVConnectorStats,
)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

try:
    from vllm.distributed.kv_events import KVConnectorKVEvents
except ImportError:  # 0.11

    class KVConnectorKVEvents:  # type: ignore[no-redef]
        """No object is one."""


WorkerMeta: type = getattr(base, "KVConnectorWorkerMetadata", type("None", (), {}))
"""What workers tell the scheduler half; until 0.17 no object is one."""

HANDED: dict[str, type] = {
    "statistics": KVConnectorStats,
    "worker metadata": WorkerMeta,
    "events": KVConnectorKVEvents,
}
"""Objects that a hook hands to vLLM, and whose methods vLLM calls."""

_PUBLISHER = "kvconform"


class Publisher(EventPublisher):
    """Publishes to nobody: what the connector's events are worth is seen when they are taken."""

    def __init__(self, data_parallel_rank: int = 0, **_: Any) -> None:
        super().__init__(data_parallel_rank)

    def publish(self, events: EventBatch) -> None:
        """Nobody listens."""

    def shutdown(self) -> None:
        """There is nothing to stop."""


def publish_events(config: VllmConfig) -> None:
    """Turn KV events on: most connectors have none otherwise."""
    if _PUBLISHER not in EventPublisherFactory._registry:
        EventPublisherFactory.register_publisher(_PUBLISHER, Publisher)
    events = KVEventsConfig(enable_kv_cache_events=True)
    # Not one of those that the constructor takes, but the factory knows it.
    object.__setattr__(events, "publisher", _PUBLISHER)
    config.kv_events_config = events


_EVENTS = msgspec.msgpack.Decoder(KVEventBatch)
_TO_WIRE = msgspec.msgpack.Encoder()


def received_event(event: Any) -> KVCacheEvent:
    """A KV event as it comes to a subscriber (raises what the way there raises)."""
    batch = KVEventBatch(ts=0.0, events=[event])
    received: KVCacheEvent = _EVENTS.decode(_TO_WIRE.encode(batch)).events[0]
    return received


def tells_events(connector: Any) -> bool:
    """Whether a connector may have KV events."""
    return type(connector).take_events is not base.KVConnectorBase_V1.take_events


def is_event(event: Any) -> bool:
    """Whether it is one of vLLM's KV events."""
    return isinstance(event, KVCacheEvent)


def stored(event: Any) -> bool:
    """Whether an event says that blocks are there."""
    return isinstance(event, BlockStored)


def removed(event: Any) -> bool:
    """Whether an event says that blocks are there no longer."""
    return isinstance(event, BlockRemoved)


def names_of(block_hash: Any) -> tuple[Any, ...]:
    """What a block may be called in an event: vLLM's name for it, or its hash."""
    return maybe_convert_block_hash(block_hash), bytes(block_hash)


class FrontEnd:
    """The process that gets the engine's outputs, as far as it logs statistics.

    Args:
        config: the engine's.
    """

    def __init__(self, config: VllmConfig) -> None:
        self._encoder = MsgpackEncoder()
        self._decoder = MsgpackDecoder(EngineCoreOutputs)
        self._logging = KVConnectorLogging(config.kv_transfer_config)

    def receive(self, stats: Any) -> bool:
        """Take in the statistics of a step; whether the connector has said anything in them."""
        if stats is None or not stats.kv_connector_stats:
            return False
        sent = self._encoder.encode(EngineCoreOutputs(scheduler_stats=stats))
        self._logging.observe(self._decoder.decode(sent).scheduler_stats.kv_connector_stats)
        return True

    def log(self) -> Any:
        """Write the log's next line; the numbers in it, or None where there are none."""
        gathered = self._logging.transfer_stats_accumulator
        if not gathered or gathered.is_empty():
            return None
        numbers = gathered.reduce()
        self._logging.log(lambda *_: None)
        return numbers
