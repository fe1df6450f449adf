"""The engines of one run and their world."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvconform.engine import clock, compat, lives, logs, threads
from kvconform.engine.chains import Chains
from kvconform.engine.clock import Clock
from kvconform.engine.compose import composed
from kvconform.engine.device import Device
from kvconform.engine.engine import Engine
from kvconform.engine.leftovers import Leftovers
from kvconform.engine.oracle import Stream, stream
from kvconform.engine.recorder import ESCAPING
from kvconform.engine.world import Handover, World
from kvconform.scenario.errors import RefusedError, UsageError
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import Prompt, follow
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event, Kind, Trace

IDLE_STEPS = 40
"""Steps without any progress after which a drain gives up."""

BARREN_STEPS = 60
"""Steps in which no client gets a token and no request is forgotten, after which a drain gives up:
an engine may preempt the same requests over and over."""

STEPS_PER_TOKEN = 6
"""A drain's steps per token still owed; preemption may compute a token several times."""

_runs = itertools.count()


LONG = 366 * 24 * 3600.0
"""Seconds that pass in a drain when nothing else happens any more: longer than any lease."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request of this run; where prefill and decode are apart, one leg of it.

    Attributes:
        name: ``r3``; the leg that decodes it is ``r3d``.
        engine: where it went.
        tokens: its prompt.
        max_tokens: output tokens after which it stops.
        identity: whose it is.
        priority: the lower, the sooner.
        stop: output token that is a stop token, counted from 1.
        then: of a prefill: engine that decodes, its output tokens, and its stop token.
    """

    name: str
    engine: int
    tokens: tuple[int, ...]
    max_tokens: int
    identity: Identity
    priority: int = 0
    stop: int | None = None
    then: tuple[int, int, int | None] | None = None


def _lists(value: Any) -> Any:
    """``value`` with lists for its tuples, which JSON does not have; that is nobody's fault."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


class Cluster:
    """Engines over one world; what the interpreter acts on.

    Args:
        target: the connector under test.
        shape: the run's shape.
        world: the world outside; faults act on it.
        trace: where observations go.
        halt: true ends the run at the next phase.
        device: what the KV lies on; None: the host.

    Attributes:
        shape: that of the engines as they are now.
        former: engines that are no more; what they shared with the world lives on.

    Raises:
        UsageError: the target cannot be set up with this shape.
        RefusedError: this vLLM, or the target, does not serve this shape.
    """

    def __init__(
        self,
        target: Target,
        shape: Shape,
        world: World,
        trace: Trace,
        halt: Callable[[], bool] = lambda: False,
        device: Device | None = None,
    ) -> None:
        for field in dataclasses.fields(shape):
            value = getattr(shape, field.name)
            if not compat.supports(field.name, value):
                raise RefusedError(f"vLLM {compat.vllm_version()} has no {field.name} {value!r}")
        self.target = target = composed(target, shape)
        self.shape = shape
        self.world = world
        self.trace = trace
        self.arrived: dict[str, Arrived] = {}
        self.clock = Clock()
        self._clients = 0
        self._stopped = False
        self.former: list[Engine] = []
        self._streams: dict[str, Stream] = {}
        self._chains = Chains()
        self._folder: str | None = None
        self.engines: list[Engine] = []
        threads.begin()
        world.begin(self)
        self._halt = halt
        self.device = device or Device()
        self.device.begin(shape.engines, shape.ranks)
        self._waited = self.device.waited
        self._placeholders = {"run": f"run{next(_runs)}"}
        logs.capture(self._log)
        clock.active = self.clock
        compat.register_children(target)
        classes = compat.connector_classes(target)
        self._packages = frozenset().union(*map(clock.packages_of, classes))
        clock.redirect(self._packages)
        try:
            for index in range(shape.engines):
                self.engines.append(self.make(index, compat.Life()))
        except ESCAPING as error:
            self.close()
            if isinstance(error, UsageError):
                raise
            raise (RefusedError if lives.is_refusal(error) else UsageError)(
                f"The target {target.name!r} could not be set up: {lives.in_words(error)}"
            ) from error

    def make(self, index: int, life: compat.Life, begun: int = 0) -> Engine:
        """An engine in this life, after so many steps of earlier ones."""
        self.extra = self._extra()
        return Engine(
            index, self.target, self.shape, self.extra, self.trace, self._streams, self._halt,
            self._chains, self._folder, life, begun, self.device,
        )  # fmt: skip

    def _extra(self) -> Mapping[str, Any]:
        options = {**self.world.options(self.shape), **self._placeholders}

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

    def fits(self, prompt: Prompt, max_tokens: int) -> bool:
        """Whether such a request can run in this pool at all."""
        carried = 1 if self.shape.carry else 0
        if prompt.num_tokens + carried == 1 == self.shape.block_size:
            # Found outside, its only token is computed again, for which vLLM forgets that it was
            # loaded (_update_waiting_for_remote_kv), and looks it up again, without an end.
            return False
        return max_tokens > 0 and self.shape.fits(prompt.num_tokens + carried + max_tokens)

    def place(self, engine: int) -> int:
        """The engine that a request goes to first."""
        return 0 if self.shape.topology == "pd" else engine % len(self.engines)

    def next_name(self) -> str:
        """The name that the next request gets."""
        return f"r{self._clients}"

    def arrive(
        self,
        prompt: Prompt,
        max_tokens: int,
        identity: Identity,
        engine: int,
        priority: int = 0,
        name: str | None = None,
        stop: int | None = None,
    ) -> str | None:
        """A request arrives; its name, or None when it could never run in this pool.

        ``name``: an id that its client used before; None: a new one.
        """
        if not self.fits(prompt, max_tokens):
            return None
        if name is None or name == self.next_name():
            name = self.next_name()
            self._clients += 1
        self.arrived.pop(name, None)  # the order of arrival counts
        first, tokens = self.place(engine), prompt.tokens(identity)
        if self.shape.topology == "store":
            self._add(Arrived(name, first, tokens, max_tokens, identity, priority, stop), None)
            return name
        decoder = 1 + engine % (len(self.engines) - 1)
        ends = 1 if stop == 1 else None  # by its only token
        leg = Arrived(name, first, tokens, 1, identity, priority, ends, (decoder, max_tokens, stop))
        self._add(leg, self._speak("prefill", name))
        return name

    def forward(self, request: str, params: Mapping[str, Any] | None) -> None:
        """A request that was prefilled arrives at the engine that decodes it.

        One that was prefilled in another layout may never fit into the pool now: it is refused.
        """
        first = self.arrived[request]
        assert first.then is not None
        engine, max_tokens, stop = first.then
        tokens = first.tokens
        if self.shape.carry:
            tokens = tuple(follow(tokens, first.identity, 1)[0])
            stop = max(1, stop - 1) if stop is not None else None
        if not self.shape.fits(len(tokens) + max_tokens):
            return
        name, times = f"{request}d", 1
        while name in self.arrived:  # the router sends it once more
            times += 1
            name = f"{request}d{times}"
        # It may have been prefilled by the model that was served before.
        identity = dataclasses.replace(first.identity, model=self.engines[engine].life.model)
        leg = dataclasses.replace(
            first, name=name, engine=engine, tokens=tokens, max_tokens=max_tokens,
            identity=identity, stop=stop, then=None,
        )  # fmt: skip
        self.trace.emit(
            Event(
                Kind.FORWARDED, engine, self.engines[engine].step_number, leg.name, None,
                {"after": request, "params": params is not None, "tokens": tokens, "stop": stop},
            )
        )  # fmt: skip
        said = None if params is None else {**self._speak("decode", request), **params}
        self._add(leg, said)

    def _speak(self, side: str, transfer: str) -> dict[str, Any]:
        """What the target's dialect puts into a request on this side."""
        said = self.target.dialect.get(side, {})
        return {
            key: value.replace("{transfer}", transfer) if isinstance(value, str) else value
            for key, value in said.items()
        }

    def _add(self, leg: Arrived, params: Mapping[str, Any] | None) -> None:
        self.arrived[leg.name] = leg
        if leg.name in self._streams:  # of an id that comes again: its KV may be found yet
            before = self._streams.pop(leg.name)
            self._streams[f"{leg.name} of old, {len(self._streams)}"] = before
        whole = stream(leg.tokens, leg.identity, leg.max_tokens)
        self._streams[leg.name] = whole
        stop = None
        if leg.stop is not None and leg.stop <= leg.max_tokens:
            stop = whole.tokens[len(leg.tokens) + leg.stop - 1]
        self.engines[leg.engine].arrive(
            leg.name, leg.tokens, leg.max_tokens, leg.identity,
            priority=leg.priority, params=params, stop=stop,
        )  # fmt: skip

    def step(self, engine: int, last: bool = False) -> bool:
        """An engine takes a step; what it finished prefilling goes on to its decoder.

        ``last``: nothing arrives any more.

        Returns:
            False when there was nothing to do.

        Raises:
            HaltedError: the run is over.
        """
        worked = self.engines[engine].step(last)
        self.world.settle()
        self.look_at_device()
        ended, self.engines[engine].delivered = self.engines[engine].delivered, []
        for one in ended:
            if self.arrived[one.request].then is not None and one.finish in ("length", "stop"):
                params = self._over_the_wire(engine, one.request, one.params)
                self.world.route(Handover(self, one.request, params))
        return worked

    def look_at_device(self) -> None:
        """Emit what was done with the device since this was last done, if that is of interest."""
        waited, misuses = self.device.waited - self._waited, self.device.misuses()
        if waited or misuses:
            self._waited += waited
            engine, rank = next(((m.engine, m.rank) for m in misuses), (None, None))
            index = 0 if engine is None else engine
            self.trace.emit(
                Event(
                    Kind.DEVICE, index, self.engines[index].step_number, None, rank,
                    {"waited": waited, "misuses": [[m.wrong, m.text] for m in misuses]},
                )
            )  # fmt: skip

    def _over_the_wire(
        self, engine: int, request: str, params: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """The params as they come out at the other end of an HTTP router: as JSON."""
        try:
            there = json.loads(json.dumps(params))
            problem = "" if there == _lists(params) else f"{params!r} arrives as {there!r}"
        except (TypeError, ValueError) as error:
            there, problem = params, f"{type(error).__name__}: {error}"
        if problem:
            self.trace.emit(
                Event(
                    Kind.WIRE, engine, self.engines[engine].step_number, request, None,
                    {"problem": "params", "detail": problem[:300], "hook": "request_finished"},
                )
            )  # fmt: skip
        return there

    def live(self) -> list[str]:
        """Requests that no scheduler has forgotten, oldest first."""
        known = {name for engine in self.engines for name in engine.live()}
        return [name for name in self.arrived if name in known]

    def is_over(self, name: str) -> bool:
        """Whether a request has ended, and its id may be used again as far as its client knows."""
        engine = self.engine_of(name)
        status = engine.status(name)
        ended = status is None or status.startswith("FINISHED")
        return ended and name not in engine.forgotten_loading and not engine.under_way(name)

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
        self.device.calm()
        self.world.calm()
        self.look_at_device()
        circling = self._until_idle()
        held = self.live()
        if held and not circling:
            self._be_patient()
            held = self.live()
        if held:
            self.trace.emit(Event(Kind.IDLE, -1, 0, None, None, {"held": held}))
        while self.live():
            # Nothing gets on any more by itself. Whoever waits for time to pass gets it; what
            # comes free then may set others going, who will wait for time in their turn.
            seen = len(self.trace)
            self.clock.advance(LONG)
            circling = self._until_idle()
            if self._idle_since(seen) or (circling and not self._fruitful(seen)):
                break
        patient = self.live() and (not circling or threads.company())
        restless = self._be_patient() if patient else []
        foreign = not self.clock.reads and clock.speaks_of_time(self._packages)
        left = [Leftovers(engine, restless, foreign) for engine in self.engines]
        clean = [one.look() for one in left]
        if all(clean):
            for index, what, child in self.world.kept():
                if child is not None:
                    left[index].left("reservation", None, what, child)
                left[index].left("reservation", None, what)
            for one in left:
                one.remembered(frozenset(self.arrived), self._packages)
            for engine in self.engines:
                self.trace.emit(Event(Kind.QUIET, engine.index, engine.step_number))

    def _until_idle(self) -> bool:
        """Step all engines until nothing is left to do, or nothing gets on; True: in circles."""
        legs = [self.arrived[name] for name in self.live()]
        owed = sum(
            2 * len(leg.tokens) + leg.max_tokens + (leg.then[1] if leg.then else 0) for leg in legs
        )
        idle = barren = 0
        for _ in range(2 * IDLE_STEPS + STEPS_PER_TOKEN * owed):
            seen = len(self.trace)
            worked = [self.step(engine.index, last=True) for engine in self.engines]
            if not any(worked):
                break
            idle = idle + 1 if self._idle_since(seen) else 0
            if idle > IDLE_STEPS:
                break
            barren = 0 if self._fruitful(seen) else barren + 1
            if barren > BARREN_STEPS:
                return True
        return False

    def _be_patient(self) -> list[str]:
        """Give what is beside us real time; names of what may want more than that.

        Threads and processes of the target can be seen, and what else it deals with cannot: it gets
        some time as well, less and less of it where none ever bore fruit.
        """
        if self.world.runs_threads:
            return []  # they have done all that they can
        patience, fruit = threads.patience(), False
        if not threads.company():
            # Once and as a whole: how many steps a run takes must not depend on the machine.
            seen = len(self.trace)
            time.sleep(patience)
            self._until_idle()
            fruit = not self._idle_since(seen)
        end = time.monotonic() + patience
        while threads.company() and time.monotonic() < end and self.live():
            seen = len(self.trace)
            time.sleep(10 * threads.LOOK)
            for engine in self.engines:
                self.step(engine.index, last=True)
            if not self._idle_since(seen):
                self._until_idle()
                fruit, end = True, time.monotonic() + patience
        threads.learn(fruit)
        return threads.restless() if self.live() else []

    def _idle_since(self, seen: int) -> bool:
        """Whether the events from ``seen`` on show no progress at all."""
        return not any(
            event.kind in (Kind.STATUS, Kind.RAN, Kind.MOVED, Kind.TOKENS)
            or (event.kind is Kind.SCHEDULED and event.data["tokens"])
            for event in self.trace.events[seen:]
        )

    def _fruitful(self, seen: int) -> bool:
        """Whether the events from ``seen`` on bring any request nearer to its end."""
        return any(
            event.kind is Kind.TOKENS or (event.kind is Kind.STATUS and event.data["new"] is None)
            for event in self.trace.events[seen:]
        )

    def stop(self) -> None:
        """Shut the engines down, whatever is under way; an exception of a hook is recorded."""
        if self._stopped:
            return
        self._stopped = True
        try:
            for engine in self.engines:
                engine.shutdown()
        except ESCAPING as error:
            self._log("ERROR", "kvconform", f"shutdown raised {type(error).__name__}: {error}")

    def close(self) -> None:
        """Shut down what was not shut down, and remove what the run left outside."""
        try:
            self.stop()
        finally:
            self.world.end()
            self.device.end()
            threads.end()
            clock.active = None
            logs.capture(None)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def scenario(self, actions: tuple[Any, ...]) -> Scenario:
        """The scenario of this run."""
        return Scenario(self.shape, actions)
