"""For each fault package its moves.

A move is a short list of actions. Draws never depend on what the target did in this run (a target
with threads would end in Hypothesis' ``Flaky``); an action refers by selector. Each move brings the
steps that follow it, for an engine step that is a rule of its own would be absent in many runs.
Moves prefer that something happens while a transfer is open.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from hypothesis import strategies as st

from kvconform.conformance import steer
from kvconform.conformance.aimed import Aimed
from kvconform.conformance.arrivals import IDENTITIES, Arrivals
from kvconform.conformance.draw import Draw
from kvconform.faults.packages import is_tight
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Break,
    Busy,
    Corrupt,
    Cut,
    Drop,
    Fail,
    Flow,
    Forget,
    Hold,
    Lose,
    Redeploy,
    Refuse,
    Release,
    Repeat,
    Reset,
    Restart,
    Stall,
    Step,
    Stop,
    Tick,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape

Move = tuple[Action, ...]

STEERED = "steered"
"""Stands for a package in :meth:`Moves.draw_move`: what was met most seldom is aimed at."""

RETURNING = 2
"""Prompts that return at the end of a run, and how often: what is found once may have been made
complete by that."""

_ENCODERS = (("m", "n"), ("m", "m"), ("m", None), (None, "m"))
"""What has made a prompt's embeddings, twice; None: it comes as tokens."""


class Moves(Arrivals):
    """Draws moves; one method per fault package, and the base traffic.

    Args:
        draw: draws.
        packages: fault packages that the run may use.
        shape: of the run.
        chats: whether its base traffic is of chats, whose prompts return.
        seen: how often each cell of what is steered for has been met.
    """

    def __init__(
        self,
        draw: Draw,
        packages: frozenset[str],
        shape: Shape,
        chats: bool,
        seen: Counter[str] | None = None,
    ) -> None:
        super().__init__(draw, packages, shape)
        self._seen = Counter() if seen is None else seen
        self._wanted = steer.in_reach(packages, shape.topology, is_tight(shape), shape.ranks)
        self._arrived: list[Arrive] = []
        self.chats = chats and "full-hit" in packages
        self._alone = shape.topology == "store"
        self._aimed = Aimed(shape, packages, self._family)

    def draw_move(self, package: str | None) -> Move:
        """A move of this package; None: base traffic."""
        if package is None:
            arrive = self._turn() if self.chats else self._stranger()
            move: Move = (arrive, *self._steps())
        else:
            move = getattr(self, "_" + package.replace("-", "_"))()
        self._arrived += [action for action in move if isinstance(action, Arrive)]
        return move

    def returns(self) -> Move:
        """What was asked last is asked once more, of the world outside: what has become of it?"""
        if "full-hit" not in self.packages:
            return ()
        engines = range(self.shape.engines)
        last = {(a.prompt, a.identity): a for a in self._arrived if a.prompt.num_tokens > self.size}
        again = [
            dataclasses.replace(a, max_tokens=2, priority=0, again=None, stop=None)
            for a in list(last.values())[-RETURNING:]
        ]
        once = (
            *(Step(3, engine) for engine in engines),
            *(Reset(engine=engine) for engine in engines),
            *(step for a in again for step in (a, *self._through(a, 3))),
        )
        return (Release(), *once * RETURNING) if again else ()

    # -- what was met most seldom -----------------------------------------------------------------

    def _steered(self) -> Move:
        k, blocks = self.draw(st.integers(0, 7)), self.draw(st.integers(2, 4))
        late, tail = self.draw(st.booleans()), self.draw(st.sampled_from((0, 8)))
        fresh = self.draw(st.booleans())
        if not self._wanted:
            return self._steps()
        prompt = Prompt(self._family(), blocks * self.size + tail)
        cell = name, state, phase = steer.rarest(self._wanted, self._seen, k)
        self._seen["/".join(cell)] += 1  # aimed at: some cannot be met
        home = 1 if self.shape.topology == "pd" else 0
        first = (Release(), Step(1, home)) if late else (Step(2, home), Release())
        return (
            *steer.path(state, phase, prompt, self.shape, fresh),
            *steer.fault(name, prompt, self.shape),
            *first, Step(3, 0), Step(3, home),
            Reset(engine=home), Arrive(prompt, 2), Step(3, 0), Step(3, home),
        )  # fmt: skip

    # -- one per package --------------------------------------------------------------------------

    def _full_hit(self) -> Move:
        if self._alone and not self.draw(st.integers(0, 5)):
            return self._aimed.answered(self.draw)
        first = self._returning()
        again = Arrive(
            first.prompt,
            self.draw(st.sampled_from((1, 2, 20))),
            engine=self.draw(st.integers(0, 1)),
        )
        between: Move = ()
        where = self.draw(st.sampled_from(("local", "outside", "both")))
        if where != "local":
            between = (Reset(engine=self._home(first)),)
        if where == "both":  # the first block or two are found locally, the rest outside
            short = Prompt(first.prompt.family, self.draw(st.sampled_from((1, 2))) * self.size + 1)
            prefix = Arrive(short, engine=again.engine)
            between = (*between, prefix, *self._through(prefix, 3))
        return (first, *self._through(first, self.draw(st.integers(1, 5))), *between, again,
                *self._steps())  # fmt: skip

    def _tenants(self) -> Move:
        first = self._returning(tenants=True)
        same = not self.draw(st.integers(0, 2))  # who is the same has to find it
        whose = self.draw(st.sampled_from(IDENTITIES))
        other = Arrive(first.prompt, 1, engine=self.draw(st.integers(0, 1)), **whose)
        outside: Move = (Reset(engine=self._home(first)),) if same else ()
        again = dataclasses.replace(first, stop=None) if same else other
        return (first, *self._through(first, 4), *outside, again, *self._steps())

    def _embeds(self) -> Move:
        """A prompt comes as embeddings, and again: as the same, as others, or as tokens."""
        one, two = self.draw(st.sampled_from(_ENCODERS))
        edges = (self.size + 1, 2 * self.size + 1, 3 * self.size)
        prompt = Prompt(self.draw(st.integers(0, 1)), self.draw(st.sampled_from(edges)))
        first = Arrive(prompt, self.draw(st.sampled_from((1, 4))), embeds=one)
        other = Prompt(1 - prompt.family, prompt.length) if self.draw(st.booleans()) else prompt
        again = Arrive(other, 2, engine=self.draw(st.integers(0, 1)), embeds=two)
        outside: Move = (Reset(engine=self._home(first)),) if self.draw(st.booleans()) else ()
        return (first, *self._through(first, 4), *outside, again, *self._through(again, 3))

    def _delay(self) -> Move:
        hold = Hold(
            self.draw(st.sampled_from(("any", "load", "save"))),
            self.draw(st.sampled_from((None, 0, 1))),
        )
        releases = tuple(
            Release(self.draw(st.integers(0, 3))) for _ in range(self.draw(st.integers(0, 3)))
        )
        end: Move = (Release(),) if self.draw(st.booleans()) else ()
        start: Move = (hold, self._arrival(), *self._steps())
        if "full-hit" in self.packages and self.draw(st.booleans()):
            start = self._open_load()
        return (*start, *self._meanwhile(), *releases, *self._steps(2), *end,
                *self._steps(2))  # fmt: skip

    def _outside_again(self, hold: Move = ()) -> Move:
        """A request whose prompt, two blocks or more, is found outside only."""
        edges = (2 * self.size + 1, 5 * self.size // 2, 3 * self.size, 4 * self.size)
        prompt = Prompt(self.draw(st.integers(0, 1)), self.draw(st.sampled_from(edges)))
        first = Arrive(prompt, 1, engine=self.draw(st.integers(0, 1)))
        # Running requests keep the local cache from being emptied, unless they are preempted.
        reset = Reset(running="preempt" in self.packages, engine=self._home(first))
        return (first, *self._through(first, 5), reset, *hold, first)

    def _open_load(self) -> Move:
        """A request that waits for its load."""
        hold = Hold("load", self.draw(st.sampled_from((None, 0, 1))))
        *before, again = self._outside_again((hold,))
        assert isinstance(again, Arrive)
        return (*before, again, *self._through(again, self.draw(st.integers(1, 2))))

    def _meanwhile(self) -> Move:
        """What happens while a transfer is open."""
        options: list[Callable[[], Move]] = [lambda: (self._arrival(), *self._steps(2))]
        for package in ("abort", "preempt", "reset", "fail-load", "lost", "peer-gone"):
            if package in self.packages:
                options.append(getattr(self, "_" + package.replace("-", "_")))
        return self.draw(st.sampled_from(options))()

    def _abort(self) -> Move:
        abort = Abort(self.draw(st.integers(0, 3)), self.draw(st.booleans()))
        if "full-hit" in self.packages and not self.draw(st.integers(0, 2)):
            if "delay" in self.packages and self.draw(st.booleans()):
                opened = self._open_load()
                released: Move = (Release(),)
            else:  # in the very step in which the load begins, also when nothing holds it
                opened, released = self._outside_again(), ()
            aborted = Abort(0, not released or self.draw(st.booleans()))
            return (*opened, aborted, *self._steps(2), *released, *self._steps(2))
        before: Move = ()
        if self.draw(st.booleans()):
            before = (
                self._arrival(),
                *(self._steps(2) if self.draw(st.booleans()) else ()),
            )
        return (*before, abort, *self._steps(2))

    def _preempt(self) -> Move:
        if self._alone and not self.draw(st.integers(0, 3)):
            return self._aimed.resumed_in_chunks(self.draw)
        return (
            self._arrival(),
            *self._steps(3),
            Reset(running=True, engine=self.draw(st.integers(0, 1))),
            *self._steps(2),
        )

    def _defer(self) -> Move:
        return (Busy(self.draw(st.sampled_from((1, 2, 3, 1000)))), self._arrival(), *self._steps())

    def _reset(self) -> Move:
        late = self._alone and "delay" in self.packages
        if late and not self.draw(st.integers(0, 3)):
            return self._aimed.reset_while_saving(self.draw)
        if self.draw(st.booleans()):  # what was saved before may not be found afterwards
            first = self._returning()
            reset = Reset(connector=True, engine=self._home(first))
            return (first, *self._through(first, 6), reset, first, *self._steps())
        reset = Reset(connector=self.draw(st.booleans()), engine=self.draw(st.integers(0, 1)))
        return (reset, self._arrival(), *self._steps())

    def _tight_pool(self) -> Move:
        tight = self._alone and is_tight(self.shape)
        if tight and not self.draw(st.integers(0, 2)):
            return self._aimed.to_the_brim(self.draw)
        if tight and "full-hit" in self.packages and self.draw(st.booleans()):
            return self._aimed.no_room(self.draw)
        arrivals = tuple(self._arrival() for _ in range(self.draw(st.integers(2, 3))))
        return (*arrivals, Step(self.draw(st.integers(1, 8)), self.draw(st.integers(0, 1))))

    def _fail_load(self) -> Move:
        if "full-hit" in self.packages and not self.draw(st.integers(0, 3)):
            # A store that goes on failing: it is asked again and again, or not.
            *before, again = self._outside_again((Fail(1000, "first"),))
            assert isinstance(again, Arrive)
            return (*before, again, *self._through(again, 12))
        aimed = self._alone and "full-hit" in self.packages
        if aimed and not self.draw(st.integers(0, 3)):
            return self._aimed.failed_within_a_step(self.draw)
        fail = Fail(
            self.draw(st.integers(1, 2)),
            self.draw(st.sampled_from(("all", "first", "last", "torn"))),
            self.draw(st.sampled_from((None, 0, 1))),
        )
        if "full-hit" not in self.packages or self.draw(st.booleans()):
            return (fail, self._arrival(), *self._steps(3))
        first = self._returning()
        prompt = first.prompt
        if self.draw(st.booleans()):  # a block is loaded within a step, and more is computed
            first = dataclasses.replace(first, prompt=Prompt(self._family(), self.size + 1))
            longer = self.draw(st.sampled_from((5 * self.size // 2, 4 * self.size + 6)))
            prompt = Prompt(first.prompt.family, longer)
        again = Arrive(prompt, self.draw(st.sampled_from((2, 4))), engine=first.engine)
        more: Move = (again,) if self.draw(st.booleans()) else ()
        after: Move = self._abort() if "abort" in self.packages and self.draw(st.booleans()) else ()
        return (first, *self._through(first, 5), Reset(engine=self._home(first)), fail, again,
                *more, *self._through(again, self.draw(st.integers(1, 2))), *after,
                *((again,) if after else ()))  # fmt: skip

    def _full(self) -> Move:
        """Several requests want to save at once, and some may not."""
        refuse = Refuse(self.draw(st.integers(1, 2)))
        aimed = self._alone and "full-hit" in self.packages
        if not aimed or self.draw(st.booleans()):
            arrivals = tuple(self._arrival() for _ in range(self.draw(st.integers(1, 3))))
            late: Move = (Step(1),) if self.draw(st.booleans()) else ()
            return (*arrivals, *late, refuse, *self._through(arrivals[0], 3), *self._steps())
        return self._aimed.refused(self.draw)

    def _fail_save(self) -> Move:
        fail = Fail(
            self.draw(st.integers(1, 2)),
            self.draw(st.sampled_from(("all", "first", "last", "torn"))),
            self.draw(st.sampled_from((None, 0, 1))),
            "save",
        )
        first = self._arrival()
        back = self.draw(st.booleans()) and "full-hit" in self.packages
        again: Move = (Reset(engine=self._home(first)), first) if back else ()
        return (fail, first, *self._through(first, self.draw(st.integers(2, 6))), *again,
                *self._steps())  # fmt: skip

    def _lost(self) -> Move:
        """A transfer never arrives; whoever is waiting for it hears so late."""
        if "full-hit" in self.packages and self.draw(st.booleans()):
            start = self._open_load()
        else:
            arrive = self._arrival()
            start = (Hold("any"), arrive, *self._through(arrive, self.draw(st.integers(1, 4))))
        more: Move = ()
        for package in ("abort", "preempt"):
            if package in self.packages and self.draw(st.booleans()):
                more = getattr(self, f"_{package}")()
                break
        return (*start, *more, Drop(self.draw(st.integers(0, 2))), *self._steps(2), Release(),
                *self._steps(2))  # fmt: skip

    def _forget(self) -> Move:
        """What a lookup has found is gone when it is loaded."""
        forget = Forget(self.draw(st.integers(1, 2)))
        if "full-hit" not in self.packages:
            return (forget, self._arrival(), *self._steps())
        *before, again = self._outside_again((forget,))
        assert isinstance(again, Arrive)
        return (*before, again, *self._through(again, self.draw(st.integers(1, 4))))

    def _corrupt(self) -> Move:
        """What a lookup has found is damaged when it is loaded."""
        corrupt = Corrupt(self.draw(st.integers(1, 2)), self.draw(st.sampled_from((None, 0, 1))))
        if "full-hit" not in self.packages:
            return (corrupt, self._arrival(), *self._steps())
        *before, again = self._outside_again((corrupt,))
        assert isinstance(again, Arrive)
        return (*before, again, *self._through(again, self.draw(st.integers(1, 4))))

    def _restart(self) -> Move:
        """An engine dies at some moment of a request's life; afterwards its client comes again."""
        restart = Restart(self.draw(st.integers(0, 1)), not self.draw(st.integers(0, 2)))
        if "full-hit" in self.packages and "delay" in self.packages and self.draw(st.booleans()):
            start = self._open_load()
        else:
            held: Move = ()
            if "delay" in self.packages and self.draw(st.booleans()):
                held = (Hold(self.draw(st.sampled_from(("save", "any")))),)
            arrive = self._arrival()
            start = (*held, arrive, *self._through(arrive, self.draw(st.integers(0, 5))))
        latest = next(a for a in reversed(start) if isinstance(a, Arrive))
        again = latest if "full-hit" in self.packages else self._stranger()
        return (*start, restart, again, *self._through(again, self.draw(st.integers(1, 4))),
                Release(), *self._steps(2))  # fmt: skip

    def _redeploy(self) -> Move:
        """Another model is served, then perhaps the first again; prompts return."""
        first = self._returning() if "full-hit" in self.packages else self._stranger()
        redeploy = Redeploy(
            self.draw(st.sampled_from(("b", "b", ""))),
            self.draw(st.sampled_from((0, 0, 0, 8, 32))),
            self.draw(st.sampled_from((0, 0, 0, 1, 2))),
        )
        again = Arrive(first.prompt, 2, engine=first.engine)
        back: Move = ()
        if self.draw(st.booleans()):
            back = (Redeploy(), again, *self._through(again, 3))
        return (first, *self._through(first, 5), redeploy, again, *self._through(again, 3), *back)

    def _shutdown(self) -> Move:
        """Engines are shut down at the worst moment: rarely, for then the run is over."""
        arrive = self._arrival()
        if self.draw(st.integers(0, 3)):
            return (arrive, *self._steps())
        held: Move = (Hold("any"),) if "delay" in self.packages else ()
        return (*held, arrive, *self._through(arrive, self.draw(st.integers(1, 4))), Stop())

    def _same_id(self) -> Move:
        """A client takes an id again, at once or later; the old request's KV may be on its way."""
        first = self._arrival()
        held: Move = (
            (Hold("save"),) if "delay" in self.packages and self.draw(st.booleans()) else ()
        )
        again = dataclasses.replace(self._arrival(), again=self.draw(st.integers(0, 1)))
        return (*held, first, *self._through(first, self.draw(st.integers(1, 5))), again,
                *self._steps())  # fmt: skip

    # -- devices -----------------------------------------------------------------------------------

    def _slow_device(self) -> Move:
        """Work waits in the streams of devices, and is done in parts and in another order."""
        stall = Stall(
            self.draw(st.sampled_from(("any", "any", "compute", "copy"))),
            self.draw(st.sampled_from((None, None, 0, 1))),
        )
        if {"full-hit", "abort"} <= self.packages and self.draw(st.booleans()):
            return (stall, *self._aimed.loaded_behind(self.draw), *self._flows())
        if "full-hit" in self.packages and self.draw(st.booleans()):
            *before, again = self._outside_again((stall,))
            assert isinstance(again, Arrive)
            start: Move = (*before, again, *self._through(again, self.draw(st.integers(1, 3))))
        else:
            arrive = self._arrival()
            start = (stall, arrive, *self._through(arrive, self.draw(st.integers(1, 5))))
        return (*start, *self._flows(), *self._meanwhile(), *self._flows(), *self._steps(2))

    def _flows(self) -> Move:
        """Something of what waits is done, or all of it."""
        order = self.draw(st.booleans())
        some = tuple(
            Flow(self.draw(st.sampled_from((1, 2, 5))), order)
            for _ in range(self.draw(st.integers(0, 2)))
        )
        return (*some, Flow(None, order)) if not self.draw(st.integers(0, 3)) else some

    def _fail_copy(self) -> Move:
        """Copies fail while a request is loaded, or when it is saved."""
        broken = Break(
            self.draw(st.sampled_from((1, 2, 1000))),
            self.draw(st.booleans()),
            self.draw(st.sampled_from((None, 0, 1))),
        )
        end: Move = (Break(0),) if self.draw(st.booleans()) else ()
        if "full-hit" in self.packages and self.draw(st.booleans()):
            *before, again = self._outside_again((broken,))
            assert isinstance(again, Arrive)
            return (*before, again, *self._through(again, self.draw(st.integers(1, 3))), *end)
        arrive = self._arrival()
        return (broken, arrive, *self._through(arrive, self.draw(st.integers(1, 5))), *end,
                *self._steps(2))  # fmt: skip

    # -- prefill and decode apart -----------------------------------------------------------------

    def _handover(self) -> Move:
        """Requests between engines; some are held up while other things happen."""
        arrive = self._arrival()
        if self.draw(st.booleans()):
            return (arrive, *self._through(arrive, self.draw(st.integers(1, 4))))
        late: Move = (Hold("route"), arrive, Step(self.draw(st.integers(1, 4))))
        return (*late, *self._meanwhile(), Release(self.draw(st.integers(0, 1))), *self._steps(3))

    def _expire(self) -> Move:
        """A lease runs out: nobody comes for the blocks, or too late."""
        arrive = self._arrival()
        held: Move = (Hold(self.draw(st.sampled_from(("route", "load")))), arrive,
                      *self._through(arrive, 4))  # fmt: skip
        lost: Move = (Lose(),) if self.draw(st.booleans()) else ()
        tick = Tick(self.draw(st.sampled_from((1.0, 59.0, 61.0, 3600.0))))
        return (*held, *lost, tick, *self._steps(2), Release(), *self._steps(3))

    def _repeat(self) -> Move:
        """A client tries again; the router sends the same hand-over."""
        arrive = self._arrival()
        late = self.draw(st.booleans()) and "delay" in self.packages
        held: Move = (Hold("load"),) if late else ()
        return (*held, arrive, *self._through(arrive, self.draw(st.integers(1, 3))),
                Repeat(self.draw(st.integers(0, 1))), *self._steps(3), Release(),
                *self._steps(2))  # fmt: skip

    def _peer_gone(self) -> Move:
        """An engine cannot be reached, in the middle of a transfer or before it; it comes back."""
        arrive = self._arrival()
        hold: Move = (Hold("load"),) if self.draw(st.booleans()) else ()
        cut = Cut(self.draw(st.integers(0, self.shape.engines - 1)))
        back: Move = (Cut(cut.engine, back=True),) if self.draw(st.booleans()) else ()
        return (*hold, arrive, *self._through(arrive, self.draw(st.integers(1, 3))), cut,
                *self._steps(2), Release(), *self._steps(2), *back, *self._steps(2))  # fmt: skip
