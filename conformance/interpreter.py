"""From actions to what happens: finds what an action refers to, and does it.

Total: an action without a referent is a recorded no-op, so every list of actions is a scenario.
"""

from __future__ import annotations

from dataclasses import replace

from kvconform.engine import compat, lives
from kvconform.engine.cluster import Cluster
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
    action_to_json,
)
from kvconform.scenario.trace import Event, Kind


class Interpreter:
    """Does actions on a cluster, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._index = 0

    def do(self, action: Action) -> None:
        """Do one action.

        Raises:
            HaltedError: the run is over.
        """
        self._do(action)
        self.cluster.look_at_device()

    def _do(self, action: Action) -> None:
        match action:
            case Arrive():
                self._arrive(action)
            case Abort():
                self._abort(action)
            case Step():
                self._step(action)
            case Reset():
                engine = self.cluster.engines[action.engine % len(self.cluster.engines)]
                self._record(action, f"engine {engine.index}", True, engine=engine.index)
                engine.reset(action.running, action.connector)
            case Hold():
                effect = self.cluster.world.hold(action.direction, action.rank)
                self._record(action, _rank(action.rank), effect)
            case Release():
                name = self.cluster.world.release(action.transfer)
                self._record(action, name or "no transfer is open", name is not None)
            case Busy():
                effect = self.cluster.world.busy(action.lookups)
                self._record(action, f"{action.lookups} lookups", effect)
            case Fail():
                # 0.11.0 cannot be told that a load has failed, so there none does.
                effect = (
                    action.direction == "save" or compat.REPORTS_FAILED_LOADS
                ) and self.cluster.world.fail(
                    action.transfers, action.blocks, action.rank, action.direction
                )
                self._record(action, _rank(action.rank), effect)
            case Drop():
                self._drop(action)
            case Refuse():
                effect = self.cluster.world.refuse(action.saves)
                self._record(action, f"{action.saves} saves", effect)
            case Forget():
                effect = compat.REPORTS_FAILED_LOADS and self.cluster.world.forget(action.lookups)
                self._record(action, f"{action.lookups} lookups", effect)
            case Corrupt():
                effect = compat.REPORTS_FAILED_LOADS and self.cluster.world.corrupt(
                    action.lookups, action.rank
                )
                self._record(action, f"{action.lookups} lookups", effect)
            case Restart():
                self._restart(action)
            case Redeploy():
                effect = "restart" in self.cluster.world.offers
                self._record(action, "every engine", effect)
                if effect:
                    lives.redeploy(self.cluster, action.model, action.block_size, action.tp)
            case Repeat():
                self._repeat(action)
            case Stop():
                self._record(action, "every engine", True)
                self.cluster.stop()
            case Tick():
                self.cluster.clock.advance(action.seconds)
                self.cluster.world.passes(action.seconds)
                self._record(action, f"{action.seconds:g} s", True)
            case Lose():
                lost = self.cluster.world.lose(action.handover)
                name = lost.request if lost else None
                self._record(action, name or "nothing is on its way", bool(lost), request=name)
            case Cut():
                effect = compat.REPORTS_FAILED_LOADS and self.cluster.world.cut(
                    action.engine, action.back
                )
                self._record(action, f"engine {action.engine % len(self.cluster.engines)}", effect)
            case Stall():
                effect = self.cluster.device.stall(action.streams, action.rank)
                self._record(action, f"{action.streams} of {_rank(action.rank)}", effect)
            case Flow():
                effect = self.cluster.device.flow(action.work, action.newest_first)
                what = "everything" if action.work is None else f"up to {action.work}"
                self._record(action, what, effect)
            case Break():
                # It may be a copy of a load, of which vLLM has to be told.
                told = self.cluster.shape.groups == 1 or compat.NAMES_FAILED_REQUESTS
                effect = (compat.REPORTS_FAILED_LOADS and told) and self.cluster.device.fail(
                    action.copies, action.late, action.rank
                )
                self._record(action, f"{action.copies} copies of {_rank(action.rank)}", effect)
            case _:
                raise TypeError(f"unknown action {action!r}")

    def _drop(self, action: Drop) -> None:
        can = compat.REPORTS_FAILED_LOADS
        lost = self.cluster.world.opened(action.transfer) if can else None
        if lost is None:
            self._record(action, "no transfer is open", False)
        else:
            self._record(action, lost.name, True, request=lost.request)
            self.cluster.world.drop(lost)

    def _restart(self, action: Restart) -> None:
        world, engine = self.cluster.world, action.engine % len(self.cluster.engines)
        # Whoever pulls from an engine that has died has to be able to say that the load failed.
        alone = self.cluster.shape.topology == "store" or compat.REPORTS_FAILED_LOADS
        effect = "restart" in world.offers and alone
        clean = action.clean or not world.crashes
        how = "shut down before" if clean else "without a word"
        self._record(action, f"engine {engine}, {how}", effect, engine=engine)
        if effect:
            lives.restart(self.cluster, engine, clean)

    def _repeat(self, action: Repeat) -> None:
        again = self.cluster.world.repeat(action.handover) if compat.REPORTS_FAILED_LOADS else None
        name = again.request if again else None
        self._record(action, name or "nothing was handed over", bool(again), request=name)

    def _arrive(self, action: Arrive) -> None:
        cluster = self.cluster
        name = self._id_of(action)
        old = cluster.arrived.get(name)
        engine = old.engine if old is not None else cluster.place(action.engine)
        if not cluster.fits(action.prompt, action.max_tokens):
            self._record(action, "does not fit into the pool", False, engine=engine)
            return
        in_use = old is not None and cluster.engines[engine].status(name) is not None
        if in_use and not compat.takes_ids_in_use(cluster.engines[engine].scheduler):
            self._record(action, f"{name} is in use", False, engine=engine)
            return
        if not compat.tells_apart(action.identity):
            why = f"this vLLM has the same block hashes for any {action.identity}"
            self._record(action, why, False, engine=engine)
            return
        self._record(action, name, True, engine=engine, request=name)
        identity = replace(action.identity, model=cluster.engines[engine].life.model)
        cluster.arrive(
            action.prompt, action.max_tokens, identity,
            action.engine if old is None else engine, action.priority, name=name,
            stop=action.stop,
        )  # fmt: skip

    def _id_of(self, action: Arrive) -> str:
        """The id that a request comes with."""
        cluster = self.cluster
        if action.again is None or cluster.shape.topology == "pd":  # there legs have ids in common
            return cluster.next_name()
        over = [name for name in cluster.arrived if cluster.is_over(name)]
        return over[-1 - action.again % len(over)] if over else cluster.next_name()

    def _abort(self, action: Abort) -> None:
        live = self.cluster.live()
        if not live:
            self._record(action, "no request is there", False)
            return
        name = live[-1 - action.request % len(live)]
        engine = self.cluster.engine_of(name)
        self._record(action, name, True, engine=engine.index, request=name)
        if action.mid_step:
            engine.abort_mid_step(name)
        else:
            engine.abort(name)

    def _step(self, action: Step) -> None:
        engine = self.cluster.engines[action.engine % len(self.cluster.engines)]
        self._record(action, f"engine {engine.index}", engine.has_work(), engine=engine.index)
        for _ in range(action.count):
            if not self.cluster.step(engine.index):
                break

    def _record(
        self,
        action: Action,
        resolved: str,
        effect: bool,
        *,
        engine: int = -1,
        request: str | None = None,
    ) -> None:
        step = self.cluster.engines[engine].step_number if engine >= 0 else 0
        self.cluster.trace.emit(
            Event(
                Kind.ACTION, engine, step, request, None,
                {"index": self._index, "action": action_to_json(action), "resolved": resolved,
                 "effect": effect},
            )
        )  # fmt: skip
        self._index += 1


def _rank(rank: int | None) -> str:
    return "every rank" if rank is None else f"rank {rank}"
