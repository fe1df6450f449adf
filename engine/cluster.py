"""The engines of one run and their world."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvconform.engine import logs
from kvconform.engine.engine import Engine
from kvconform.engine.oracle import Stream, stream
from kvconform.engine.recorder import ESCAPING
from kvconform.engine.world import World
from kvconform.scenario.errors import UsageError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event, Kind, Trace

IDLE_STEPS = 40
"""Steps without any progress after which a drain gives up."""

STEPS_PER_TOKEN = 6
"""A drain's steps per token still owed; preemption may compute a token several times."""

_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request of this run."""

    name: str
    engine: int
    prompt: Prompt
    max_tokens: int
    salt: str | None


class Cluster:
    """Engines over one world; what the interpreter acts on.

    Args:
        target: the connector under test.
        shape: the run's shape.
        world: the world outside; faults act on it.
        trace: where observations go.
        halt: true ends the run at the next phase.

    Raises:
        UsageError: the target cannot be set up with this shape.
    """

    def __init__(
        self,
        target: Target,
        shape: Shape,
        world: World,
        trace: Trace,
        halt: Callable[[], bool] = lambda: False,
    ) -> None:
        self.target = target
        self.shape = shape
        self.world = world
        self.trace = trace
        self.arrived: dict[str, Arrived] = {}
        self._streams: dict[str, Stream] = {}
        self._folder: str | None = None
        self.engines: list[Engine] = []
        world.begin(self)
        extra = self._extra()
        logs.capture(self._log)
        try:
            for index in range(shape.engines):
                self.engines.append(
                    Engine(index, target, shape, extra, trace, self._streams, halt, self._folder)
                )
        except ESCAPING as error:
            self.close()
            raise UsageError(
                f"The target {target.name!r} could not be set up: {type(error).__name__}: {error}"
            ) from error

    def _extra(self) -> Mapping[str, Any]:
        options = {**self.world.options(self.shape), "run": f"run{next(_runs)}"}

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {k: fill(v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return [fill(v) for v in value]
            if not isinstance(value, str):
                return value
            if "{run_dir}" in value and self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="kvconform-")
            for name, option in {**options, "run_dir": self._folder}.items():
                if value == f"{{{name}}}":
                    return option
                value = value.replace(f"{{{name}}}", str(option))
            return value

        return fill(dict(self.target.extra))

    def _log(self, level: str, logger: str, message: str) -> None:
        engine = self.engines[-1] if len(self.engines) == 1 else None
        if self._folder is not None:
            message = message.replace(self._folder, "{run_dir}")
        self.trace.emit(
            Event(
                Kind.LOG,
                engine.index if engine else -1,
                engine.step_number if engine else 0,
                data={"level": level, "logger": logger, "message": message[:300]},
            )
        )

    def arrive(self, prompt: Prompt, max_tokens: int, salt: str | None, engine: int) -> str | None:
        """A request arrives; its name, or None when it could never run in this pool."""
        if not self.shape.fits(prompt.num_tokens + max_tokens) or max_tokens < 1:
            return None
        name = f"r{len(self.arrived)}"
        engine %= len(self.engines)
        self.arrived[name] = Arrived(name, engine, prompt, max_tokens, salt)
        self._streams[name] = stream(prompt.tokens, salt, max_tokens)
        self.engines[engine].arrive(name, prompt.tokens, max_tokens, salt)
        return name

    def expected_output(self, name: str) -> list[int]:
        """The tokens that this request must produce."""
        return self._streams[name].tokens[self.arrived[name].prompt.num_tokens :]

    def live(self) -> list[str]:
        """Requests that no scheduler has forgotten, oldest first."""
        known = {name for engine in self.engines for name in engine.live()}
        return [name for name in self.arrived if name in known]

    def engine_of(self, name: str) -> Engine:
        """The engine that a request went to."""
        return self.engines[self.arrived[name].engine]

    def drain(self) -> None:
        """Faults off; step until nothing is left to do, then look for what is left over.

        Raises:
            HaltedError: the run is over.
        """
        live = self.live()
        self.trace.emit(Event(Kind.DRAIN, -1, 0, None, None, {"pending": live}))
        self.world.calm()
        owed = sum(self.arrived[n].prompt.num_tokens + self.arrived[n].max_tokens for n in live)
        idle = 0
        for _ in range(2 * IDLE_STEPS + STEPS_PER_TOKEN * owed):
            seen = len(self.trace)
            worked = [engine.step() for engine in self.engines]
            if not any(worked):
                break
            idle = idle + 1 if self._idle_since(seen) else 0
            if idle > IDLE_STEPS:
                break
        clean = [engine.leftovers() for engine in self.engines]
        if all(clean):
            for engine in self.engines:
                self.trace.emit(Event(Kind.QUIET, engine.index, engine.step_number))

    def _idle_since(self, seen: int) -> bool:
        """Whether the events from ``seen`` on show no progress at all."""
        return not any(
            event.kind in (Kind.STATUS, Kind.RAN, Kind.MOVED, Kind.TOKENS)
            or (event.kind is Kind.SCHEDULED and event.data["tokens"])
            for event in self.trace.events[seen:]
        )

    def close(self) -> None:
        """Shut down what can be shut down, and remove what the run left outside."""
        try:
            for engine in self.engines:
                engine.shutdown()
        except ESCAPING as error:
            # The run has been judged; how the target goes is noted, and goes no further.
            self._log("ERROR", "kvconform", f"shutdown raised {type(error).__name__}: {error}")
        finally:
            self.world.end()
            logs.capture(None)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def scenario(self, actions: tuple[Any, ...]) -> Scenario:
        """The scenario of this run."""
        return Scenario(self.shape, actions)
