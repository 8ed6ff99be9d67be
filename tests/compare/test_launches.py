"""Four launches on one machine (tests/data/README.md): the same program twice, and with more work put in on purpose."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import pytest
from recorded import ROOT

from tracetool.compare import Comparison, compare
from tracetool.compare.sides import side_of
from tracetool.compare.summary import main_causes, summary
from tracetool.recording import Recording


@cache
def launch(name: str) -> Recording:
    text = (ROOT / "tests" / "data" / "h200-launches" / f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=Recording)


def compared(base: Recording, new: Recording) -> Comparison:
    return compare(side_of([("base", base)]), side_of([("new", new)]))


def changed(done: Comparison) -> dict[str, str]:
    return {line.key.text: line.verdict for line in done.lines if line.verdict in ("regressed", "improved")}


def causes(done: Comparison, name: str) -> list[str]:
    (line,) = [line for line in done.lines if line.key.text == name]
    return [cause.name for cause in main_causes(done, line)]


@pytest.mark.parametrize("steps", [4, 5, 6, 8])
def test_the_same_program_launched_again_has_not_changed(steps: int) -> None:
    """Any of their steps against any of the other's: clocks and memory are of another process, and nothing counts."""
    draw = random.Random(steps)  # noqa: S311 - which steps, not secrets
    for _ in range(8):
        sides = [
            msgspec.structs.replace(each, steps=[each.steps[place] for place in sorted(draw.sample(range(8), steps))])
            for each in (launch("first"), launch("again"))
        ]
        draw.shuffle(sides)
        assert changed(compared(*sides)) == {}


def test_more_work_in_a_backward_is_found_and_named() -> None:
    """0.70 ms in each of eight backwards that follow each other; without a profiler the step grew by 5.9 ms."""
    done = compared(launch("first"), launch("slower_backward"))
    assert {name for name, verdict in changed(done).items() if verdict == "regressed"} == {
        "step_ns", "window_ns", "bubble_ns", "bubble_ratio", "action_ns/1B",
    }  # fmt: skip
    assert causes(done, "step_ns") == ["stage 1 B"]
    assert summary(done).endswith("(+2.84%, regressed): stage 1 B +7.4 ms")
    # Without labels its 29 more kernels tell that it is other work.
    assert done.notes == ("the sides did other work: 168 against 197 kernels in 1B",)


def test_a_slower_rank_is_found_and_named_though_the_step_hides_it() -> None:
    """Stage 1 has more work and hides most of what rank 0 takes longer: without a profiler steps grew by 1.7 ms."""
    done = compared(launch("first"), launch("slower_rank"))
    assert {name for name, verdict in changed(done).items() if verdict == "regressed"} == {
        "compute_ns", "action_ns/0F", "action_ns/0B",
    }  # fmt: skip
    assert causes(done, "compute_ns") == ["rank 0"]
    (step,) = [line for line in done.lines if line.key.text == "step_ns"]
    assert (step.verdict, f"{step.change_ratio:.2%}") == ("unchanged", "1.07%")
    assert done.causes["step_ns"][0].name == "rank 0"
