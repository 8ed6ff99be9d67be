"""Four launches on one machine (tests/data/README.md): the same program twice, and with more work put in on purpose."""

from __future__ import annotations

import random
import re
from functools import cache
from statistics import median

import msgspec
import pytest
from helpers.notices import texts
from helpers.recorded import ROOT
from helpers.thorough import spread

from tracetool.comparison import Comparison, compare
from tracetool.comparison.sides import side_of
from tracetool.comparison.summary import main_causes, summary
from tracetool.ingestion.recording import Recording


@cache
def launch(name: str) -> Recording:
    text = (ROOT / "tests" / "data" / "h200-launches" / f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=Recording)


def compared(base: Recording, new: Recording) -> Comparison:
    return compare(side_of([("base", base)]), side_of([("new", new)]))


def median_step_ns(name: str) -> float:
    return float(median(step.step_ns for step in launch(name).steps))


def growth_ns(name: str, action: str) -> float:
    """By how much the actions of a kind grew from the first launch: medians over steps, summed over microbatches."""
    rows = [[step.actions[action].duration_ns for step in launch(n).steps] for n in ("first", name)]
    before, after = ([median(of) for of in zip(*each, strict=True)] for each in rows)
    return float(sum(after) - sum(before))


def changed(done: Comparison) -> dict[str, str]:
    return {line.key.text: line.verdict for line in done.lines if line.verdict in ("regressed", "improved")}


def causes(done: Comparison, name: str) -> list[str]:
    (line,) = [line for line in done.lines if line.key.text == name]
    return [cause.name for cause in main_causes(done, line)]


@spread("steps", [4, 5, 6, 8], 2)
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
    grown = median_step_ns("slower_backward") / median_step_ns("first") - 1
    assert f"({grown:+.2%}, regressed): stage 1 B +" in summary(done)
    # Stage 1 computes from its first forward to its last backward: each backward's growth counts once, and whole.
    (cause,) = (cause for cause in done.causes["step_ns"] if cause.name == "stage 1 B")
    assert float(cause.value) == pytest.approx(growth_ns("slower_backward", "1B"), abs=8)
    # Without labels its 29 more kernels tell that it is other work.
    ((base, new),) = (re.findall(r"(\d+) against (\d+) kernels in 1B", note)[0] for note in texts(done.notes))
    assert int(new) - int(base) == 29


def test_a_slower_rank_is_found_and_named_though_the_step_hides_it() -> None:
    """Stage 1 has more work and hides most of what rank 0 takes longer: without a profiler steps grew by 1.7 ms."""
    done = compared(launch("first"), launch("slower_rank"))
    assert {name for name, verdict in changed(done).items() if verdict == "regressed"} == {
        "compute_ns", "action_ns/0F", "action_ns/0B",
    }  # fmt: skip
    assert causes(done, "compute_ns") == ["rank 0"]
    (step,) = [line for line in done.lines if line.key.text == "step_ns"]
    assert step.verdict == "unchanged"
    assert step.change_ratio == pytest.approx(median_step_ns("slower_rank") / median_step_ns("first") - 1, rel=1e-9)
    (cause,) = (cause for cause in done.causes["compute_ns"] if cause.name == "rank 0")
    assert float(cause.value) == pytest.approx(sum(growth_ns("slower_rank", kind) for kind in ("0F", "0B")), abs=16)
    assert done.causes["step_ns"][0].name == "rank 0"
