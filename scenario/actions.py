"""What the driver does: small frozen records that serialise to JSON.

An action refers to requests and transfers by *selector*: ``k`` means the k-th most recent (0 is the
latest), modulo how many there are. So every list of actions is a valid scenario, whatever the
target does, and deleting an action never makes the rest meaningless. The interpreter is total: an
action without a referent is a recorded no-op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kvconform.scenario.codec import decode, encode
from kvconform.scenario.errors import UsageError
from kvconform.scenario.identity import MEDIA_TOKENS, Identity
from kvconform.scenario.prompt import Prompt

Direction = Literal["load", "save", "route", "any"]
"""Transfers into an engine, out of one, requests on their way from prefill to decode; or all."""

Streams = Literal["compute", "copy", "any"]
"""A device's compute stream, all its others, or all."""


@dataclass(frozen=True, slots=True)
class Action:
    """Base of all actions. ``do`` is the action's name in JSON."""

    do: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Arrive(Action):
    """A request arrives at an engine.

    Attributes:
        prompt: its prompt.
        max_tokens: output tokens after which it stops.
        salt: the tenant's cache salt; requests of different salts must never share KV.
        engine: which engine, modulo the number of engines. Where prefill and decode are apart,
            which of those that decode.
        priority: the lower, the sooner, where the shape's policy is ``priority``.
        adapter: the LoRA adapter that it runs with, which makes its KV different too.
        stop: a stop token ends it: this output token is one, counted from 1; None: no stop token.
        version: which adapter the name stands for: another was loaded in its place.
        media: an image in its prompt, by name; it takes up to ``MEDIA_TOKENS`` tokens.
        media_at: position of its first token; 0 where the prompt is too short for that.
        embeds: its prompt comes as embeddings that this encoder made of the tokens.
        again: the client takes the id of the k-th most recent request that is over, at the engine
            where that was; None, or none is over: a new id.
    """

    do: ClassVar[str] = "arrive"
    prompt: Prompt
    max_tokens: int = 1
    salt: str | None = None
    engine: int = 0
    priority: int = 0
    adapter: str | None = None
    again: int | None = None
    stop: int | None = None
    version: int = 0
    media: str | None = None
    media_at: int = 0
    embeds: str | None = None

    @property
    def identity(self) -> Identity:
        """Whose KV it is, by the model that engines begin with."""
        fits = self.media_at + MEDIA_TOKENS <= self.prompt.num_tokens
        return Identity(
            self.salt,
            self.adapter,
            self.version if self.adapter is not None else 0,
            self.media,
            self.media_at if self.media is not None and fits else 0,
            self.embeds,
        )


@dataclass(frozen=True, slots=True)
class Abort(Action):
    """The k-th most recent unforgotten request is aborted by its client.

    With ``mid_step`` the abort is delivered within the next step of its engine: after the workers
    executed it, before the scheduler sees their output.
    """

    do: ClassVar[str] = "abort"
    request: int = 0
    mid_step: bool = False


@dataclass(frozen=True, slots=True)
class Step(Action):
    """An engine takes ``count`` steps (none where it has nothing to do)."""

    do: ClassVar[str] = "step"
    count: int = 1
    engine: int = 0


@dataclass(frozen=True, slots=True)
class Hold(Action):
    """From now on, transfers of this direction (and rank; None: every rank) stay open."""

    do: ClassVar[str] = "hold"
    direction: Direction = "any"
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Release(Action):
    """The k-th most recently opened transfer completes. ``None``: all do, and holding ends."""

    do: ClassVar[str] = "release"
    transfer: int | None = None


@dataclass(frozen=True, slots=True)
class Busy(Action):
    """The store leaves the next ``lookups`` questions unanswered: the connector has to say None."""

    do: ClassVar[str] = "busy"
    lookups: int = 1


@dataclass(frozen=True, slots=True)
class Fail(Action):
    """The next ``transfers`` loads, or saves, fail: all their blocks, or the first or last only.

    ``torn``: half of the bytes of each of its blocks arrive before it fails.
    """

    do: ClassVar[str] = "fail"
    transfers: int = 1
    blocks: Literal["all", "first", "last", "torn"] = "all"
    rank: int | None = None
    direction: Literal["load", "save"] = "load"


@dataclass(frozen=True, slots=True)
class Drop(Action):
    """The k-th most recently opened transfer is lost on its way: it ends late, and as failed."""

    do: ClassVar[str] = "drop"
    transfer: int = 0


@dataclass(frozen=True, slots=True)
class Refuse(Action):
    """The store is full: for the next ``saves`` that are planned there is no room."""

    do: ClassVar[str] = "refuse"
    saves: int = 1


@dataclass(frozen=True, slots=True)
class Forget(Action):
    """The store forgets, behind each of the next ``lookups`` that find something, what was found.

    That is between lookup and admission; what somebody holds there is not forgotten.
    """

    do: ClassVar[str] = "forget"
    lookups: int = 1


@dataclass(frozen=True, slots=True)
class Corrupt(Action):
    """The store's memory fails, behind each of the next ``lookups`` that find something.

    A block of what was found is damaged, on the given rank, or on all.
    """

    do: ClassVar[str] = "corrupt"
    lookups: int = 1
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Restart(Action):
    """An engine dies with whatever is under way, and starts anew with the same configuration.

    Its requests are lost to their clients; what lies outside the engine outlives it.

    Attributes:
        engine: which one.
        clean: it is shut down; else its process dies, and no hook is called any more.
    """

    do: ClassVar[str] = "restart"
    engine: int = 0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Redeploy(Action):
    """All engines are shut down and start anew, to serve another model or in another layout.

    What lies outside outlives them, and is of no use to them where it is another model's.

    Attributes:
        model: the model that they serve from now on.
        block_size: tokens per KV block; 0: as before.
        tp: tensor-parallel ranks; 0: as before.
    """

    do: ClassVar[str] = "redeploy"
    model: str = ""
    block_size: Literal[0, 8, 16, 32] = 0
    tp: Literal[0, 1, 2, 4] = 0


@dataclass(frozen=True, slots=True)
class Reset(Action):
    """The operator resets an engine's prefix cache, as after an update of the weights.

    Attributes:
        running: preempt running requests first (vLLM's ``reset_running_requests``).
        connector: reset the connector's cache too.
    """

    do: ClassVar[str] = "reset"
    running: bool = False
    connector: bool = False
    engine: int = 0


@dataclass(frozen=True, slots=True)
class Tick(Action):
    """Time passes: leases, time-outs and heartbeats of the target see ``seconds`` more."""

    do: ClassVar[str] = "tick"
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Lose(Action):
    """The k-th most recent request on its way to its decoder is lost: its client is gone."""

    do: ClassVar[str] = "lose"
    handover: int = 0


@dataclass(frozen=True, slots=True)
class Repeat(Action):
    """The router sends the k-th most recent hand-over a second time: its client tries again."""

    do: ClassVar[str] = "repeat"
    handover: int = 0


@dataclass(frozen=True, slots=True)
class Cut(Action):
    """An engine can be reached no more (``back``: again): transfers to and from it fail."""

    do: ClassVar[str] = "cut"
    engine: int = 0
    back: bool = False


@dataclass(frozen=True, slots=True)
class Stall(Action):
    """From now on these streams of a device get on only when somebody waits for them.

    Attributes:
        streams: which.
        rank: of whose device; None: of every rank's.
    """

    do: ClassVar[str] = "stall"
    streams: Streams = "any"
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Flow(Action):
    """So many pieces of what waits in the devices' streams are done. None: all, and none stalls.

    ``newest_first``: of the streams that can get on, the one that was made last does first; from
    now on.
    """

    do: ClassVar[str] = "flow"
    work: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class Break(Action):
    """The next ``copies`` between device and host fail.

    Attributes:
        copies: how many.
        late: they fail when they run, and who waits for them hears of it; else when asked for.
        rank: of whose device; None: of each rank's so many.
    """

    do: ClassVar[str] = "break"
    copies: int = 1
    late: bool = True
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """The engines are shut down, whatever is under way; the run is over."""

    do: ClassVar[str] = "stop"


ACTIONS: Mapping[str, type[Action]] = {
    cls.do: cls
    for cls in (
        Arrive, Abort, Step, Hold, Release, Drop, Busy, Refuse, Forget, Corrupt, Fail, Reset, Tick,
        Lose, Repeat, Cut, Restart, Redeploy, Stall, Flow, Break, Stop,
    )
}  # fmt: skip


def action_to_json(action: Action) -> dict[str, Any]:
    """``action`` as JSON data."""
    return {"do": action.do, **encode(action)}


def action_from_json(data: Any, where: str) -> Action:
    """An action from JSON data.

    Raises:
        UsageError: when it is not an action.
    """
    if not isinstance(data, Mapping) or "do" not in data:
        raise UsageError(f'{where}: expected an action such as {{"do": "step"}}, got {data!r}.')
    cls = ACTIONS.get(data["do"]) if isinstance(data["do"], str) else None
    if cls is None:
        raise UsageError(
            f"{where}: unknown action {data['do']!r}; known are {', '.join(sorted(ACTIONS))}."
        )
    return decode(cls, {k: v for k, v in data.items() if k != "do"}, where)
