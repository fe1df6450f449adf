"""Engines on paper: they answer as the contract says, or break it in one way, and compute nothing.

The answer to a prompt is a hash of it. A paper engine that loads the KV of ``n`` tokens of another
prompt answers as to the mixture of both, as a real one does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kvconform.conformance.real.model import swapped
from kvconform.conformance.real.plain import Plain
from kvconform.conformance.real.process import GoneError, HungError
from kvconform.conformance.real.prompts import mixed
from kvconform.conformance.real.stage import Stage
from kvconform.scenario.deployment import Deployment, Topology

Store = dict[tuple[int, ...], tuple[int, ...]]


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """So many tokens, which depend on all of the prompt."""
    digest = hashlib.sha256(repr(tuple(prompt)).encode()).digest()
    return [digest[i] for i in range(count)]


class Paper:
    """One engine; see the module.

    Args:
        name: the engine's.
        store: prompts whose KV there is, by the prompts under whose keys it is; None: there is no
            store.
        wrong: how it breaks the contract; "": it does not.

    Attributes:
        swaps: its embeddings are swapped.
    """

    door = "AsyncLLM"
    is_up = True

    def __init__(self, name: str, store: Store | None, wrong: str = "") -> None:
        self.name = name
        self.wrong = wrong
        self._store = store
        self.swaps = False
        self._loaded = 0
        self._held = 0
        self._dead = False

    def ask(self, do: str, requests: Sequence[dict[str, Any]] = ()) -> Future[Any]:
        future: Future[Any] = Future()
        if self._dead or (self.wrong == "dies" and requests and requests[0]["params"]):
            self._dead = True
            future.set_exception(GoneError(self.name))
        elif do == "reset":
            future.set_result(True)
        elif self.wrong not in ("never ends", "hangs"):
            future.set_result([self._run(request) for request in requests])
        return future

    def result(self, future: Future[Any], seconds: float = 0.0) -> Any:
        return future.result(seconds)

    def books(self) -> dict[str, int]:
        if self.wrong == "hangs":
            raise HungError(self.name)
        if self._dead:
            raise GoneError(self.name)
        free = 10 - self._held
        return {"blocks": 10, "free": free, "unfinished": 0, "loaded": self._loaded}

    def last_words(self) -> str:
        return "ValueError: on purpose (hook, mine.py line 1)"

    def kill(self) -> None:
        self._dead = True

    def close(self) -> None:
        self._dead = True

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt = tuple(request["tokens"])
        params = request.get("params") or {}
        there = params.get("kv") or (self._store or {}).get(prompt)
        read, count = prompt, len(prompt) - 1
        if there is not None and self.wrong != "loads nothing":
            self._loaded += count
            if self.wrong != "only says so":
                read = mixed(there[::-1] if self.wrong == "mixes up" else there, prompt, count)
        if self._store is not None:
            self._store[prompt] = tuple(swapped(prompt)) if self.swaps else prompt
        tokens = answer(read, request["max_tokens"])
        abort = request.get("abort")
        self._held += self.wrong == "keeps a block"
        error = "error" if self.wrong == "refuses" and params.get("kv") else ""
        return {
            "name": request["name"],
            "tokens": tokens[:1] if abort or error else tokens,
            "reason": "abort" if abort else error or "length",
            "params": {"kv": prompt} if params.get("do_remote_decode") else None,
            "margin": 1.0,
            "error": "",
        }


def stage(folder: Path, topology: Topology, wrong: str = "") -> Stage:
    """A stage of paper engines, the second of which is ``wrong``."""
    deployment = Deployment(
        "paper", "a:B", dialect={"prefill": {"do_remote_decode": True}}, lease=0.0, patience=0.05
    )
    plain = Plain(Paper("plain", None))  # type: ignore[arg-type]
    made = Stage(deployment, topology, plain, folder, 1, 12, 4, margin=0.01)
    names = ("prefill", "decode") if topology == "pd" else ("writer", "reader")
    store: Store | None = {} if topology == "store" else None
    for name in names:
        paper = Paper(name, store, wrong if name == names[1] else "")
        made.engines[name] = paper  # type: ignore[assignment]
    return made
