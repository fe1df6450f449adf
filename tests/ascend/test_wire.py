"""Messages and shards as bytes: what survives, and what is refused."""

from __future__ import annotations

import pytest
import torch

from kvconform.connectors.ascend.wire import Codec, Message, WireError, pack, unpack


class TestWire:
    CODEC = Codec("secret", 1000)
    MESSAGE = Message(
        "write",
        number=7,
        sender="me",
        title="yours",
        holder="job/1 ü",
        rank=1,
        keys=(b"\x00\xff", b"key"),
        blocks=(0, 7),
        layout="0123",
        holders=("job/1 ü", "job/2"),
        answer=(0, 3),
        reason="none",
        shards=(b"\x00" * 10, b"shard"),
    )

    @pytest.mark.parametrize("message", [MESSAGE, Message("beat")])
    def test_a_message_survives(self, message: Message) -> None:
        assert self.CODEC.decode(self.CODEC.encode(message)) == message

    @pytest.mark.parametrize(
        "frames",
        [[], [b""], [b"GET / HTTP/1.1\r\n\r\n"], [b"KVS"], [b"KVS\x01" + b"x" * 28], [b"", b"KVS"]],
    )
    def test_garbage_is_refused(self, frames: list[bytes]) -> None:
        with pytest.raises(WireError, match="not a message of this protocol"):
            self.CODEC.decode(frames)

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"no json",
            b"[]",
            b"3",
            b"[" * 900,
            b'{"shards":[]}',
            b'{"op":3,"shards":[]}',
            b'{"op":"pin","shards":[],"number":-1}',
            b'{"op":"pin","shards":[],"rank":true}',
            b'{"op":"pin","shards":[],"keys":"ab"}',
            b'{"op":"pin","shards":[],"keys":["xy"]}',
            b'{"op":"pin","shards":[],"other":1}',
            b'{"op":"pin","shards":[1]}',
            b'{"op":"pin"}',
        ],
    )
    def test_a_header_without_meaning_is_refused(self, header: bytes) -> None:
        frame = self.CODEC._seal(header)
        with pytest.raises(WireError, match="malformed header"):
            self.CODEC.decode([frame])

    def test_another_token_is_refused(self) -> None:
        with pytest.raises(WireError, match="another token"):
            Codec("Secret", 1000).decode(self.CODEC.encode(self.MESSAGE))

    def test_an_altered_header_is_refused(self) -> None:
        head, *shards = self.CODEC.encode(self.MESSAGE)
        with pytest.raises(WireError, match="another token"):
            self.CODEC.decode([bytes(head).replace(b"job/1", b"job/3"), *shards])

    def test_another_version_is_refused(self) -> None:
        head, *shards = self.CODEC.encode(self.MESSAGE)
        with pytest.raises(WireError, match="protocol version 2, not 3"):
            self.CODEC.decode([bytes(head[:3]) + b"\x02" + bytes(head[4:]), *shards])

    def test_shards_are_those_that_the_header_tells_of(self) -> None:
        head, first, _ = self.CODEC.encode(self.MESSAGE)
        for shards in ([first], [first, b"shar"], [first, b"shard", b""]):
            with pytest.raises(WireError, match="not the shards"):
                self.CODEC.decode([head, *shards])

    def test_what_is_too_large_is_neither_sent_nor_read(self) -> None:
        roomy = Codec("secret", 10_000)
        for large in (
            Message("write", keys=(b"k",), shards=(b"x" * 501, b"x" * 500)),
            Message("lookup", keys=(b"k" * 600,)),
        ):
            with pytest.raises(WireError, match="larger than 1000 bytes"):
                self.CODEC.encode(large)
            with pytest.raises(WireError, match="larger than 1000 bytes"):
                self.CODEC.decode(roomy.encode(large))

    def test_a_shard_survives(self) -> None:
        shard = torch.arange(6, dtype=torch.uint8)
        frame = pack(shard)
        assert bytes(frame) == bytes(range(6))
        assert torch.equal(unpack(bytearray(frame)), shard)

    def test_nothing_is_no_shard(self) -> None:
        with pytest.raises(WireError, match="an empty shard"):
            unpack(bytearray())
