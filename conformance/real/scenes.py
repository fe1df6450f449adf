"""The scenes, as data: which engines, what is done, and what has to have happened to count.

A scene passes when every request has ended with the answer that it should have, no block has
stayed behind, and what the scene is for has happened; else something is found, or it is
inconclusive. The first scene of a topology proves that KV is transferred at all; without it equal
answers would say nothing, for an engine that loads nothing computes everything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from kvconform.conformance.real.flow import Flow, Sent
from kvconform.conformance.real.model import swapped
from kvconform.conformance.real.outcome import Finding
from kvconform.conformance.real.plain import Tokens
from kvconform.conformance.real.process import until
from kvconform.conformance.real.prompts import FAMILIES, mixed, pair, traffic
from kvconform.conformance.real.stage import Part, is_idle
from kvconform.scenario.deployment import DECODE, PREFILL, READER, WRITER, Topology

_PROOFS = 3
_MOMENTS: tuple[Mapping[str, float], ...] = (
    {"seconds": 0.0}, {"tokens": 1}, {"seconds": 0.02}, {"tokens": 4},
)  # fmt: skip
"""When clients go: so long after they have asked, or after so many tokens of the answer."""

_LONG = 160
"""Tokens of answers in the midst of which an engine is killed."""

_LATE = 8
_OTHERS = 60
"""Requests that come late, and others, of more blocks than an engine has."""

_NOTHING_LOADED = "vLLM counts no token that came through the connector"


@dataclass(frozen=True, slots=True)
class Scene:
    """One of them.

    Attributes:
        name: its name.
        topology: in which it is played.
        says: what is done, for the table.
        parts: the engines that it needs.
        play: does it.
        small: a part of the small run as well.
    """

    name: str
    topology: Topology
    says: str
    parts: tuple[Part, ...]
    play: Callable[[Flow], None]
    small: bool = True


def _prompts(flow: Flow, count: int | None = None, part: str = "") -> dict[str, Tokens]:
    """So many prompts of this scene's traffic with clear answers, by request name."""
    label = f"{flow.outcome.scene} {part}"
    some = flow.stage.plain.clear(traffic(flow.stage.seed, label), count or flow.stage.requests)
    name = flow.outcome.scene.replace(" ", "-")
    return {f"{name}{part}-{i}": prompt for i, prompt in enumerate(some)}


def _waves(prompts: Mapping[str, Tokens]) -> list[dict[str, Tokens]]:
    """A prompt of each family first: what the others share with it is then found locally, and what
    is loaded begins behind it."""
    names = list(prompts)
    return [{n: prompts[n] for n in some} for some in (names[:FAMILIES], names[FAMILIES:])]


def _lacks_loads(flow: Flow) -> None:
    """To be asked when the blocks are back: by then all loads are counted."""
    flow.stage.look(flow.outcome)
    if not flow.outcome.loaded:
        flow.outcome.lacks = _NOTHING_LOADED


# -- the proof ------------------------------------------------------------------------------------


def _prove(flow: Flow, engine: str, name: str, mine: Tokens, other: Tokens,
           send: Callable[[dict[str, Tokens]], list[Sent]]) -> None:  # fmt: skip
    """Whose KV was read, by the answer: that of the other prompt, as far as tokens were loaded.

    One request at a time, so that vLLM's count of loaded tokens is this request's. (What an output
    says of cached tokens may be what the engine said that prefilled.)
    """
    outcome, running = flow.outcome, flow.at(engine)
    before = running.books()["loaded"]
    end = flow.collect(send({name: mine})).get(name)
    if end is None:
        return
    loaded = running.books()["loaded"] - before
    expected, own = flow.stage.plain.answers([mixed(other, mine, loaded), mine])
    answer = tuple(end["tokens"])
    if expected.tokens == own.tokens or not expected.is_clear:
        return  # whatever it answers proves nothing
    outcome.requests += 1
    if answer == expected.tokens:
        outcome.equal += 1
        return
    whose = "that of the request's own prompt" if answer == own.tokens else (
        "neither that of the request's own prompt nor that of the one whose KV was there"
    )  # fmt: skip
    what = f"vLLM was told that {loaded} tokens are loaded, but the answer is {whose}"
    outcome.findings.append(Finding("unequal", what, (name,)))


def _lacks_proof(flow: Flow) -> None:
    flow.stage.look(flow.outcome)
    if not flow.outcome.equal and not flow.outcome.findings:
        flow.outcome.lacks = "no transfer was proved: nothing was loaded under another prompt"


def _wrong_prompt_pd(flow: Flow) -> None:
    for number in range(_PROOFS):
        mine, other = pair(flow.stage.seed, "wrong prompt", number)
        name = f"proof-{number}"
        flow.collect(flow.prefill({name: other}))
        # The decode engine is told another prompt than the one that was prefilled.
        _prove(flow, DECODE, name, mine, other, flow.decode)
    _lacks_proof(flow)


def _wrong_prompt_store(flow: Flow) -> None:
    stage = flow.stage
    mine = [pair(stage.seed, "wrong prompt", number)[0] for number in range(_PROOFS)]
    prompts = {f"proof-{number}": prompt for number, prompt in enumerate(mine)}
    # One by one, here and there: no prompt is computed in parts, so that connectors which cannot
    # save parts show that they transfer; and what is not computed was loaded.
    for name, prompt in prompts.items():
        flow.collect(flow.send(flow.at(WRITER), {name: prompt}))
    stage.look(flow.outcome)  # all is saved when no block is held any more
    for name, prompt in prompts.items():
        send = partial(flow.send, flow.at(READER))
        _prove(flow, READER, name, prompt, tuple(swapped(prompt)), send)
    _lacks_proof(flow)


# -- prefill and decode apart ---------------------------------------------------------------------


def _hand_over(flow: Flow) -> None:
    prompts = _prompts(flow)
    for wave in _waves(prompts):
        flow.hand_over(wave)
    # Prompts that the decode engine has had before: it finds all of them locally.
    again = {f"{name}-again": prompt for name, prompt in islice(prompts.items(), 3)}
    flow.hand_over(again)
    flow.judge(prompts | again)
    _lacks_loads(flow)


def _aborts_pd(flow: Flow) -> None:
    prompts = _prompts(flow)
    names = list(prompts)[1 :: max(1, len(prompts) // flow.stage.aborts)][: flow.stage.aborts]
    prefilling, between, loading, decoding = (names[i::4] for i in range(4))
    flow.hand_over(
        prompts,
        prefill_aborts={name: {"seconds": 0.004 * i} for i, name in enumerate(prefilling)},
        lost=between,
        decode_aborts={
            **{name: {"seconds": 0.002 * i} for i, name in enumerate(loading)},
            **{name: {"tokens": 3} for name in decoding},
        },
    )
    flow.judge(prompts)
    _lacks_loads(flow)
    if not flow.outcome.aborted:
        flow.outcome.lacks = "every request had ended before it was aborted"


def _late(flow: Flow) -> None:
    stage = flow.stage
    prompts = _prompts(flow, _LATE)
    flow.collect(flow.prefill(prompts))
    prefiller = flow.at(PREFILL)
    if not until(lambda: is_idle(prefiller.books()), stage.patience):
        stage.look(flow.outcome)  # it keeps them for longer than it should
        return
    # What was prefilled is overwritten; then the decode engine hears of it.
    others = dict(enumerate(islice(traffic(stage.seed, "late others"), _OTHERS)))
    flow.collect(flow.send(prefiller, {f"other-{i}": prompt for i, prompt in others.items()}))
    flow.collect(flow.decode(prompts))
    flow.judge(prompts)
    stage.look(flow.outcome)
    if not any(flow.route(name) for name in prompts):
        flow.outcome.lacks = "no request was to load what was prefilled"


def _prefiller_killed(flow: Flow) -> None:
    stage = flow.stage
    before = _prompts(flow, stage.requests // 2, "-before")
    after = _prompts(flow, stage.requests - len(before), "-after")
    under_way = _prompts(flow, 3, "-under-way")
    flow.hand_over(before)
    flow.collect(flow.prefill(after))
    some = {name: after[name] for name in list(after)[:3]}
    interrupted = flow.prefill(under_way)
    decoding = flow.decode(some)
    stage.drop(PREFILL)
    decoding += flow.decode({name: p for name, p in after.items() if name not in some})
    flow.collect(interrupted)
    decoding += flow.decode(under_way)
    flow.collect(decoding)
    flow.judge({**before, **after, **under_way}, may_fail=_fails(flow))
    stage.look(flow.outcome)
    if not any(flow.route(name) for name in after):
        flow.outcome.lacks = "no request was to load from the engine that died"


def _fails(flow: Flow) -> bool:
    """Requests whose loads fail may end with an error."""
    return flow.stage.policy(DECODE) == "fail"


def _decoder_restarted(flow: Flow) -> None:
    stage = flow.stage
    before = _prompts(flow, stage.requests // 2, "-before")
    after = _prompts(flow, stage.requests - len(before), "-after")
    flow.collect(flow.prefill(before))
    decoder = flow.at(DECODE)
    had = decoder.books()["loaded"]
    decoding = flow.decode(before, tokens=_LONG)
    until(lambda: decoder.books()["loaded"] > had, stage.deployment.patience)
    stage.drop(DECODE)
    flow.collect(decoding)
    lost = {name: p for name, p in before.items() if name in flow.gone}
    if not stage.need([Part(PREFILL), Part(DECODE, door="LLM")], flow.outcome):
        return
    # Their client tries again, under names of their own.
    again = {f"{name}-again": prompt for name, prompt in lost.items()} | after
    flow.hand_over(again)
    flow.judge(before | again, but=lost)
    _lacks_loads(flow)
    if not lost:
        flow.outcome.lacks = "every request had ended before the engine was killed"


# -- a store that two engines share ---------------------------------------------------------------


def _shared(flow: Flow) -> None:
    stage = flow.stage
    prompts = _prompts(flow)
    for engine in (WRITER, READER):
        for wave in _waves(_of(engine, prompts)):
            flow.collect(flow.send(flow.at(engine), wave))
        flow.judge(_of(engine, prompts))
        stage.look(flow.outcome)
    # And both at once: what one saves the other is looking up.
    both = _prompts(flow, stage.requests // 2, "-both")
    sent = [one for n in (WRITER, READER) for one in flow.send(flow.at(n), _of(n, both))]
    flow.collect(sent)
    for engine in (WRITER, READER):
        flow.judge(_of(engine, both))
    _lacks_loads(flow)


def _of(engine: str, prompts: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """The requests under names that tell at which engine they are."""
    return {f"{name}-{engine}": prompt for name, prompt in prompts.items()}


def _aborts_store(flow: Flow) -> None:
    stage = flow.stage
    prompts = _prompts(flow)
    names = list(prompts)[1 :: max(1, len(prompts) // stage.aborts)][: stage.aborts]
    moments: list[dict[str, float]] = [
        {"seconds": 0.0},
        {"tokens": 1},
        {"seconds": 0.02},
        {"tokens": 4},
    ]
    aborts = {name: moments[i % len(moments)] for i, name in enumerate(names)}
    for index, engine in enumerate((WRITER, READER)):
        # Others are aborted in the second one, which had been saved by the first.
        here = {f"{name}-{engine}": aborts[name] for name in list(aborts)[index::2]}
        flow.collect(flow.send(flow.at(engine), _of(engine, prompts), aborts=here))
        flow.judge(_of(engine, prompts))
        stage.look(flow.outcome)
    if not flow.outcome.loaded:
        flow.outcome.lacks = _NOTHING_LOADED
    if not flow.outcome.aborted:
        flow.outcome.lacks = "every request had ended before it was aborted"


def _writer_killed(flow: Flow) -> None:
    stage = flow.stage
    prompts = _prompts(flow)
    writing = flow.send(flow.at(WRITER), prompts, tokens=_LONG)
    reading = flow.send(flow.at(READER), _of(READER, prompts))
    flow.collect(writing[: len(writing) // 3])
    stage.drop(WRITER)
    flow.collect(writing)
    flow.collect(reading)
    interrupted = flow.gone & set(prompts)
    flow.judge(prompts, but=interrupted)
    flow.judge(_of(READER, prompts))
    stage.look(flow.outcome)
    if not stage.need([Part(WRITER, door="LLM"), Part(READER)], flow.outcome):
        return
    # It comes back, and finds what the other one has saved.
    back = _of(WRITER, prompts)
    flow.collect(flow.send(flow.at(WRITER), back))
    flow.judge(back)
    _lacks_loads(flow)
    if not interrupted:
        flow.outcome.lacks = "every request had ended before the engine was killed"


_APART = (Part(PREFILL), Part(DECODE))
_TOGETHER = (Part(WRITER), Part(READER))

SCENES: tuple[Scene, ...] = (
    Scene("wrong-prompt", "pd",
          "the decode engine is given another prompt than was prefilled: it goes on from that one",
          _APART, _wrong_prompt_pd),
    Scene("hand-over", "pd",
          "prompts with shared prefixes, prefilled here and decoded there; some of them twice",
          _APART, _hand_over),
    Scene("aborts", "pd",
          "some are aborted: while prefilled, between the engines, while loading, while decoded",
          _APART, _aborts_pd),
    Scene("late", "pd",
          "requests come to be decoded when the prefill engine has given their blocks to others",
          _APART, _late, small=False),
    Scene("prefiller-killed", "pd",
          "the prefill engine is killed half-way; policy recompute",
          _APART, _prefiller_killed),
    Scene("decoder-restarted", "pd",
          "the decode engine is killed while it decodes, and comes back (as an LLM)",
          _APART, _decoder_restarted, small=False),
    Scene("prefiller-killed-fail", "pd",
          "the prefill engine is killed half-way; policy fail",
          (Part(PREFILL), Part(DECODE, policy="fail")), _prefiller_killed, small=False),
    Scene("wrong-prompt", "store",
          "an engine with other embeddings fills the store: who loads reads other prompts' KV",
          (Part(WRITER, door="LLM", model="swapped"), Part(READER)), _wrong_prompt_store),
    Scene("shared", "store",
          "what one engine has saved another loads; then both at once",
          _TOGETHER, _shared),
    Scene("aborts", "store",
          "some are aborted, in both engines",
          _TOGETHER, _aborts_store),
    Scene("writer-killed", "store",
          "an engine is killed half-way, beside another, and comes back (as an LLM)",
          _TOGETHER, _writer_killed, small=False),
)  # fmt: skip
