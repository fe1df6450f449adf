"""Requests on their way: sent to engines, handed from one to the other, waited for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from kvconform.conformance.real.outcome import Finding, Outcome
from kvconform.conformance.real.plain import ANSWER, Tokens
from kvconform.conformance.real.process import (
    EngineProcess,
    GoneError,
    HungError,
    RaisedError,
)
from kvconform.conformance.real.stage import Stage
from kvconform.scenario.deployment import DECODE, PREFILL, filled

Ended = dict[str, Any]
Aborts = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that an engine has got.

    Attributes:
        name: the request's.
        engine: the engine's.
        future: its end; of a batch, a list of ends.
        index: which of them.
        aborts: it is to be aborted.
        queues: its batch waits for those before it, as of an ``LLM``.
    """

    name: str
    engine: str
    future: Future[Any]
    index: int
    aborts: bool
    queues: bool


class Flow:
    """The requests of one scene.

    Args:
        stage: the engines.
        outcome: where is written down what came of them.

    Attributes:
        ended: how requests ended, by name; the last engine that had one counts.
        prefilled: how those ended before that went on to be decoded.
        gone: requests whose engine died under them.
    """

    def __init__(self, stage: Stage, outcome: Outcome) -> None:
        self.stage = stage
        self.outcome = outcome
        self.ended: dict[str, Ended] = {}
        self.prefilled: dict[str, Ended] = {}
        self.gone: set[str] = set()

    def at(self, name: str) -> EngineProcess:
        """An engine by name.

        Raises:
            GoneError: it is there no longer, for what was found in this scene.
        """
        if name not in self.stage.engines:
            raise GoneError(name)
        return self.stage.engines[name]

    def send(
        self,
        engine: EngineProcess,
        prompts: Mapping[str, Tokens],
        *,
        params: Mapping[str, Any] | None = None,
        tokens: int = ANSWER,
        aborts: Aborts | None = None,
    ) -> list[Sent]:
        """Send requests to an engine: at once where they are served side by side, else as a batch.

        Args:
            engine: that gets them.
            prompts: by the requests' names.
            params: ``kv_transfer_params`` by name.
            tokens: of each answer.
            aborts: when to abort some, by name: after so many ``seconds`` or ``tokens``.
        """
        aborts = aborts or {}
        requests: list[dict[str, Any]] = [
            {
                "name": name,
                "tokens": prompt,
                "max_tokens": tokens,
                "params": (params or {}).get(name),
                "abort": aborts.get(name),
            }
            for name, prompt in prompts.items()
        ]
        queues = engine.door == "LLM"
        batches = [requests] if queues else [[request] for request in requests]
        sent = []
        for batch in batches:
            future = engine.ask("run", requests=batch)
            sent += [
                Sent(r["name"], engine.name, future, i, r["name"] in aborts, queues)
                for i, r in enumerate(batch)
            ]
        return sent

    def collect(self, sent: Sequence[Sent]) -> dict[str, Ended]:
        """Wait until they have ended; who has not when the time is over is a finding."""
        batches = len({id(one.future) for one in sent if one.queues})
        seconds = self.stage.deployment.patience * max(1, batches)
        wait([one.future for one in sent], seconds)
        late: dict[str, list[str]] = {}
        found: dict[str, Ended] = {}
        for one in sent:
            if not one.future.done():
                late.setdefault(one.engine, []).append(one.name)
            elif (ended := self._end(one)) is not None:
                found[one.name] = ended
        self.ended |= found
        for engine, names in late.items():
            what = f"no end after {seconds:.0f} s on {engine}"
            kind = "endless" if self._answers(engine) else "hung"
            self.outcome.findings.append(Finding(kind, what, tuple(names)))
            self.stage.drop(engine)
        return found

    def _answers(self, engine: str) -> bool:
        """Whether an engine is alive: its requests do not end, and it says what it has."""
        try:
            if self.at(engine).door != "LLM":  # that says nothing while a batch runs
                self.at(engine).books()
        except HungError:
            return False
        except GoneError:
            self.stage.mourn(engine, self.outcome)
        return True

    def _end(self, one: Sent) -> Ended | None:
        try:
            ended: Ended = one.future.result()[one.index]
        except RaisedError:
            self.stage.mourn(one.engine, self.outcome)
            self.gone.add(one.name)
            return None
        except GoneError:
            self.gone.add(one.name)
            return None
        if ended["error"].startswith("EngineDeadError"):
            self.gone.add(one.name)
            return None
        return {**ended, "asked_to_abort": one.aborts}

    # -- prefill and decode apart -----------------------------------------------------------------

    def prefill(self, prompts: Mapping[str, Tokens], aborts: Aborts | None = None) -> list[Sent]:
        """Send requests to be prefilled: one token each, with what the dialect says."""
        said = self.stage.deployment.dialect.get("prefill", {})
        params = {name: filled(said, self._values(name)) for name in prompts}
        return self.send(self.at(PREFILL), prompts, params=params, tokens=1, aborts=aborts)

    def route(self, name: str) -> dict[str, Any] | None:
        """The params with which a request goes on to be decoded; None: the KV is nowhere."""
        prefilled = self.prefilled.get(name)
        if prefilled is None or prefilled["reason"] != "length":
            return None
        said = filled(self.stage.deployment.dialect.get("decode", {}), self._values(name))
        return {**(prefilled["params"] or {}), **said} or None

    def hand_over(
        self,
        prompts: Mapping[str, Tokens],
        prefill_aborts: Aborts | None = None,
        decode_aborts: Aborts | None = None,
        lost: Sequence[str] = (),
    ) -> None:
        """Prefill, and decode each as soon as it was prefilled; wait for all.

        Args:
            prompts: by name.
            prefill_aborts: those that the client aborts while they are prefilled.
            decode_aborts: those that it aborts later.
            lost: those whose client goes when they were prefilled: they are decoded nowhere.
        """
        prefilling = self.prefill(prompts, prefill_aborts)
        decoding: list[Sent] = []
        deadline = time.monotonic() + self.stage.deployment.patience
        while prefilling and time.monotonic() < deadline:
            futures = [one.future for one in prefilling]
            done = wait(futures, deadline - time.monotonic(), FIRST_COMPLETED).done
            ready = [one for one in prefilling if one.future in done]
            prefilling = [one for one in prefilling if one.future not in done]
            ended = self.collect(ready)
            over = {n for n, e in ended.items() if e["reason"] == "abort"} | set(lost)
            onward = {one.name for one in ready} - over
            decoding += self.decode({n: prompts[n] for n in prompts if n in onward}, decode_aborts)
        self.collect(prefilling)
        self.collect(decoding)
        for name in set(lost) & set(self.ended):
            self.ended[name] |= {"reason": "abort", "asked_to_abort": True}

    def decode(
        self, prompts: Mapping[str, Tokens], aborts: Aborts | None = None, tokens: int = ANSWER
    ) -> list[Sent]:
        """Send requests on that were prefilled, with the params that lead to their KV."""
        self.prefilled |= {n: self.ended.pop(n) for n in prompts if n in self.ended}
        self.gone -= set(prompts)
        params = {name: self.route(name) for name in prompts}
        return self.send(self.at(DECODE), prompts, params=params, tokens=tokens, aborts=aborts)

    def _values(self, name: str) -> dict[str, Any]:
        return {**self.stage.values, "transfer": name}

    # -- the end ----------------------------------------------------------------------------------

    def judge(
        self, prompts: Mapping[str, Tokens], *, may_fail: bool = False, but: Collection[str] = ()
    ) -> None:
        """Compare the answers with the plain ones.

        Args:
            prompts: of the requests that are judged, by name.
            may_fail: failed loads end requests (policy ``fail``).
            but: those that need not have ended, for the scene has killed their engine.
        """
        self.outcome.requests += len(prompts)
        answers = dict(zip(prompts, self.stage.plain.answers(prompts.values()), strict=True))
        began = {name: self.prefilled[name] for name in prompts if name in self.prefilled}
        self.outcome.judge(began, answers, counts=False)
        ended = {name: self.ended[name] for name in prompts if name in self.ended}
        self.outcome.judge(ended, answers, may_fail=may_fail)
        self.outcome.lost += len(set(but) & set(prompts) - set(ended))
        lost = [name for name in prompts if name not in {*ended, *but}]
        late = {name for finding in self.outcome.findings for name in finding.requests}
        if lost and not set(lost) <= late:
            self.outcome.findings.append(Finding("lost", "ended with their engine", tuple(lost)))
