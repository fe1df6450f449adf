"""All scenes of a deployment, one after the other."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvconform.conformance.real.environment import (
    OPTIONS,
    environment,
    require_kernels,
    require_parts,
)
from kvconform.conformance.real.flow import Flow
from kvconform.conformance.real.model import make_model
from kvconform.conformance.real.outcome import Outcome
from kvconform.conformance.real.plain import Plain
from kvconform.conformance.real.process import EngineProcess, GoneError, HungError
from kvconform.conformance.real.scenes import SCENES, Scene
from kvconform.conformance.real.stage import Stage
from kvconform.scenario.deployment import Deployment, Topology
from kvconform.scenario.errors import HarnessError, UsageError


@dataclass(frozen=True, slots=True)
class Size:
    """How much traffic a run has.

    Attributes:
        requests: of a scene.
        aborts: of these.
        all_scenes: or those of the small run only.
        only: names of scenes; empty: all of them.
    """

    requests: int = 50
    aborts: int = 10
    all_scenes: bool = True
    only: tuple[str, ...] = ()


_FEWEST = 8
FULL = Size()
SMALL = Size(16, 4, all_scenes=False)


def scenes(topology: Topology, size: Size) -> list[Scene]:
    """The scenes of a topology, in their order: each finds the engines that the last one left."""
    return [
        scene
        for scene in SCENES
        if scene.topology == topology
        and (scene.name in size.only if size.only else scene.small or size.all_scenes)
    ]


def play(
    deployment: Deployment,
    topologies: tuple[Topology, ...],
    size: Size = FULL,
    seed: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    keep: Path | None = None,
) -> list[Outcome]:
    """Play a deployment's scenes on real engines.

    Args:
        deployment: of the target.
        topologies: those to be tried.
        size: how much.
        seed: of the traffic.
        tell: hears what is going on.
        keep: a folder for the logs of the engines; None: they are thrown away.

    Raises:
        UsageError: the target, or any engine, cannot run here.
        HarnessError: the engine without a connector does not work.
    """
    require_parts(deployment)
    require_kernels()
    outcomes: list[Outcome] = []
    with _folder(keep) as folder:
        tell("starting the engine without a connector")
        with _plain(folder) as plain:
            for topology in topologies:
                stage = Stage(deployment, topology, plain, folder, seed, size.requests, size.aborts)
                try:
                    for scene in scenes(topology, size):
                        tell(f"{topology} {scene.name}")
                        outcomes.append(_played(scene, stage))
                finally:
                    stage.close()
    return outcomes


def _played(scene: Scene, stage: Stage) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(f"{scene.topology} {scene.name}", scene.says)
    if stage.need(scene.parts, outcome):
        try:
            scene.play(Flow(stage, outcome))
        except (GoneError, HungError):  # in the middle of something: look who it was
            stage.look(outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


@contextmanager
def _plain(folder: Path) -> Iterator[Plain]:
    for name in ("plain", "swapped"):
        make_model(folder / name / "model", swap=name == "swapped")
    log = folder / "plain.log"
    engine = EngineProcess("plain", "LLM", OPTIONS, environment({}), folder / "plain", log)
    try:
        try:
            engine.wait_until_up()
        except (GoneError, HungError) as error:
            end = log.read_text("utf-8", "replace")[-2000:]
            raise HarnessError(f"the engine without a connector: {error}\n{end}") from None
        yield Plain(engine)
    finally:
        engine.kill()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A fresh folder; its logs are kept where that is wanted."""
    folder = Path(tempfile.mkdtemp(prefix="kvconform-e2e-"))
    try:
        yield folder
    finally:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, keep / log.name)
        shutil.rmtree(folder, ignore_errors=True)


def restricted(size: Size, requests: int | None, only: str = "") -> Size:
    """The size with another number of requests, a fifth of which is aborted, and these scenes only.

    Raises:
        UsageError: there is no such scene, or too few requests for one.
    """
    names = tuple(filter(None, (name.strip() for name in only.split(","))))
    known = list(dict.fromkeys(scene.name for scene in SCENES))
    for name in names:
        if name not in known:
            raise UsageError(f"There is no scene {name!r}; choose from {', '.join(known)}.")
    size = replace(size, only=names)
    if requests is None:
        return size
    if requests < _FEWEST:
        raise UsageError(f"--requests must be at least {_FEWEST}, got {requests}.")
    return replace(size, requests=requests, aborts=max(4, requests // 5))
