"""Moves that lead to what random ones meet too seldom: each is a short story of its own.

They use fresh prompts and, where it matters, an engine that has come to rest, so that what they
are after does not hang on what was there before.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from kvconform.conformance.draw import Draw
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Fail,
    Hold,
    Refuse,
    Release,
    Reset,
    Step,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape

Move = tuple[Action, ...]

OUTPUT = 20
"""Output tokens of who has to go on for a while: more than a block."""


def rest(engine: int) -> Move:
    """Whoever is there comes to an end."""
    return (Release(), Step(OUTPUT + 4, engine))


class Aimed:
    """Stories for one run.

    Args:
        shape: of the run.
        packages: fault packages that it may use.
        fresh: a family of prompts that nobody has had.
    """

    def __init__(self, shape: Shape, packages: frozenset[str], fresh: Callable[[], int]) -> None:
        self._shape = shape
        self._packages = packages
        self._fresh = fresh

    def answered(self, draw: Draw) -> Move:
        """The next turn of a chat: what was answered comes back, behind the prompt."""
        engine = draw(st.integers(0, 1))
        length = max(1, self._shape.block_size * draw(st.integers(1, 2)) - draw(st.integers(0, 2)))
        first = Arrive(Prompt(self._fresh(), length), OUTPUT, engine=engine)
        again = Arrive(Prompt(first.prompt.family, length, 0, OUTPUT - 1), 2, engine=engine)
        return (first, Step(OUTPUT + 4, engine), Reset(engine=engine), again, Step(3, engine))

    def refused(self, draw: Draw) -> Move:
        """One grows by a block in the very step in which another one's save is refused.

        What the first one leaves is asked for.
        """
        engine, off = draw(st.integers(0, 1)), draw(st.integers(0, 2))
        size = self._shape.block_size
        length = max(1, 2 * size - off)
        first = Arrive(Prompt(self._fresh(), length), OUTPUT, engine=engine)
        other = Arrive(Prompt(self._fresh(), max(1, 2 * size - 4)), OUTPUT, engine=engine)
        again = Arrive(Prompt(first.prompt.family, length, 0, OUTPUT - 1), engine=engine)
        return (*rest(engine), first, Step(off + 1, engine), Refuse(), other,
                Step(OUTPUT + 4, engine), Reset(engine=engine), again, Step(3, engine))  # fmt: skip

    def loaded_behind(self, draw: Draw) -> Move:
        """What is found outside is loaded into the blocks of one that ends in mid-air.

        Under async scheduling a step that writes there may not have run yet.
        """
        engine, blocks = draw(st.integers(0, 1)), draw(st.integers(1, 3))
        size = self._shape.block_size
        first = Arrive(Prompt(self._fresh(), blocks * size + 1), 1, engine=engine)
        large = Prompt(self._fresh(), max(1, (self._shape.num_blocks - blocks) * size - OUTPUT))
        steps = -(-large.length // self._shape.max_num_batched_tokens) + draw(st.integers(0, 2))
        gone = Abort(1) if draw(st.booleans()) else Reset(running=True, engine=engine)
        return (first, Step(5, engine), Reset(engine=engine), Arrive(large, OUTPUT, engine=engine),
                Step(steps, engine), first, gone, Step(3, engine))  # fmt: skip

    # -- a prompt in chunks -----------------------------------------------------------------------

    def _in_chunks(self, family: int, engine: int) -> tuple[Arrive, Arrive]:
        """A prompt that takes several steps, whose chunks end within blocks; who sees to that."""
        shape = self._shape
        most = (shape.num_blocks - 3) * shape.block_size - 2
        length = min(2 * shape.max_num_batched_tokens + 40, most)
        beside = Arrive(Prompt(self._fresh(), 9), OUTPUT, engine=engine)
        return beside, Arrive(Prompt(family, length), 2, engine=engine)

    def _twice_more(self, arrive: Arrive) -> Move:
        """It is asked for twice: what is found at first may be made complete by that."""
        steps, reset = Step(8, arrive.engine), Reset(engine=arrive.engine)
        return (*rest(arrive.engine), *(reset, arrive, steps) * 2)

    def failed_within_a_step(self, draw: Draw) -> Move:
        """A block is loaded within a step, and fails; the prompt behind it goes in chunks."""
        engine, family = draw(st.integers(0, 1)), self._fresh()
        beside, long = self._in_chunks(family, engine)
        short = Arrive(Prompt(family, self._shape.block_size + 1), 1, engine=engine)
        failed = (Fail(), long, Step(8, engine))
        return (*rest(engine), short, Step(4, engine), Reset(engine=engine), beside,
                Step(1, engine), *failed, *self._twice_more(long))  # fmt: skip

    def resumed_in_chunks(self, draw: Draw) -> Move:
        """A request is preempted amid its prompt, and goes on in chunks."""
        engine = draw(st.integers(0, 1))
        beside, long = self._in_chunks(self._fresh(), engine)
        preempted = (Step(draw(st.integers(1, 2)), engine), Reset(running=True, engine=engine))
        asked = self._twice_more(long) if "full-hit" in self._packages else ()
        return (*rest(engine), beside, Step(1, engine), long, *preempted, Step(8, engine), *asked)

    # -- a pool that is full ----------------------------------------------------------------------

    def _filling(self, engine: int, count: int, spare: int) -> Move:
        """Requests that fill the pool, and are computed; each has room for ``spare`` tokens.

        0: each needs another block as soon as the last one has been computed.
        """
        size, left = self._shape.block_size, (self._shape.num_blocks - 1) // self._shape.groups
        steps = -(-left * size // self._shape.max_num_batched_tokens)
        arrivals = []
        for others in reversed(range(count)):
            blocks = left // (others + 1)
            room = spare or (steps - 1 if others else 0)
            prompt = Prompt(self._fresh(), max(1, blocks * size - room))
            output = OUTPUT if count > 1 else max(1, spare)  # what can never run is not let in
            arrivals.append(Arrive(prompt, output, engine=engine))
            left -= blocks
        return (*arrivals, Step(steps, engine))

    def to_the_brim(self, draw: Draw) -> Move:
        """Full blocks fill the pool, so that what is taken from one goes to the other at once."""
        engine = draw(st.integers(0, 1))
        held: Move = ()
        if "delay" in self._packages and draw(st.booleans()):
            held = (Hold("save"),)
        count = min(draw(st.integers(2, 3)), self._shape.max_num_seqs)
        gone: Move = ()
        if "abort" in self._packages and draw(st.booleans()):
            gone = (Step(draw(st.integers(0, 1)), engine), Abort(0))
        more = Step(draw(st.integers(1, 4)), engine)
        return (*rest(engine), *held, *self._filling(engine, count, 0), *gone, more, Release(),
                more)  # fmt: skip

    def no_room(self, draw: Draw) -> Move:
        """What is found outside finds no room, and is looked up in every step.

        Its client may lose patience between what was found and what would have been admitted.
        """
        engine = draw(st.integers(0, 1))
        blocks = draw(st.integers(2, 3))
        first = Arrive(Prompt(self._fresh(), blocks * self._shape.block_size + 1), 1, engine=engine)
        count = min(draw(st.integers(1, 3)), self._shape.max_num_seqs - 1)  # one is to be let in
        gone: Move = ()
        if "abort" in self._packages and draw(st.booleans()):
            gone = (Abort(0), Step(2, engine))
        return (*rest(engine), first, Step(5, engine), Reset(engine=engine),
                *self._filling(engine, count, 6), first, Step(draw(st.integers(1, 3)), engine),
                *gone)  # fmt: skip

    # -- a reset ----------------------------------------------------------------------------------

    def reset_while_saving(self, draw: Draw) -> Move:
        """All is forgotten while a save is open, and asked for when it has ended."""
        engine = draw(st.integers(0, 1))
        length = self._shape.block_size * draw(st.integers(1, 3)) + 1
        first = Arrive(Prompt(self._fresh(), length), draw(st.integers(1, 2)), engine=engine)
        # Its blocks can be found locally yet, but for this.
        local = (Reset(engine=engine),) if "full-hit" in self._packages else ()
        return (Hold("save"), first, Step(6, engine), Reset(connector=True, engine=engine),
                Release(), Step(3, engine), *local, first, Step(3, engine))  # fmt: skip
