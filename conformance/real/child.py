"""An engine's process: ``python -m kvconform.conformance.real.child``, spoken to in lines of JSON.

The first line says how the engine is made; the first answer comes when it is up. After it each
line is an order with an ``id``, and gets one line with the same ``id`` and an ``answer`` or an
``error``. Orders of an ``AsyncLLM`` are carried out side by side, those of an ``LLM`` one by one.
What vLLM prints goes to standard error, whoever prints it. When standard input ends, so does the
process, and its engine core with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Protocol

_BOOKS = "kvc_books"
_IDLE_SECONDS = 0.02
NOBODY = -1
"""The id of an error that is no order's."""

_LOADED = "vllm:prompt_tokens_by_source"


class Door(Protocol):
    """One of vLLM's two Python doors."""

    async def run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run requests to their ends; see :func:`ended`."""

    async def books(self) -> dict[str, int]:
        """See :class:`kvconform.conformance.real.inside.Inside`."""

    async def reset(self) -> bool:
        """Empty the prefix cache; False: a block is in use."""

    def close(self) -> None:
        """Shut the engine down."""


class Sync:
    """``vllm.LLM``: a batch of requests at a time; the engine core is in this process."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(**options)

    async def run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See :class:`Door`; nothing is aborted here."""
        outputs = self._llm.generate(
            [{"prompt_token_ids": r["tokens"]} for r in requests],
            [sampling(r) for r in requests],
            use_tqdm=False,
        )
        return [ended(r["name"], o) for r, o in zip(requests, outputs, strict=True)]

    def idle(self) -> None:
        """What the engine core's own process does while no request is there: transfers go on."""
        self._llm.llm_engine.step()

    async def books(self) -> dict[str, int]:
        """See :class:`Door`."""
        return self._llm.collective_rpc(_BOOKS)[0]

    async def reset(self) -> bool:
        """See :class:`Door`."""
        return bool(self._llm.reset_prefix_cache())

    def close(self) -> None:
        """See :class:`Door`."""
        self._llm.llm_engine.engine_core.shutdown()


class Async:
    """``AsyncLLM``, which the OpenAI server stands on."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))

    async def run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See :class:`Door`."""
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, aborted after so many seconds or tokens if it says so."""
        name, abort = request["name"], request.get("abort") or {}
        timer = asyncio.create_task(self._abort_after(name, abort.get("seconds")))
        output, error = None, ""
        prompt = {"prompt_token_ids": request["tokens"]}
        try:
            async for output in self._engine.generate(prompt, sampling(request), name):
                if len(output.outputs[0].token_ids) >= abort.get("tokens", 1 << 30):
                    await self._engine.abort(name)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        timer.cancel()
        return ended(name, output, error)

    async def _abort_after(self, name: str, seconds: float | None) -> None:
        if seconds is None:
            return
        await asyncio.sleep(seconds)
        while True:  # an engine that does not know the request yet does nothing
            await self._engine.abort(name)
            await asyncio.sleep(_IDLE_SECONDS / 10)

    async def books(self) -> dict[str, int]:
        """See :class:`Door`."""
        return (await self._engine.collective_rpc(_BOOKS))[0]

    async def reset(self) -> bool:
        """See :class:`Door`."""
        return bool(await self._engine.reset_prefix_cache())

    def close(self) -> None:
        """See :class:`Door`."""
        self._engine.shutdown()


def sampling(request: Mapping[str, Any]) -> Any:
    """vLLM's sampling parameters: the likeliest token each time, and so many of them."""
    from vllm import SamplingParams

    params = request.get("params")
    return SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=2 if request.get("margin") else None,
        extra_args={"kv_transfer_params": params} if params else None,
    )


def ended(name: str, output: Any, error: str = "") -> dict[str, Any]:
    """How a request ended.

    Returns:
        ``name``; ``tokens`` of its answer; ``reason``: vLLM's ``finish_reason``, empty if it has
        none; ``params`` that lead to its KV; ``margin``: by how much (in log probability) the
        closest choice was made; ``error``, if it ended by an exception.
    """
    if output is None:
        return {"name": name, "tokens": [], "reason": "", "params": None, "margin": None,
                "error": error}  # fmt: skip
    (answer,) = output.outputs
    margins = []
    for choices in answer.logprobs or ():
        best, second = sorted((c.logprob for c in choices.values()), reverse=True)[:2]
        margins.append(best - second)
    return {
        "name": name,
        "tokens": list(answer.token_ids),
        "reason": str(answer.finish_reason or ""),
        "params": getattr(output, "kv_transfer_params", None),
        "margin": min(margins, default=None),
        "error": error,
    }


def loaded() -> int:
    """Prompt tokens that came through the connector so far, by vLLM's own count."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    return sum(
        int(getattr(metric, "value", 0))
        for metric in get_metrics_snapshot()
        if metric.name == _LOADED and metric.labels.get("source") == "external_kv_transfer"
    )


def told(error: Exception) -> str:
    """An exception, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f" ({f.name}, {os.path.basename(f.filename)} line {f.lineno})" for f in frames[-1:]]
    return f"{type(error).__name__}: {error}{''.join(where)}"


async def carry_out(door: Door, order: Mapping[str, Any]) -> Any:
    """One order's answer."""
    match order["do"]:
        case "run":
            return await door.run(order["requests"])
        case "books":
            return {**await door.books(), "loaded": loaded()}
        case "reset":
            return await door.reset()
    raise ValueError(f"no order {order['do']!r}")


async def serve(out: Any) -> None:
    """Make the engine, and carry out orders until there are no more."""
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    async def answer(order: dict[str, Any]) -> None:
        try:
            say(id=order["id"], answer=await carry_out(door, order))
        except Exception as error:
            say(id=order["id"], error=told(error))

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, json.loads(line))
        os.killpg(0, signal.SIGKILL)  # whoever started this has gone

    made = json.loads(sys.stdin.readline())
    try:
        door: Door = (Sync if made["door"] == "LLM" else Async)(made["options"])
    except Exception as error:
        say(id=0, error=told(error))
        return
    threading.Thread(target=read, daemon=True).start()
    say(id=0, answer="ready")
    running: set[asyncio.Task[None]] = set()
    while True:
        try:
            order = await asyncio.wait_for(orders.get(), _IDLE_SECONDS)
        except TimeoutError:
            try:
                if isinstance(door, Sync):
                    door.idle()
            except Exception as error:
                say(id=NOBODY, error=told(error))
                return
            continue
        if order["do"] == "close":
            door.close()
            say(id=order["id"], answer="closed")
            return
        task = asyncio.create_task(answer(order))
        running.add(task)
        task.add_done_callback(running.discard)
        if isinstance(door, Sync):
            await task


def main() -> None:
    """The process."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(out))
    os._exit(0)  # threads of the target may go on for ever; how it shut down has been seen


if __name__ == "__main__":
    main()
