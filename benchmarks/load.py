"""The load that bare and checked loops share, and how long each takes over it.

Requests of one size, 40 tokens of prompt that share nothing and 8 of output, as in the prototype,
arrive so that a fixed number is always there. When they arrive is worked out once, by running the
bare loop, so that every loop gets the same requests in the same steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks.bare_loop import BareLoop
from kvconform.conformance.run import Run
from kvconform.scenario.actions import Arrive, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

PROMPT = 40
OUTPUT = 8
RAMP = 16
"""Steps until requests of all ages are there; not timed."""


class Stopwatch:
    """Real time. The package of a connector, here this one, is shown a run's virtual time instead,
    wherever a module of it names ``time`` or one of its functions; not within a class.
    """

    read = staticmethod(time.perf_counter)


Timed = Iterator[float]
"""A loop that takes its next step when asked, and says how many seconds that took."""


@dataclass(frozen=True, slots=True)
class Load:
    """What happens, step by step.

    Attributes:
        live: requests that are there at any time.
        shape: pool and token budget, wide enough never to get in their way.
        arrivals: requests that arrive before each step, the ramp included.
    """

    live: int
    shape: Shape
    arrivals: tuple[int, ...]

    def with_pool(self, num_blocks: int) -> Load:
        """The same in a pool of another size."""
        return replace(self, shape=replace(self.shape, num_blocks=num_blocks))


def make_load(target: Target, live: int, steps: int) -> Load:
    """``steps`` steps, and the ramp, with ``live`` requests; ``target`` must find nothing."""
    shape = Shape(
        num_blocks=max(64, 8 * live),
        store_blocks=max(256, 64 * live),
        max_num_seqs=max(8, live),
        max_num_batched_tokens=max(64, 8 * live),
    )
    arrivals = []
    loop = BareLoop(target, shape)
    for _ in range(RAMP + steps):
        missing = live - loop.live()
        for _ in range(missing):
            loop.add(prompt(len(loop.outputs)).tokens(), OUTPUT)
        arrivals.append(missing)
        loop.step()
    loop.close()
    return Load(live, shape, tuple(arrivals))


def prompt(index: int) -> Prompt:
    """The prompt of a run's ``index``-th request."""
    return Prompt(index, PROMPT)


def bare(target: Target, load: Load) -> Timed:
    """The bare loop."""
    loop = BareLoop(target, load.shape)
    arrived = 0
    for count in load.arrivals:
        prompts = [prompt(arrived + i).tokens() for i in range(count)]
        arrived += count
        start = Stopwatch.read()
        for tokens in prompts:
            loop.add(tokens, OUTPUT)
        loop.step()
        yield Stopwatch.read() - start
    loop.close()


def checked(target: Target, load: Load) -> Timed:
    """A run with the referee and every check listening.

    Raises:
        ViolationError: a check objected, so that what was timed is not the load.
    """
    with Run(target, load.shape) as run:
        arrived = 0
        for count in load.arrivals:
            arrivals = [Arrive(prompt(arrived + i), OUTPUT) for i in range(count)]
            arrived += count
            start = Stopwatch.read()
            for arrival in arrivals:
                run.do(arrival)
            run.do(Step())
            yield Stopwatch.read() - start
        run.verify()


def interleaved(
    loops: Mapping[str, Callable[[], Timed]], stretch: int = 20
) -> dict[str, list[float]]:
    """Run loops side by side, ``stretch`` steps of one, then of the next; seconds per step.

    What else goes on in the machine then slows all of them alike. All must have as many steps.
    """
    running = {name: make() for name, make in loops.items()}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    going = True
    while going:
        for name, loop in running.items():
            taken = list(islice(loop, stretch))
            seconds[name] += taken
            going = len(taken) == stretch
    return {name: steps[RAMP:] for name, steps in seconds.items()}
