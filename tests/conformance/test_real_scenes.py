"""Scenes on engines on paper: each finding is found, and right engines pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kvconform.conformance.real.flow import Flow
from kvconform.conformance.real.outcome import Outcome
from kvconform.conformance.real.process import GoneError
from kvconform.conformance.real.scenes import SCENES, Scene
from tests.conformance.paper import stage

PLAIN_SCENES = [s for s in SCENES if s.name in ("hand-over", "aborts", "shared")]
LATE = [s for s in SCENES if s.name == "late"]
PROOFS = [s for s in SCENES if s.name == "wrong-prompt"]


def played(scene: Scene, folder: Path, wrong: str = "") -> Outcome:
    """A scene on paper, as ``run`` plays it on real engines."""
    made = stage(folder, scene.topology, wrong)
    outcome = Outcome(scene.name, scene.says)
    if scene in PROOFS and scene.topology == "store":
        cast(Any, made.engines["writer"]).swaps = True
    try:
        scene.play(Flow(made, outcome))
    except GoneError:
        made.look(outcome)
    return outcome


def label(scene: Scene) -> str:
    return f"{scene.topology}-{scene.name}"


@pytest.mark.parametrize("scene", [*PLAIN_SCENES, *LATE, *PROOFS], ids=label)
def test_right_engines_pass(scene: Scene, tmp_path: Path) -> None:
    outcome = played(scene, tmp_path)
    assert outcome.verdict == "pass", (outcome.findings, outcome.lacks)
    assert outcome.loaded
    assert outcome.equal + outcome.aborted == outcome.requests
    assert not outcome.lost
    assert bool(outcome.aborted) == (scene.name == "aborts")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("mixes up", "unequal"),
        ("keeps a block", "left"),
        ("never ends", "endless"),
        ("hangs", "hung"),
        ("dies", "died"),
        ("refuses", "refused"),
    ],
)
def test_what_a_wrong_decode_engine_does_is_found(wrong: str, kind: str, tmp_path: Path) -> None:
    (scene,) = (s for s in PLAIN_SCENES if s.name == "hand-over")
    outcome = played(scene, tmp_path, wrong)
    assert kind in {finding.kind for finding in outcome.findings}
    assert outcome.verdict == "fail"


def test_what_was_read_too_late_is_found(tmp_path: Path) -> None:
    (scene,) = LATE
    outcome = played(scene, tmp_path, "mixes up")
    assert {finding.kind for finding in outcome.findings} == {"unequal"}
    assert len(outcome.findings[0].requests) == outcome.requests


@pytest.mark.parametrize("scene", PROOFS, ids=label)
def test_equal_answers_are_no_proof(scene: Scene, tmp_path: Path) -> None:
    nothing = played(scene, tmp_path / "a", "loads nothing")
    assert nothing.verdict == "inconclusive"
    only_says = played(scene, tmp_path / "b", "only says so")
    assert only_says.verdict == "fail"
    assert "that of the request's own prompt" in only_says.findings[0].what


@pytest.mark.parametrize("scene", PLAIN_SCENES, ids=label)
def test_who_loads_nothing_passes_nothing(scene: Scene, tmp_path: Path) -> None:
    outcome = played(scene, tmp_path, "loads nothing")
    assert (outcome.verdict, outcome.findings) == ("inconclusive", [])
