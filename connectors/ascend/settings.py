"""What the connector is configured with, read and checked once.

The keys of ``kv_connector_extra_config``:

==================  =======  =====================================================================
key                 default  meaning
==================  =======  =====================================================================
``store``           engine   name of the store; engines of one process that name the same share it
``capacity_blocks`` 1024     KV blocks that the store holds
``async_min_blocks`` 2       loads of at least so many blocks run while the request waits; shorter
                             ones are done before the forward
``transport``       none     ``package.module:factory``, see ``transport.make_transport``
``staging_blocks``  64       KV blocks that fit in each of a rank's four pinned buffers, see ``npu``
``verify``          false    keep a CRC-32 of each shard in the store, and load none that has
                             changed since, at the cost of reading each once more
``offer_seconds``   60       how long an engine that prefills keeps a request's blocks for the one
                             that decodes
``offers``          true     false: requests do not pass between engines here. For a child of a
                             MultiConnector whose sibling sees to that
``offer_address``   none     where engines of other processes read what this one offers; see below
``mooncake``        none     protocol of Mooncake's ``TransferEngine`` (``tcp``, ``rdma``), by which
                             engines of other processes then read what this one offers; see below
``address``         none     the store is in another process, at this ZeroMQ address; see below
==================  =======  =====================================================================

``async_min_blocks = 1`` puts every load in the background. Prefer it where loads may fail: vLLM (up
to 0.33 at least) recovers from a failed background load, but after a failed one before the forward
it may serve KV that was never loaded (if the request is aborted then), and under async scheduling
it miscounts the request's tokens. With several KV cache groups all loads run in the background.

With an ``offer_address`` (``tcp://127.0.0.1:7000``, ``ipc:///run/kv-prefill``) each rank of an
engine that prefills serves its offers itself, see ``peers``: rank r at port 7000 + r, or at the
path with ``.r`` behind it; all on one machine. The engine that decodes learns the address from the
request, and needs nothing but the ``token``. Engines of one process can do without. Data-parallel
engines offer at addresses of their own.

With ``mooncake`` at both ends KV passes between engines through Mooncake, see the module of that
name, at the host of ``offer_address`` or at ``mooncake_host``; it needs ``allow_remote``. With it
at one end only, KV goes in messages as without it.

With an ``address`` (``tcp://127.0.0.1:7777``, ``ipc:///run/kv-store``) scheduler and workers reach
the store through ZeroMQ, see ``remote``; several ranks need that. Engines over one store name the
same ``store``; what they find there is of their own model and layout only. With either, these keys
count too:

=====================  ========  ==================================================================
key                    default   meaning
=====================  ========  ==================================================================
``token``              (needed)  secret that all who talk to each other share
``serve``              false     the engine's scheduler serves the store itself, unless another has
                                 begun to; else it is ``python -m …ascend.server``
``allow_remote``       false     may serve at an address that other machines can reach, and pull
                                 from one
``answer_ms``          5         the scheduler waits at most so long for an answer of the store
``transfer_seconds``   30        a transfer has ended after so long, failed if need be
``lease_seconds``      10        a client that the store has not heard for so long has died, and
                                 what it holds is given back; likewise the store, for a client
``max_message_bytes``  64 MiB    larger messages are refused; a block's shard has to fit in one
=====================  ========  ==================================================================
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kvconform.connectors.ascend.groups import NAMES_FAILED_REQUESTS, Groups, check_loads

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True)
class Endpoint:
    """Where another process answers, or this one, and on which terms; see the module.

    Attributes:
        address: as ZeroMQ writes it.
        token: see the module. Not shown when this is printed.
        allow_remote: see the module.
        transfer_seconds: see the module.
        lease_seconds: see the module.
        max_message_bytes: see the module.
    """

    address: str
    token: str = field(repr=False)
    allow_remote: bool = False
    transfer_seconds: float = 30.0
    lease_seconds: float = 10.0
    max_message_bytes: int = 64 << 20

    def of_rank(self, rank: int, address: str | None = None) -> Endpoint:
        """Where one rank answers, of an engine that has this ``address``, or another one.

        Raises:
            ValueError: it has no ranks.
        """
        base = self.address if address is None else str(address)
        place, _, port = base.rpartition(":")
        if base.startswith("ipc://"):
            mine = f"{base}.{rank}"
        elif base.startswith("tcp://") and port.isdecimal() and 0 < int(port) + rank < 1 << 16:
            mine = f"{place}:{int(port) + rank}"
        else:
            raise ValueError(f"rank {rank} needs ipc:///PATH or tcp://HOST:PORT, not {base!r}")
        return replace(self, address=mine)


@dataclass(frozen=True)
class Mooncake:
    """How this engine is reached by Mooncake's ``TransferEngine``.

    Attributes:
        protocol: Mooncake's name for it.
        host: this machine's name for others.
    """

    protocol: str
    host: str = "127.0.0.1"

    @classmethod
    def read(cls, extra: Mapping[str, Any], peers: Endpoint | None) -> Mooncake | None:
        """What a ``kv_connector_extra_config`` says of it.

        Raises:
            ValueError: something is missing, or has no meaning.
        """
        if extra.get("mooncake") is None:
            return None
        if peers is None:
            raise ValueError("kv_connector_extra_config['mooncake'] needs a 'token'")
        if not peers.allow_remote:
            raise ValueError(
                "kv_connector_extra_config['mooncake'] needs 'allow_remote': its ports are open to "
                "every machine, and ask for no token"
            )
        if extra["mooncake"] not in ("tcp", "rdma"):  # Mooncake takes others for "tcp"
            raise ValueError(
                "kv_connector_extra_config['mooncake'] must be 'tcp' or 'rdma', got "
                f"{extra['mooncake']!r}"
            )
        host = extra.get("mooncake_host") or urlsplit(peers.address).hostname or cls.host
        return cls(str(extra["mooncake"]), str(host))


@dataclass(frozen=True)
class RemoteStore(Endpoint):
    """Where a store in another process is, and what is expected of it; see the module.

    Attributes:
        serve: see the module.
        answer_seconds: ``answer_ms``.
    """

    serve: bool = False
    answer_seconds: float = 0.005

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> RemoteStore | None:
        """The remote store that a ``kv_connector_extra_config`` names, if it names one.

        Raises:
            ValueError: something is missing, or has no meaning.
        """
        if extra.get("address") is None:
            return None
        if extra.get("transport") is not None:
            raise ValueError("kv_connector_extra_config: 'address' and 'transport' exclude another")
        return cls(
            address=str(extra["address"]),
            **_terms(extra, "address"),
            serve=_flag(extra, "serve"),
            answer_seconds=_positive(extra, "answer_ms", 5.0) / 1000,
        )


def _read_peers(extra: Mapping[str, Any], ranks: int, offers: bool) -> Endpoint | None:
    """How ranks of different engines talk to each other; None: they do not.

    Raises:
        ValueError: something is missing, or has no meaning.
    """
    address = extra.get("offer_address") if offers else None
    if address is None and not extra.get("token"):
        return None
    peers = Endpoint(str(address or ""), **_terms(extra, "offer_address"))
    if address is not None:
        peers.of_rank(ranks - 1)
        if urlsplit(peers.address).hostname in ("*", "0.0.0.0", "::"):
            raise ValueError(f"others cannot find {peers.address!r}: name this machine's address")
    return peers


def _terms(extra: Mapping[str, Any], needed_for: str) -> dict[str, Any]:
    """The fields of an ``Endpoint`` but for its address."""
    if not extra.get("token"):
        raise ValueError(f"kv_connector_extra_config[{needed_for!r}] needs a 'token'")
    return {
        "token": str(extra["token"]),
        "allow_remote": _flag(extra, "allow_remote"),
        "transfer_seconds": _positive(extra, "transfer_seconds", Endpoint.transfer_seconds),
        "lease_seconds": _positive(extra, "lease_seconds", Endpoint.lease_seconds),
        "max_message_bytes": _count(extra, "max_message_bytes", Endpoint.max_message_bytes),
    }


@dataclass(frozen=True)
class Settings:
    """One engine's settings; equal in its scheduler and in all its workers.

    Attributes:
        engine_id: names the engine in the store. Engines over one store need different ones;
            vLLM's default is a fresh UUID.
        block_size: tokens per KV block, and per block hash.
        num_blocks: KV blocks of the device, or None when vLLM does not say.
        world_size: ranks of all pipeline stages, each of which holds a shard of every block.
        may_load: whether the engine's role consumes KV.
        may_save: whether it produces KV.
        async_min_blocks: see the module.
        store: see the module.
        capacity_blocks: see the module.
        transport: see the module.
        offer_seconds: see the module.
        offers: see the module.
        remote: the store is in another process; None: in this one.
        peers: how its ranks talk to those of other engines, and at which address they offer, or
            at none ("").
        mooncake: by which its ranks read from each other; None: in messages.
        verify: see the module.
        staging_blocks: see the module.
        layout: names what KV depends on beside a request: model, data type, block size.
        announces: vLLM publishes KV events (``--kv-events-config``).
        instance: tells the engine from one of the same name before it.
        windows: per KV cache group the width of its window in tokens, 0 for full attention.
    """

    engine_id: str
    block_size: int
    num_blocks: int | None
    world_size: int
    may_load: bool
    may_save: bool
    async_min_blocks: int
    store: str
    capacity_blocks: int
    transport: str | None
    offer_seconds: float = 60.0
    offers: bool = True
    remote: RemoteStore | None = None
    peers: Endpoint | None = None
    mooncake: Mooncake | None = None
    verify: bool = False
    staging_blocks: int = 64
    layout: bytes = field(default=b"", compare=False)
    announces: bool = False
    instance: str = field(default="", compare=False)
    windows: tuple[int, ...] = (0,)

    @property
    def groups(self) -> Groups:
        """The KV cache groups."""
        return Groups(self.block_size, self.windows)

    @property
    def offer_address(self) -> str | None:
        """See the module."""
        return (self.peers.address or None) if self.peers is not None else None

    @classmethod
    def read(cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> Settings:
        """The settings of an engine.

        Raises:
            ValueError: the engine is set up in a way that this connector does not serve.
        """
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        if transfer is None:
            raise ValueError("AscendConnector needs a kv_transfer_config")
        windows = _check_served(vllm_config, kv_cache_config)
        several = len(windows) > 1
        extra = transfer.kv_connector_extra_config
        engine_id = str(transfer.engine_id)
        transport, events = extra.get("transport"), vllm_config.kv_events_config
        world_size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        peers = _read_peers(extra, world_size, transfer.is_kv_producer)
        return cls(
            engine_id=engine_id,
            block_size=vllm_config.cache_config.block_size,
            num_blocks=kv_cache_config.num_blocks if kv_cache_config is not None else None,
            world_size=world_size,
            may_load=transfer.is_kv_consumer,
            may_save=transfer.is_kv_producer,
            # Of a load before the forward vLLM cannot be told that it has failed: see ``groups``.
            async_min_blocks=1 if several else _count(extra, "async_min_blocks", 2),
            store=str(extra.get("store", f"engine {engine_id}")),
            capacity_blocks=_count(extra, "capacity_blocks", 1024),
            transport=str(transport) if transport is not None else None,
            offer_seconds=_positive(extra, "offer_seconds", cls.offer_seconds),
            offers=_flag(extra, "offers", default=True) and (NAMES_FAILED_REQUESTS or not several),
            remote=RemoteStore.read(extra),
            peers=peers,
            mooncake=Mooncake.read(extra, peers),
            verify=_flag(extra, "verify"),
            staging_blocks=_count(extra, "staging_blocks", cls.staging_blocks),
            layout=_layout(vllm_config),
            announces=events is not None and events.enable_kv_cache_events,
            instance=vllm_config.instance_id,
            windows=windows,
        )


def _layout(vllm_config: VllmConfig) -> bytes:
    """Names the model and how its KV is laid out, in 8 bytes; the same in every process."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parts = (model.model, model.revision, model.dtype, cache.cache_dtype, cache.block_size)
    return hashlib.sha256(repr(parts).encode()).digest()[:8]


def _count(extra: Mapping[str, Any], key: str, default: int) -> int:
    value = int(extra.get(key, default))
    if value < 1:
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be at least 1, got {value}")
    return value


def _positive(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = float(extra.get(key, default))
    if not 0 < value < math.inf:
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be positive, got {value}")
    return value


def _flag(extra: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = extra.get(key, default)
    if not isinstance(value, bool):  # "false" is true
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be true or false, got {value!r}")
    return value


def _check_served(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
) -> tuple[int, ...]:
    """Refuse at start-up what would corrupt KV later; the window of each KV cache group."""
    parallel = vllm_config.parallel_config
    for name in (
        "prefill_context_parallel_size",  # a block then holds a rank's share of more tokens
        "decode_context_parallel_size",
    ):
        if getattr(parallel, name, 1) != 1:
            raise ValueError(f"AscendConnector does not serve {name}={getattr(parallel, name)}")
    cache = vllm_config.cache_config
    block_size = cache.block_size
    # Keys are block hashes, one for each block. Releases differ in where they say how many tokens
    # a hash covers, and older ones know no other number than the block size.
    for where, name in (
        (cache, "prefix_match_unit"),
        (cache, "hash_block_size"),
        (kv_cache_config, "hash_block_size"),
    ):
        tokens = getattr(where, name, None)
        if tokens not in (None, block_size):
            raise ValueError(
                f"AscendConnector needs one block hash per block of {block_size} tokens, "
                f"but {name} is {tokens}"
            )
    if kv_cache_config is None:
        return (0,)
    specs = [_spec(group.kv_cache_spec, block_size) for group in kv_cache_config.kv_cache_groups]
    if not specs or isinstance(specs[0], SlidingWindowSpec):
        raise ValueError("AscendConnector needs full attention in the first KV cache group")
    if len(specs) > 1:
        check_loads(vllm_config)
    return tuple(one.sliding_window if isinstance(one, SlidingWindowSpec) else 0 for one in specs)


def _spec(spec: Any, block_size: int) -> FullAttentionSpec | SlidingWindowSpec:
    """What the layers of a group have in common, if it is served."""
    # A group of layers that differ in size only; the name is absent from other groups.
    specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
    for one in specs:
        # Other kinds give blocks back, or hold a state, by rules of their own.
        kinds = FullAttentionSpec | SlidingWindowSpec
        if not isinstance(one, kinds) or getattr(one, "rswa_window", None):
            raise ValueError(
                "AscendConnector serves full attention and sliding windows, not "
                f"{type(one).__name__}"
            )
        if getattr(one, "extra_retained_tokens", 0):
            raise ValueError("AscendConnector does not serve windows with extra_retained_tokens")
        if one.block_size != block_size:
            raise ValueError(
                f"AscendConnector needs one block size, but cache_config says {block_size} and "
                f"the KV cache group {one.block_size}"
            )
    if len({getattr(one, "sliding_window", None) for one in specs}) > 1:
        raise ValueError("AscendConnector needs one window in each KV cache group")
    return specs[0]
