"""A third party's schedule that says how it is tuned is tuned by every verb: its file is all there is of it.

It is 1F1B with two extra forwards per rank upstream of a boundary for each that the search gives it, and asks for at
most four of those: so it runs at +0, +2, +4, +6 or +8. With one boundary in the middle, equal stages and receives
posted ahead its window with n extra forwards is known (derived in ``schedules/library/geopipe.py``):
T(n) = (m+p-1)(f+b) + 2c + r max(0, 2c - n(f+b)), r = floor((m-1-k-n)/(n+2)) + 1 if m-1 >= k+n else 0, k = p - s.
"""

from __future__ import annotations

import ast
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest
from helpers.parsed import modules
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import some, spread

from tracetool.advice import advise
from tracetool.advice.cotune import co_tune
from tracetool.cli import run
from tracetool.costs.rescaled import MicrobatchSize
from tracetool.model.topology import Topology
from tracetool.schedules import SCHEDULES
from tracetool.schedules.names import takers_of
from tracetool.sweeps import Grid, sweep
from tracetool.sweeps.bend import KNEE_RATIO, TOLERANCE_RATIO
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction

TOY = """
from tracetool.model.schedule import Schedule
from tracetool.schedules import ScheduleKind, Tuning
from tracetool.schedules.orders import warm_up_then_alternate

def build(shape, options):
    p, m = shape.ranks, shape.microbatches
    extra = options.extra_forwards or (0,) * p
    orders = tuple(warm_up_then_alternate(i, p - i - 1 + extra[i], m) for i in range(p))
    return Schedule("toy", shape, orders, extra_forwards=extra, blocking=False)

def per_rank(ranks, per_boundary):
    return tuple(2 * sum(n for r, n in per_boundary.items() if r >= rank) for rank in range(ranks))

SCHEDULE = ScheduleKind(
    name="toy", summary="two by two", source="a test", constraints="v = 1", bubble="none", in_flight="many",
    build=build, tuning=Tuning(untuned="1f1b", hiding=lambda delay_ns, cycle_ns: 1, per_rank=per_rank),
)
"""
P, M, F, B = 4, 40, 10**6, 2 * 10**6
HELD, STATIC = 1 << 20, 500
CYCLE = F + B
DEPTHS = (0, 2, 4, 6, 8)
DELAYS = [0, CYCLE, CYCLE * 41 // 40, 2 * CYCLE, 3 * CYCLE, 8 * CYCLE]


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "toy_schedule.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    declared = EntryPoint("toy", "toy_schedule:SCHEDULE", "tracetool.schedules")
    assert "toy" not in SCHEDULES.names()
    monkeypatch.delitem(vars(SCHEDULES), "_third_party")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [declared] if group == declared.group else [])


def measured() -> Reconstruction:
    return found(pipeline(P, M, F, B, p2p="posted-ahead", activation_bytes=HELD, static_bytes=STATIC))


def closed_ns(extra: int, delay_ns: int) -> int:
    depth = P // 2 + 1
    rounds = (M - 1 - depth - extra) // (extra + 2) + 1 if depth + extra <= M - 1 else 0
    return (M + P - 1) * CYCLE + 2 * delay_ns + rounds * max(0, 2 * delay_ns - extra * CYCLE)


def chosen(delay_ns: int, within: float = 0.02) -> tuple[int, ...]:
    """The documented rule over the depths that it has: the fewest forwards within 2 % of the shortest step."""
    steps = [closed_ns(n, delay_ns) for n in DEPTHS]
    extra = next(n for n, step in zip(DEPTHS, steps, strict=True) if step - min(steps) <= within * step)
    return (extra, extra, 0, 0)


@spread("delay_ns", DELAYS, [CYCLE * 41 // 40])
def test_an_answer_tunes_it(delay_ns: int) -> None:
    done = answer(measured(), ["toy", "geopipe"], scenario(places([2, 2], latency_ns=delay_ns)))
    first = done.results[0]
    assert (first.schedule, first.extra_forwards) == ("toy", chosen(delay_ns))
    assert first.metrics.step_ns == closed_ns(chosen(delay_ns)[0], delay_ns)
    closer = [result.extra_forwards for result in (*done.results[1:], *done.closer) if result.schedule == "toy"]
    assert closer == ([chosen(delay_ns, 0.005)] if chosen(delay_ns, 0.005) != chosen(delay_ns) else [])


def test_depths_differ_and_some_stop_ahead_of_the_shortest_step() -> None:
    assert len({chosen(delay_ns) for delay_ns in DELAYS}) > 2
    assert any(chosen(delay_ns, 0.005) != chosen(delay_ns) for delay_ns in DELAYS)


def test_memory_cuts_it() -> None:
    """The first rank holds p + n microbatches: with room for two more than 1F1B's, +2 is the deepest that fits."""
    over = scenario(places([2, 2], latency_ns=8 * CYCLE), hbm_bytes=STATIC + HELD * (P + 2))
    (result,) = answer(measured(), ["toy"], over).results
    assert result.extra_forwards == (2, 2, 0, 0)
    assert result.cut_forwards == (6, 6, 0, 0)


def test_a_sweep_tunes_it_over_every_link() -> None:
    delays = tuple(some((delay_ns for delay_ns in DELAYS if delay_ns), 2))
    dcs = (Topology(("dc0", "dc0", "dc1", "dc1")),)
    grid = Grid(("toy",), dcs=dcs, bandwidths_bytes_per_s=(10**9,), latencies_ns=delays)
    swept = sweep(measured(), grid, jobs=1)
    assert {p.latency_ns: (p.extra_forwards, p.step_ns) for p in swept.points} == {
        delay_ns: (chosen(delay_ns), closed_ns(chosen(delay_ns)[0], delay_ns)) for delay_ns in delays
    }
    for knee in swept.knees:
        extra = chosen(knee.at_latency_ns or 0)[0]
        now, deeper = hidden_ns(extra), hidden_ns(extra + 2)  # one more per boundary is two forwards
        error = TOLERANCE_RATIO * (now + deeper) / (deeper - now)
        assert knee.hbm_bytes_per_hidden_ms == pytest.approx(2 * HELD * 10**6 / (deeper - now), rel=error)


def hidden_ns(extra: int) -> int:
    """The largest latency at which a step is within the share of its floor that a knee goes by."""
    floor = (M + P - 1) * CYCLE
    held = (c for c in range(0, 16 * CYCLE, CYCLE // 1000) if closed_ns(extra, c) <= (1 + KNEE_RATIO) * (floor + 2 * c))
    return max(held)


def test_advice_tunes_it_now_and_with_more_of_each_resource() -> None:
    delay_ns = 2 * CYCLE
    advice = advise(measured(), scenario(places([2, 2], latency_ns=delay_ns)), ["1f1b", "toy"])
    assert advice.best is not None
    assert (advice.best.schedule, advice.best.extra_forwards) == ("toy", chosen(delay_ns))
    (nearer,) = (gain for gain in advice.gains if gain.more.text == "latency / 2")
    assert nearer.plan.step_ns == closed_ns(chosen(delay_ns // 2)[0], delay_ns // 2)
    assert nearer.same_plan_ns == closed_ns(chosen(delay_ns)[0], delay_ns // 2)


def test_sizes_are_tuned_with_it() -> None:
    delay_ns = 2 * CYCLE
    over = scenario(places([2, 2], latency_ns=delay_ns))
    tuned = co_tune(measured(), over, MicrobatchSize(1, 16), schedule="toy", hidden=1 << 30)
    assert tuned.schedule == "toy"
    assert tuned.measured.extra_forwards == chosen(delay_ns)


def test_the_command_line_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert takers_of("extra forwards") == ["geopipe", "toy"]
    assert run(["schedules", "toy", "--extra-forwards", "2,0,0,0", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("0F0,0F1,0F2,0F3,0F4,0F5,0B0")
    assert run(["schedules", "toy"]) == 0
    assert "without --extra-forwards this is 1F1B's order" in capsys.readouterr().err
    assert run(["schedules", "gpipe", "--extra-forwards", "2,0,0,0"]) == 2
    assert "it is for geopipe and toy" in capsys.readouterr().err


@pytest.mark.parametrize(
    "room", ["advice", "causes", "comparison", "explanation", "replays", "sweeps", "validation", "whatif"]
)
def test_no_room_names_a_schedule_that_is_tuned_or_imports_one(room: str) -> None:
    for path, tree in modules().items():
        for node in ast.walk(tree) if path.parts[0] == room else ():
            if isinstance(node, ast.Constant):
                assert node.value not in {"geopipe", "csv:"}, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("tracetool.schedules.library"), f"{path.name}:{node.lineno}"
