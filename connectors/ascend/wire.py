"""What crosses between processes: messages, and shards of KV in them.

A message is a list of ZeroMQ frames. The first is a fixed preamble (a magic number, the version,
and the header's MAC) and the header in JSON; each other frame is one block's shard. So nothing that
arrives is ever executed, and what arrives of KV is used where it lies.

The MAC is an HMAC under the shared token: it proves to each side that the other knows the token,
which itself never crosses. It does not cover the shards, nor does it hide anything or keep old
messages from being repeated: whoever can write on the wire has to be kept away from it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvconform.connectors.ascend.store import Shard

VERSION = 3
_MAGIC = b"KVS"
_PREAMBLE = struct.Struct("!3sB32s")

Buffer = bytes | bytearray | memoryview


class WireError(Exception):
    """What arrived, or was to be sent, is no message that the other side may have sent."""


@dataclass(frozen=True)
class Message:
    """A request, of a store or of an engine that offers, or its answer.

    Attributes:
        op: what is asked for; ``ok`` or ``refused`` in an answer.
        number: of the request among those of its sender; its answer has the same. 0 in a refusal of
            something whose number could not be read.
        sender: names the client among all that ever were.
        title: whom the client means, see ``store_title`` and ``offers_title``.
        holder: in whose name, see ``store``; or which offer.
        rank: whose shards.
        keys: blocks of the store, in the order of ``shards`` where there are some.
        blocks: blocks of a device.
        layout: of the shards that are moved, see ``Device.layout``.
        holders: all that the client holds.
        answer: what the other end says, by ``op`` of the request.
        reason: of a refusal.
        session: by which the asker can read with Mooncake, or by which the answer is to be read.
        shards: see ``pack``.
    """

    op: str
    number: int = 0
    sender: str = ""
    title: str = ""
    holder: str = ""
    rank: int = 0
    keys: tuple[bytes, ...] = ()
    blocks: tuple[int, ...] = ()
    layout: str = ""
    holders: tuple[str, ...] = ()
    answer: tuple[int, ...] = ()
    reason: str = ""
    session: str = ""
    shards: tuple[Buffer, ...] = ()


def store_title(name: str, world_size: int) -> str:
    """What clients and server must agree on: engines that differ in it cannot share KV."""
    return f"the store {name!r} of {world_size} ranks"


def offers_title(engine_id: str, instance: str) -> str:
    """Likewise: an engine that comes back under its old name has none of its old offers."""
    return f"the offers of {engine_id!r}, instance {instance!r}"


class Codec:
    """Messages to frames and back.

    Args:
        token: shared by both sides.
        max_bytes: most that the shards of a message have together, and that its header has.
    """

    def __init__(self, token: str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_frame = max_bytes + _PREAMBLE.size
        self._token = token.encode()

    def encode(self, message: Message) -> list[Buffer]:
        """The frames of a message.

        Raises:
            WireError: it is too large.
        """
        fields = {name: value for name, value in vars(message).items() if value}
        fields["keys"] = [key.hex() for key in message.keys]
        fields["shards"] = [len(shard) for shard in message.shards]
        header = json.dumps(fields, separators=(",", ":")).encode()
        frames = [self._seal(header), *message.shards]
        self._check_size(frames)
        return frames

    def decode(self, frames: Sequence[Buffer]) -> Message:
        """The message that arrived as these frames.

        Raises:
            WireError: it is none, or too large, or from a peer with another version or token.
        """
        self._check_size(frames)
        head = bytes(frames[0]) if frames else b""
        if len(head) < _PREAMBLE.size or not head.startswith(_MAGIC):
            raise WireError("not a message of this protocol")
        _, version, mac = _PREAMBLE.unpack_from(head)
        if version != VERSION:
            raise WireError(f"protocol version {version}, not {VERSION}")
        header = head[_PREAMBLE.size :]
        if not hmac.compare_digest(mac, self._mac(header)):
            raise WireError("another token")
        shards = tuple(frames[1:])
        try:
            fields = {name: _READ[name](value) for name, value in json.loads(header).items()}
            if fields.pop("shards") != tuple(len(shard) for shard in shards):
                raise ValueError("not the shards that the header tells of")
            return Message(**fields, shards=shards)
        # A JSON text that nests too deep is a RecursionError.
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WireError(f"malformed header: {error}") from error

    def _seal(self, header: bytes) -> bytes:
        return _PREAMBLE.pack(_MAGIC, VERSION, self._mac(header)) + header

    def _mac(self, header: bytes) -> bytes:
        return hmac.digest(self._token, bytes([VERSION]) + header, hashlib.sha256)

    def _check_size(self, frames: Sequence[Buffer]) -> None:
        head, *shards = (len(frame) for frame in frames) if frames else [0]
        if head > self.max_frame or sum(shards) > self.max_bytes:
            raise WireError(f"larger than {self.max_bytes} bytes")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _list(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        return tuple(read(item) for item in value)

    return read_all


_READ: Mapping[str, Callable[[Any], Any]] = {
    "op": _text,
    "number": _count,
    "sender": _text,
    "title": _text,
    "holder": _text,
    "rank": _count,
    "keys": _list(bytes.fromhex),
    "blocks": _list(_count),
    "layout": _text,
    "holders": _list(_text),
    "answer": _list(_count),
    "reason": _text,
    "session": _text,
    "shards": _list(_count),
}
"""How each field of a header is read; a header has no others."""


# -- shards ---------------------------------------------------------------------------------------


def pack(shard: Shard) -> memoryview:
    """A shard as a frame, in its own memory."""
    return memoryview(shard.numpy())


def unpack(frame: Buffer) -> Shard:
    """A frame as a shard, in its own memory.

    Raises:
        WireError: it is empty.
    """
    if not len(frame):
        raise WireError("an empty shard")
    return torch.frombuffer(frame, dtype=torch.uint8)
