"""The engines of one topology: started when a scene needs them, looked at when it is over."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvconform.conformance.real.environment import OPTIONS, environment, free_port
from kvconform.conformance.real.outcome import Finding, Outcome
from kvconform.conformance.real.plain import Plain
from kvconform.conformance.real.process import EngineProcess, GoneError, HungError, until
from kvconform.scenario.deployment import ENGINES, Deployment, Topology, filled
from kvconform.scenario.errors import HarnessError, UsageError

MARGIN = 10.0


def is_idle(books: Mapping[str, int]) -> bool:
    """No request is there, and no block is held."""
    return not books["unfinished"] and books["free"] == books["blocks"]


@dataclass(frozen=True, slots=True)
class Part:
    """An engine that a scene needs.

    Attributes:
        name: one of the topology's.
        door: ``AsyncLLM`` or ``LLM``.
        policy: ``kv_load_failure_policy``.
        model: ``plain`` or ``swapped``, see ``model``.
    """

    name: str
    door: str = "AsyncLLM"
    policy: str = "recompute"
    model: str = "plain"


class Stage:
    """See the module.

    Args:
        deployment: of the target.
        topology: one of its.
        plain: the engine without a connector.
        folder: holds the models, logs, and what the target stores.
        seed: of the traffic.
        requests: of a scene.
        aborts: of these.
        margin: seconds that blocks may take to come back, beyond the connector's own lease.

    Attributes:
        engines: those that are up, by name.
        patience: seconds in which all blocks have to come back.
    """

    def __init__(
        self,
        deployment: Deployment,
        topology: Topology,
        plain: Plain,
        folder: Path,
        seed: int,
        requests: int,
        aborts: int,
        margin: float = MARGIN,
    ) -> None:
        self.deployment = deployment
        self.topology = topology
        self.plain = plain
        self.seed = seed
        self.requests = requests
        self.aborts = aborts
        self.patience = deployment.lease + margin
        self.engines: dict[str, EngineProcess] = {}
        self._folder = folder
        self._parts: dict[str, Part] = {}
        self._loaded: dict[str, int] = {}
        self._starts = 0
        self._were_up: set[str] = set()
        self._service: subprocess.Popen[bytes] | None = None
        kept = folder / f"kept-{topology}"
        kept.mkdir(parents=True)
        self.values: dict[str, Any] = {
            "run_dir": str(kept),
            "run": f"e2e-{topology}",
            "token": secrets.token_hex(16),
            "tp": 1,
            "store_blocks": 1024,
            **{f"port:{name}": free_port() for name in (*ENGINES, "store")},
        }

    # -- engines ----------------------------------------------------------------------------------

    def need(self, parts: Iterable[Part], outcome: Outcome) -> bool:
        """Have these engines up, side by side; False: the target does not let one come up again.

        Raises:
            UsageError: the target does not let an engine start at all.
        """
        if self.topology == "store":
            self._serve()
        parts = list(parts)
        for part in parts:
            if part.name in self.engines and self._parts[part.name] != part:
                self.engines.pop(part.name).close()
        missing = [part for part in parts if part.name not in self.engines]
        for part in missing:
            self.engines[part.name] = self._start(part)
            self._parts[part.name] = part
            self._loaded[part.name] = 0
        return all(self._is_up(part, outcome) for part in missing)

    def _start(self, part: Part) -> EngineProcess:
        deployment = self.deployment
        # As vLLM's own default, a fresh name each time: peers tell it from the one before it.
        self._starts += 1
        self.values[f"id:{part.name}"] = f"{part.name}-{self._starts}"
        transfer = deployment.transfer_config(part.name, self.topology, part.policy, self.values)
        told = deployment.told(part.name, self.values)
        return EngineProcess(
            part.name,
            part.door,
            {**OPTIONS, "kv_transfer_config": transfer},
            environment(filled(deployment.env, told), deployment.prepare),
            self._folder / part.model,
            self._folder / f"{self.topology}-{part.name}.log",
        )

    def _is_up(self, part: Part, outcome: Outcome) -> bool:
        engine = self.engines[part.name]
        try:
            engine.wait_until_up()
        except GoneError as error:
            why = engine.last_words() or str(error)
            if part.name not in self._were_up:
                raise UsageError(f"{self.deployment.name} cannot be started: {why}.") from None
            outcome.findings.append(Finding("died", f"{part.name} does not come up again: {why}"))
        except HungError as error:
            outcome.findings.append(Finding("hung", f"at the start: {error}"))
        else:
            self._were_up.add(part.name)
            return True
        self.drop(part.name)
        return False

    def _serve(self) -> None:
        """Start what runs beside the engines."""
        if self._service is not None or not self.deployment.service:
            return
        command = filled(self.deployment.service, self.values)
        with (self._folder / "service.log").open("ab") as said:
            self._service = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
                env=environment(filled(self.deployment.service_env, self.values)),
            )  # fmt: skip
        assert self._service.stdout is not None
        if not self._service.stdout.readline():  # it says where it serves, or ends
            raise HarnessError(f"{' '.join(command)} does not run; see {said.name}")

    def policy(self, name: str) -> str:
        """What becomes of requests of this engine when their loads fail."""
        return self._parts[name].policy

    def drop(self, name: str) -> None:
        """Kill an engine, as a machine that fails does."""
        engine = self.engines.pop(name, None)
        if engine is not None:
            engine.kill()

    def close(self) -> None:
        """Nothing runs any more. Calling it again does nothing."""
        for name in list(self.engines):
            self.drop(name)
        if self._service is not None:
            self._service.kill()
            self._service.communicate()

    # -- what a scene leaves ----------------------------------------------------------------------

    def look(self, outcome: Outcome) -> None:
        """Look at every engine when a scene is over: is it alive, and are all blocks back?

        What is not as it should be is a finding, and that engine is started anew for the next
        scene. Prefix caches are empty afterwards, so that the next scene's KV has to come from the
        connector.
        """
        deadline = time.monotonic() + self.patience
        for name, engine in list(self.engines.items()):
            try:
                left, loaded = self._settle(engine, deadline)
            except GoneError:
                self.mourn(name, outcome)
                continue
            except HungError as error:
                outcome.findings.append(Finding("hung", str(error)))
                self.drop(name)
                continue
            outcome.loaded += loaded - self._loaded.get(name, 0)
            self._loaded[name] = loaded
            if left:
                outcome.left += left
                after = f"{self.patience:.0f} s after the last request"
                what = f"{left} blocks of {name} are still held {after}"
                outcome.findings.append(Finding("left", what))
                self.drop(name)
            elif not engine.result(engine.ask("reset")):
                self.drop(name)

    def _settle(self, engine: EngineProcess, deadline: float) -> tuple[int, int]:
        """Blocks that are not back when the time is over, and prompt tokens loaded so far."""
        books: dict[str, int] = {}

        def rests() -> bool:
            nonlocal books
            books = engine.books()
            return is_idle(books)

        until(rests, deadline - time.monotonic())
        return books["blocks"] - books["free"], books["loaded"]

    def mourn(self, name: str, outcome: Outcome) -> None:
        """An engine has died without being told to: find out how."""
        engine = self.engines.get(name)
        if engine is None:
            return
        why = engine.last_words()
        kind = "died" if why else "killed"
        outcome.findings.append(
            Finding(kind, f"{name} died: {why or 'its process ended without an exception'}")
        )
        self.drop(name)
