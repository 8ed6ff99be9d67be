"""One question, asked of every face: the same schedule, step, change, error and mark, by one rule."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import ROOT, SAMPLES, data, looked_at, run_of
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.advice import advise, decide
from tracetool.cli import run
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_dc_map, parse_link
from tracetool.reports import RunFacts
from tracetool.reports.advice import sentences
from tracetool.reports.advice.text import render_text
from tracetool.reports.answer.verdict import best_result, verdict
from tracetool.reports.html import comparison
from tracetool.reports.sweep import facets_of
from tracetool.reports.sweep.best_map import cells_of
from tracetool.schedules import build_schedule
from tracetool.store.run import Run
from tracetool.sweeps import Grid, sweep
from tracetool.sweeps.results import SweepPoint
from tracetool.whatif.accuracy import KnownError, change_error_ratio, format_error
from tracetool.whatif.answer import answer
from tracetool.whatif.best import choose_best, choose_each, default_schedules
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracetool.model.pipeline import P2PMode
    from tracetool.reconstruction import Reconstruction
    from tracetool.whatif.best import Candidate

SAMPLE = SAMPLES / "h100-1f1b"
SLOW, FAST = "dc0-dc1=25Gbit/s,10ms", "dc0-dc1=100Gbit/s,2ms"
KEYS = (
    "schedule", "extra_forwards", "p2p", "step_ns", "change_ratio", "seen_error_ratio", "evidence", "rests_on",
    "change_error_ratio",
)  # fmt: skip


def recorded(name: str) -> Reconstruction:
    if name == "sample":
        return looked_at(run_of(SAMPLE))
    if name in ("interleaved2", "zbv"):
        return looked_at(run_of(ROOT / "tests" / "data" / name))
    return looked_at(run_of(data("h100-pp4", "traces", name)))


def told(one: Candidate | None, now: Candidate | None) -> tuple[Any, ...]:
    """What a face says of its best schedule."""
    assert one is not None
    assert now is not None
    assert one.step_ns is not None
    assert now.step_ns is not None
    kind = "recorded" if one.known_error is not None else "unproven" if one.rests_on else "measured"
    error = None if one.known_error is None else one.known_error.step_ratio
    change = one.step_ns / now.step_ns - 1
    of_change = change_error_ratio(now.known_error, one.known_error, change)
    return (
        one.schedule, one.extra_forwards, one.p2p, one.step_ns, change, error, kind, tuple(one.rests_on), of_change,
    )  # fmt: skip


def near_of(found: Iterable[Candidate]) -> list[tuple[Any, ...]]:
    return [(one.schedule, one.extra_forwards, one.p2p, one.step_ns) for one in found]


def listed_in_json(entry: dict[str, Any], key: str) -> list[tuple[Any, ...]]:
    rows = entry[key]
    return [
        (one["schedule"], tuple(one["extra_forwards"]) if one["extra_forwards"] else None, one["p2p"], one["step_ns"])
        for one in rows
    ]


def in_words(found: Iterable[tuple[Any, ...]]) -> str:
    """As the report names them: geopipe with its depth, and the step."""
    return ", ".join(
        f"{name}{' +' + ','.join(map(str, extra)) if extra else ''} ({step_ns / 1e6:.1f} ms)"
        for name, extra, _, step_ns in found
    )


# What makes faces differ is a limit, an error, a proof or a name: the others have those in other pairs.
@spread(
    ("name", "link", "hbm_gib", "names"),
    [
        ("sample", SLOW, None, None),
        ("sample", FAST, 80, None),
        ("sample", SLOW, 14, None),  # geopipe is cut by the limit
        ("sample", "dc0-dc1=100Gbit/s,9ms", None, ("1f1b", "geopipe")),  # the lead is within the error
        ("sample", SLOW, 80, ("dualpipe", "zb-v")),  # of what is asked for nothing is proven
        ("zbh1_m8", SLOW, 80, None),
        ("gpipe_m8", FAST, None, ("1f1b", "geopipe", "zb-h2", "gpipe")),
        ("interleaved_m8", SLOW, None, None),  # recorded under two names: as observed, and as what it is
        ("interleaved2", SLOW, None, None),
        ("zbv", SLOW, None, None),
    ],
    [("sample", SLOW, 80, ("dualpipe", "zb-v"))],
)
def test_python_faces_say_the_same(name: str, link: str, hbm_gib: int | None, names: tuple[str, ...] | None) -> None:
    found = recorded(name)
    hbm = None if hbm_gib is None else hbm_gib << 30
    ranks = found.pipeline.observed.shape.ranks
    topology = Topology(parse_dc_map("0-1,2-3" if ranks == 4 else "0,1"), parse_link(link))
    what_if = Scenario(topology=topology, hbm_bytes=hbm)
    one = topology.links[0]
    listed = list(names or default_schedules(found.pipeline.observed))

    advice = advise(found, what_if, names)
    replayed = answer(found, listed, what_if)
    grid = Grid(
        names or (), dcs=(Topology(topology.dcs),), hbm_bytes=() if hbm is None else (hbm,),
        bandwidths_bytes_per_s=(one.bandwidth_bytes_per_s,), latencies_ns=(one.latency_ns,),
    )  # fmt: skip
    swept = sweep(found, grid, knees=False)
    (best,) = swept.best

    said = told(advice.best, advice.now)
    assert told(replayed.best, replayed.baseline) == said
    assert told(best.point, best.now) == said
    assert best_result(replayed) is replayed.best
    assert (best.change_ratio, best.change_error_ratio) == (said[4], said[8])
    assert (replayed.step_change(replayed.best or replayed.baseline), advice.change_error_ratio) == (said[4], said[8])
    (cell,) = cells_of(facets_of(swept.points)[0], swept.best).values()
    mark = " ?" if said[6] == "unproven" else ""
    assert (cell.label, cell.step_ns, cell.gain_ratio) == (f"{said[0]}{mark}", said[3], said[4])
    table = comparison(replayed, best_result(replayed))
    (row,) = (row for row in table.rows if row.kind.startswith("best"))
    known = format_error(said[5]) if said[5] is not None else "?" if said[6] == "unproven" else ""
    at = table.columns.index("±") - 1 if "±" in table.columns else None
    assert (row.cells[at].text if at is not None else "") == known
    # What is as good, and what may be better, are the same ones, and no order is there twice.
    assert near_of(advice.rivals) == near_of(replayed.chosen.as_good) == near_of(best.as_good)
    assert near_of(advice.unproven) == near_of(replayed.chosen.unproven) == near_of(best.unproven)
    near = [replayed.best, *replayed.chosen.as_good, *replayed.chosen.unproven]
    orders = [(one.replayed.schedule.orders, one.p2p) for one in near if one is not None]
    assert all(orders.count(one) == 1 for one in orders)
    # By the errors themselves: as good is no further off than they are, shorter otherwise issued is further.
    assert advice.best is not None
    for plan in (*advice.rivals, *advice.other_transfers):
        apart = plan.step_ns / advice.best.step_ns - 1
        errors = advice.best.known_error or plan.known_error, plan.known_error or advice.best.known_error
        least = max(RELEVANT_RATIO, change_error_ratio(*errors, apart) or 0)
        assert abs(apart) <= least if plan in advice.rivals else apart < -least
    # What may be better is marked, and never named ahead of what is proven.
    shorter = {(p.schedule, p.step_ns) for p in best.unproven}
    usual = [plan for plan in advice.asked.plans if plan.way.p2p is None and plan.feasible is not False]
    assert shorter <= {(plan.schedule, plan.step_ns) for plan in usual if plan.rests_on or plan.evidence != said[6]}
    assert all((p.step_ns or 0) < said[3] for p in best.unproven)


# Python says the same by default (below), and commands say of two offers what each other says (tests/cli/test_offers).
@pytest.mark.thorough
@pytest.mark.usefixtures("asked_once")
def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """advise, sweep, report and replay as JSON, the Run that replay writes as SQL, and the mark in their texts."""
    place, limit = ["--dc", "0-1,2-3"], ["--hbm", "80GiB"]
    over = [*place, "--link", SLOW, *limit]

    def asked(*words: str) -> dict[str, Any]:
        assert run([*words[:1], str(SAMPLE), *words[1:], "--json"]) == 0
        made: dict[str, Any] = json.loads(capsys.readouterr().out)
        return made

    advice = asked("advise", *over)
    listed = ",".join(dict.fromkeys(plan["schedule"] for plan in advice["plans"]))
    target = tmp_path / "x.run"
    (swept,) = asked("sweep", *place, "--bandwidth", "25Gbit/s", "--latency", "10ms", *limit, "--no-knees")["best"]
    written = asked("report", *over, "-o", str(tmp_path / "x.html"))
    replayed = asked("replay", "--schedule", listed, *over, "--run", str(target))
    change = {"change_ratio": advice["best"]["step_ns"] / advice["now"]["step_ns"] - 1}
    advised = {"change_error_ratio": advice.get("change_error_ratio")} | advice["best"] | change
    said = [advised[key] for key in KEYS]
    near = {key: listed_in_json(advice, key) for key in ("as_good", "unproven")}
    assert all(near.values())
    for face in (swept, written["best"], replayed["best"]):
        assert [face[key] for key in KEYS] == said
        assert {key: listed_in_json(face, key) for key in near} == near
    text = html.unescape(re.sub("<[^>]*>", "", (tmp_path / "x.html").read_text()))
    assert run(["report", str(SAMPLE), *over, "-o", str(tmp_path / "y.html")]) == 0
    for shown in (text, capsys.readouterr().out):
        assert f"As good, nearer to it than the error of prediction: {in_words(near['as_good'])}." in shown
        assert f"May be better, but unproven, no recorded step was like it: {in_words(near['unproven'])}." in shown
    row = f"FROM schedule_comparison WHERE timeline = '{said[0]}'"
    (row_of,) = Run(target).records(row)
    result = next(one for one in replayed["results"] if one["schedule"] == said[0])
    assert (row_of["step_ns"], row_of["seen_error_ratio"], row_of["unproven"], row_of["fits"]) == (
        said[3], said[5], said[6] == "unproven", True,
    )  # fmt: skip
    assert row_of["cross_dc_bubble_ns"] == result["cross_dc_bubble_ns"]
    marked = {name for (name,) in Run(target).rows("SELECT timeline FROM schedule_comparison WHERE unproven")}
    assert marked == {one["schedule"] for one in replayed["results"] if one["evidence"] == "unproven"} >= {"zb-h2"}
    assert run(["replay", str(SAMPLE), "--schedule", "zb-h2,geopipe", *over, "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: line.split() for line in reversed(lines) if line.startswith(("  zb-h2 ", "  geopipe +"))}
    assert cells["zb-h2"][4] == "?"
    assert cells["geopipe"][5] == "4%"
    assert any("± ?: unproven, no recorded step was like it" in line for line in lines)


@pytest.mark.parametrize("p2p", [None, "in-order"])
def test_transfers_rest_on_the_same_however_they_are_asked_for(p2p: P2PMode | None) -> None:
    """Megatron's batches are grouped; geopipe's own way is one by one, 1F1B's is the recorded one."""
    found = looked_at(run_of(data("megatron", "1f1b_m8")))
    scenario = Scenario(topology=Topology(parse_dc_map("0,1"), parse_link(SLOW)), p2p=p2p)
    deep, plain = answer(found, ["geopipe", "1f1b"], scenario).results
    assert (deep.p2p, deep.known_error, deep.rests_on) == ("in-order", None, ())
    assert (plain.p2p, plain.rests_on) == (("grouped", ()) if p2p is None else ("in-order", ("in-order transfers",)))


def test_transfers_issued_otherwise_are_told_only_where_that_is_shorter_by_more_than_can_be_told() -> None:
    """zb-h1 and geopipe per edge are a little shorter than the best, but by less than the error of the difference."""
    found, over = recorded("sample"), Topology(parse_dc_map("0-1,2-3"), parse_link(SLOW))
    advice = advise(found, Scenario(topology=over), ("1f1b", "geopipe", "zb-h1", "zb-h2"))
    assert advice.best is not None
    little = [plan for plan in advice.asked.plans if plan.way.p2p and plan.step_ns < advice.best.step_ns]
    assert {"geopipe", "zb-h1", "zb-h2"} == {plan.schedule for plan in little}
    assert [(plan.schedule, plan.p2p) for plan in advice.other_transfers] == [("zb-h2", "per-edge")]


@pytest.mark.parametrize("names", [None, ("observed", "interleaved"), ("interleaved", "looped-bfs")])
def test_the_recorded_order_under_its_own_name_is_one_candidate(names: tuple[str, ...] | None) -> None:
    """A recording of interleaved: observed and interleaved are the same actions in the same order on every rank."""
    found, over = recorded("interleaved2"), Topology(parse_dc_map("0,1"), parse_link(SLOW))
    observed = found.pipeline.observed
    assert build_schedule("interleaved", observed.shape).orders == observed.orders
    advice = advise(found, Scenario(topology=over), names)
    usual = [plan for plan in advice.asked.plans if plan.way.p2p is None]
    assert [plan.schedule for plan in usual if plan.schedule in ("observed", "interleaved")] == ["observed"]
    assert advice.best is not None
    assert advice.best.schedule == "observed"
    assert not {"observed", "interleaved"} & {plan.schedule for plan in advice.rivals}

    asked = list(names or default_schedules(observed))
    replayed = answer(found, asked, Scenario(topology=over))
    rows = comparison(replayed, best_result(replayed)).rows
    heads = [row.head.text for row in rows if row.kind != "observed"]
    assert heads.count("recorded, replayed") == 1
    assert "interleaved" not in heads
    assert not {"observed", "interleaved"} & {one.schedule for one in replayed.chosen.as_good}

    link = over.links[0]
    grid = Grid(
        names or (), dcs=(Topology(over.dcs),), bandwidths_bytes_per_s=(link.bandwidth_bytes_per_s,),
        latencies_ns=(link.latency_ns,),
    )  # fmt: skip
    swept = sweep(found, grid, knees=False)
    (best,) = swept.best
    assert best.point is not None
    assert best.point.schedule == "observed"
    assert not {"observed", "interleaved"} & {one.schedule for one in best.as_good}
    if names is None:
        assert [point.schedule for point in swept.points].count("observed") == 1
        assert "interleaved" not in {point.schedule for point in swept.points}


def test_an_order_that_memory_or_transfers_tell_apart_stays_two_candidates() -> None:
    """The same order per edge is another thing to run, and one that is not the same order at all is, too."""
    found, over = recorded("interleaved2"), Topology(parse_dc_map("0,1"), parse_link(SLOW))
    plans = advise(found, Scenario(topology=over)).asked.plans
    assert sorted(plan.p2p for plan in plans if plan.schedule == "observed") == ["in-order", "per-edge"]
    assert sum(plan.schedule == "looped-bfs" for plan in plans) == 2


def test_unknown_is_not_fits() -> None:
    """1F1B needs 500 + 4 x 10 bytes. What zb-h1 holds is unknown, as the halves of its backward are no more than times:
    over a limit that 1F1B misses nothing is named, and all faces say so; where nobody's memory is known, it is said
    that nothing was checked."""
    measured = pipeline(4, 8, 100, 200, activation_bytes=10, static_bytes=500, payload_bytes=1)
    halves = {kind: (ActionCost(100),) * 8 for kind in (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)}
    stages = tuple(replace(stage, derived=halves) for stage in measured.stages)
    known = found(replace(measured, stages=stages))
    over = replace(scenario(places([2, 2], latency_ns=300)), hbm_bytes=539)
    facts = RunFacts("x", "", "", "")
    names = ["1f1b", "zb-h1"]
    done = answer(known, names, over)
    assert {r.schedule: r.feasible for r in done.results} == {"1f1b": False, "zb-h1": None}
    assert done.best is None
    headline = verdict(done).headline
    assert headline == "Nothing is known to fit 539.00 B of HBM (unknown of zb-h1): 1f1b lacks least, 1.00 B"
    decided = decide(known, over, schedules=names)
    assert decided.advice[0].best is None
    assert "nothing is known to fit the memory (unknown of zb-h1)" in " ".join(sentences(decided.decision))
    assert "nothing is known to fit 539.00 B (unknown of zb-h1)" in " ".join(
        render_text(decided, facts, verbose=True).decode().split()
    )
    grid = Grid(
        tuple(names),
        bandwidths_bytes_per_s=(10**9,),
        latencies_ns=(300,),
        dcs=(("a", "a", "b", "b"),),
        hbm_bytes=(539,),
    )
    assert [one.point for one in sweep(known, grid).best] == [None]
    # With room for 1F1B it is what to run, whatever zb-h1 needs.
    roomy = answer(known, names, replace(over, hbm_bytes=540))
    assert roomy.best is not None
    assert (roomy.best.schedule, roomy.best.feasible) == ("1f1b", True)
    # Without any memory figures the shortest is named, and that it was not checked.
    unknown = found(pipeline(4, 8, 100, 200, payload_bytes=1))
    blind = answer(unknown, ["gpipe"], over)
    assert blind.best is not None
    assert "not checked against 539.00 B of HBM" in verdict(blind).headline
    assert "not checked against 539.00 B of HBM" in sentences(decide(unknown, over, schedules=["gpipe"]).decision)[0]


_STEPS = st.integers(90, 130)


@given(
    st.lists(
        st.tuples(_STEPS, st.lists(st.tuples(_STEPS, st.booleans()), min_size=3, max_size=3)), min_size=2, max_size=4
    )
)
def test_what_is_run_in_one_scenario_is_run_in_all_where_it_is_shorter_than_the_recorded_order(
    drawn: list[tuple[int, tuple[tuple[int, bool], ...]]],
) -> None:
    """Three schedules beside the recorded one: what each scenario chooses alone says what all may run."""
    known = KnownError(0.04, 0.0, Topology(), 8, is_split=False)

    def plan(name: str, step: int, *, fits: bool = True) -> SweepPoint:
        return SweepPoint(name, None, 8, "grouped", step_ns=step, needed_bytes=1, feasible=fits, known_error=known)

    scenarios = [
        [plan("1f1b", now), *(plan("abc"[at], step, fits=fits) for at, (step, fits) in enumerate(others))]
        for now, others in drawn
    ]
    alone = [choose_best(candidates, lambda one: one.schedule == "1f1b") for candidates in scenarios]
    run_somewhere = {one.schedule for one in alone if one is not None} - {"1f1b"}
    chosen = choose_each([(candidates, "1f1b") for candidates in scenarios], lambda one: one.schedule == "1f1b")
    for (now, others), one, was in zip(drawn, chosen, alone, strict=True):
        assert one.best is not None
        assert was is not None
        shorter = {
            s for name, (s, fits) in zip("abc", others, strict=True) if name in run_somewhere and fits and s < now
        }
        if was.schedule == "1f1b":
            # A step within 1 % of the shortest is as short.
            assert (one.best.schedule == "1f1b") == (not shorter)
            assert (one.best.step_ns or 0) <= min(shorter, default=now) * (1 + RELEVANT_RATIO) + 1
        else:
            assert one.best == was
