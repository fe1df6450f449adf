"""The bare loop computes the right tokens; how fast it does is no matter for tests."""

from __future__ import annotations

from benchmarks.bare_loop import BareLoop, expected
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

PROMPTS = {"r0": (5, 6, 7) * 10, "r1": (5, 6, 7) * 10, "r2": (9, 8), "r3": tuple(range(3, 60))}


def test_output_follows_from_the_kv_that_was_written() -> None:
    # Prompts that share blocks, chunked prefill, and a pool too small for all: preemption.
    shape = Shape(num_blocks=8, max_num_batched_tokens=24)
    loop = BareLoop(Target("idle", "benchmarks.idle:Idle"), shape)
    for prompt in PROMPTS.values():
        loop.add(prompt, 9)
    while loop.live():
        loop.step()
    loop.close()
    assert loop.outputs == {name: expected(prompt, 9) for name, prompt in PROMPTS.items()}
