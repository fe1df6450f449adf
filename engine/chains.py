"""Which block hash stands for what: the requests of a run, block by block, as vLLM names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvconform.engine import compat


@dataclass(slots=True)
class Block:
    """A block of some requests' tokens.

    Attributes:
        parents: what the block before it may be called; empty: it is the first.
        tokens: its tokens.
        computed: some request has come so far.
        of: requests that have it.
    """

    parents: tuple[Any, ...]
    tokens: tuple[int, ...]
    computed: bool = False
    of: set[str] = field(default_factory=set)


class Chains:
    """The blocks of all requests of one run, over all its engines."""

    def __init__(self) -> None:
        self._blocks: dict[Any, Block] = {}

    def note(self, request: Any, block_size: int) -> None:
        """A request has come as far as it says of itself."""
        before: tuple[Any, ...] = ()
        for index, block_hash in enumerate(request.block_hashes):
            names = compat.names_of(block_hash)
            block = self._blocks.get(names[0])
            if block is None:
                span = slice(index * block_size, (index + 1) * block_size)
                block = Block(before, tuple(request.all_token_ids[span]))
                self._blocks.update(dict.fromkeys(names, block))
            block.of.add(request.request_id)
            block.computed |= request.num_computed_tokens >= (index + 1) * block_size
            before = names

    def get(self, name: Any) -> Block | None:
        """What an event speaks of; None: no block of ours is called so."""
        return self._blocks.get(name)

    def problem(self, event: Any) -> tuple[str, str] | None:
        """What is wrong with an event that says that blocks are there: problem and detail.

        An event without tokens tells no more than names. Names that are not vLLM's, and blocks of
        another size, are the connector's own business.
        """
        tokens, size, parent = list(event.token_ids), event.block_size, event.parent_block_hash
        if not tokens:
            return None
        if len(tokens) != size * len(event.block_hashes):
            of = f"{len(tokens)} tokens for {len(event.block_hashes)} blocks of {size}"
            return "tokens and blocks do not match", of
        for index, name in enumerate(event.block_hashes):
            block = self._blocks.get(name)
            if block is None or len(block.tokens) != size:
                return None
            if parent is None and block.parents:
                return "no parent", f"block {name!r} is not the first of {min(block.of)}"
            if parent is not None and parent not in block.parents:
                return "wrong parent", f"{parent!r} for block {name!r} of {min(block.of)}"
            if tuple(tokens[index * size : (index + 1) * size]) != block.tokens:
                return "wrong tokens", f"block {name!r} of {min(block.of)} has others"
            parent = name
        return None
