"""Plans of recordings: each is what replay gives, and over links that were measured the best is named."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT, data, h100, looked_at, rebuilt, small
from helpers.thorough import is_asked, some, spread
from helpers.two_places import fleet_text

from tracetool.advice.cotune import co_tune
from tracetool.cli import run
from tracetool.costs.rescaled import MicrobatchSize, with_layers
from tracetool.errors import BadTopology, ScenarioError
from tracetool.explore.recorded import explore_recording
from tracetool.explore.recorded_space import RecordedSpace, RecordedWay
from tracetool.explore.space import read_axes
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.pipeline import ActionChange, LayerOverlap
from tracetool.model.scenario import Scenario
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.reports.exploration.recorded import render_recorded_text
from tracetool.schedules.names import schedule_name
from tracetool.validation.measured import read_measurements
from tracetool.whatif.answer import answer
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.explore.recorded_search import RecordedPlan

pytestmark = pytest.mark.usefixtures("asked_once")

GB, MS = 10**9, 10**6
HB = Tier("hb", 2, 450 * GB)


def fleet(bandwidth_bytes_per_s: int, latency_ns: int, placement: str = "pp") -> NetworkChoice:
    """Two places of two devices each."""
    wan = Tier("wan", 4, bandwidth_bytes_per_s, latency_ns, shared_by="pair")
    return NetworkChoice(Network("two places", (HB, wan)), placement)


def replayed_ns(space: RecordedSpace, plan: RecordedPlan) -> int:
    """The step of a plan as ``answer`` replays it."""
    way, point = plan.way, plan.point
    scenario = Scenario(
        seated(way.choice(space.choice), space.recording), space.hbm_bytes, way.p2p, link_sharing=way.sharing
    )
    found = answer(
        space.recording, [point.schedule], scenario, extra_forwards=point.extra_forwards, chunks=way.chunks
    ).results[0]  # fmt: skip
    assert (found.p2p, found.feasible, found.needed_bytes) == (point.p2p, point.feasible, point.needed_bytes)
    return found.step_ns


CASES = {
    "rt1f1b_m8": (fleet(25 * GB // 8, 10 * MS), ["depth=2"], ["p2p"]),
    "tp2pp2_1f1b_m8": (fleet(GB, 5 * MS, "tp,pp"), ["placement=tp,pp;pp,tp", "sharing=temporal,spatial"], ["p2p"]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_plan_takes_what_its_replay_takes(name: str) -> None:
    """To the ns; ways to place ranks and to share links with it."""
    choice, tried, left = CASES[name]
    given = read_axes([], [*tried, "schedule=1f1b,geopipe,zb-h1,interleaved"])
    space = RecordedSpace(rebuilt(name), choice, given, frozenset(left), 80 * GB)  # type: ignore[arg-type]
    done = explore_recording(space)
    ways = {plan.way for plan in done.plans}
    # What differs from replay in one way alone is among all of them.
    for plan in some(done.plans, 4):
        assert plan.step_ns == replayed_ns(space, plan), plan
    if name == "tp2pp2_1f1b_m8":
        assert {way.placement for way in ways} == {"tp,pp", "pp,tp"}
        assert {way.sharing for way in ways} == {"temporal", "spatial"}
        assert len({plan.step_ns for plan in done.plans if plan.point.schedule == "1f1b"}) > 2
    else:
        assert len(done.plans) >= 4
    assert done.base.step_ns == replayed_ns(space, done.base)


# The same steps were measured: from another recording they are predicted by other costs, and p2p left has fewer plans.
@spread("recorded", ["rt1f1b_m8", "1f1b_m8"], 1)
@spread("left", [frozenset({"p2p"}), frozenset()], 1)
def test_over_measured_links_the_plan_named_is_the_best_that_was_measured(recorded: str, left: frozenset[str]) -> None:
    """Within 1 % of the fastest row over each link, of the recording's own and of any transfers.

    Each link has rows of one way to issue transfers for most orders: where the plan's own was not measured, the row of
    its order stands for it.
    """
    files = ("measured.json", "measured-per-edge.json")
    rows = [row for file in files for row in read_measurements(data("h100-pp4", file)).steps]
    told = 0
    for link in {row.links[0].rank_link() for row in rows if row.links}:
        over = [row for row in rows if row.links and row.links[0].rank_link() == link and row.microbatches == 8]
        if len(over) <= 2:
            continue
        told += 1
        space = RecordedSpace(
            rebuilt(recorded), fleet(link.bandwidth_bytes_per_s, link.latency_ns), left=left  # type: ignore[arg-type]
        )  # fmt: skip
        best = explore_recording(space).best
        assert best is not None
        order = best.point.schedule, best.point.extra_forwards
        mine = [
            row.step_ms or 0
            for row in over
            if (schedule_name(row.schedule), row.extra_forwards and tuple(row.extra_forwards)) == order
        ]
        assert min(mine) <= 1.01 * min(row.step_ms or 0 for row in over), (link, best)
    assert told == 2


def files(tmp_path: Path, choice: NetworkChoice) -> list[str]:
    """A recording and a fleet, as the command takes them."""
    wan = choice.network.tiers[-1]
    text = fleet_text(
        placement=choice.placement, bandwidth=f"{wan.bandwidth_bytes_per_s * 8 / 1e9:g}Gbit/s",
        latency=f"{wan.latency_ns / MS:g}ms",
    )  # fmt: skip
    (tmp_path / "fleet.toml").write_text(text)
    return [str(h100("rt1f1b_m8").path), "--network", str(tmp_path / "fleet.toml")]


def test_the_answer_fits_a_screen_and_its_next_command_gives_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*files(tmp_path, CASES["rt1f1b_m8"][0]), "--try", "schedule=1f1b,geopipe,zb-h1"]
    assert run(["explore", *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Run geopipe +2,2,0,0, per-edge transfers")
    assert len(lines) <= 24
    assert max(map(len, lines[:-1])) <= 80
    assert run(["explore", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json.loads((ROOT / "schemas" / "recorded-exploration.schema.json").read_text()))
    words = shlex.split(lines[-1].removeprefix("Next: tracetool "))
    assert run([*words[: words.index("-o")], "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)["results"]
    assert replayed[0]["step_ns"] == told["best"]["step_ns"]
    assert told["best"]["faster_ratio"] == pytest.approx(told["base"]["step_ns"] / told["best"]["step_ns"] - 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fix", "tp=2"], "tp stays as recorded"),
        (["--leave", "recompute"], "recompute stays as recorded"),
        (["--fix", "p2p=per-edge", "--leave", "p2p"], "both given and left"),
        (["--fit", "x"], "--fit cannot be: a recording has what was measured"),
        (["--try", "microbatch=2"], "does not tell the sizes of its microbatches"),
        (["--mbs", "1"], "belong together"),
        (["--fix", "schedule=1f1b", "--try", "chunks=1,2"], "none of 1f1b has 2 stages per rank"),
        (["--mbs", "1", "--seq", "2048", "--try", "microbatch=3"], "do not divide the sequences"),
        (["-o", "x.txt"], "not written to .txt"),
    ],
)
def test_what_a_recording_does_not_tell_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run(["explore", *files(tmp_path, CASES["rt1f1b_m8"][0]), *words]) == 2
    assert says in capsys.readouterr().err


def test_compression_and_routing_change_what_the_link_carries() -> None:
    """Half the bytes over half the bandwidth take what all take over all, messages of the outermost tier alone."""
    choice, *_ = CASES["rt1f1b_m8"]
    given = read_axes(["schedule=1f1b"], ["compression=100%,50%", "routing=100%,50%"])
    space = RecordedSpace(rebuilt("rt1f1b_m8"), choice, given, frozenset({"p2p"}))
    steps = {(plan.way.compression, plan.way.routing): plan.step_ns for plan in explore_recording(space).plans}
    wide = replace(space, choice=fleet(50 * GB // 8, 10 * MS), given=read_axes(["schedule=1f1b"], []))
    assert steps[0.5, 1.0] == explore_recording(wide).base.step_ns < steps[1.0, 1.0] < steps[1.0, 0.5]


def test_a_fleet_that_the_job_does_not_fit_is_said() -> None:
    small_fleet = NetworkChoice(Network("two devices", (HB,)), "pp")
    with pytest.raises(BadTopology):
        explore_recording(RecordedSpace(rebuilt("rt1f1b_m8"), small_fleet))
    with pytest.raises(ScenarioError, match="places one job alone"):
        RecordedSpace(rebuilt("rt1f1b_m8"), replace(small_fleet, file="ranks.csv"))
    assert RecordedWay("pp", routing=0.5).text == "placed pp, routing reaches 50%"


def test_overlap_inside_layers_is_an_axis() -> None:
    """Every action 3 ms shorter by one way, 3 ms longer by another: as replays of such actions."""
    kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
    ways = [
        LayerOverlap(way, None, tuple(ActionChange(s, k, change, 10**5, 0) for s in range(4) for k in kinds))
        for way, change in (("slice:2", -3 * MS), ("p2p", 3 * MS))
    ]
    found, choice = rebuilt("rt1f1b_m8"), CASES["rt1f1b_m8"][0]
    given = read_axes([], ["schedule=1f1b,geopipe"])
    space = RecordedSpace(found, choice, given, frozenset({"p2p"}), None, (LayerOverlap(), *ways))
    done = explore_recording(space)
    layered = {one.way: replace(found, pipeline=with_layers(found.pipeline, one)) for one in space.overlaps}
    assert {plan.point.overlap for plan in done.plans} == set(layered)
    for plan in done.plans:
        assert plan.step_ns == replayed_ns(replace(space, recording=layered[plan.point.overlap]), plan)
    assert done.best is not None
    assert (done.best.point.schedule, done.best.point.overlap) == ("geopipe", "slice:2")
    (alone,) = [one.best for one in done.alone if one.name == "overlap"]
    assert alone is not None
    assert (alone.point.schedule, alone.point.overlap) == ("1f1b", "slice:2")


def test_a_way_of_layers_that_is_a_bound_is_never_named_nor_before_measured_ones() -> None:
    """Every action 5 ms shorter in one kernel, 3 ms shorter by a measured way: the bound is faster, and last."""
    kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
    ways = [
        LayerOverlap(way, None, tuple(ActionChange(s, k, change, 0, 0) for s in range(4) for k in kinds))
        for way, change in (("fused", -5 * MS), ("slice:2", -3 * MS))
    ]
    given, left = read_axes([], ["schedule=1f1b,geopipe"]), frozenset({"p2p"})
    done = explore_recording(
        RecordedSpace(rebuilt("rt1f1b_m8"), CASES["rt1f1b_m8"][0], given, left, None, (LayerOverlap(), *ways))  # type: ignore[arg-type]
    )
    named = [done.best, *done.as_good, *(one.best for one in (*done.alone, done.one_by_one))]
    assert "fused" not in {plan.point.overlap for plan in named if plan is not None}
    seen = [plan.point.overlap for plan in done.unproven]
    assert done.best is not None
    assert done.best.point.overlap == "slice:2"
    assert "fused" in seen
    assert "fused" not in seen[: len(seen) - seen.count("fused")]
    assert min(done.plans, key=lambda plan: plan.step_ns).point.overlap == "fused"
    shown = render_recorded_text(done, verbose=True).decode().splitlines()
    lines = [line for line in " ".join(" ".join(shown).split()).split("maybe ?") if "overlap by fused" in line]
    assert lines
    assert all(line.strip().startswith("at most -") for line in lines)


def test_the_weightiest_note_comes_first_and_others_are_counted() -> None:
    space = RecordedSpace(rebuilt("tp2pp2_1f1b_m8"), CASES["tp2pp2_1f1b_m8"][0], read_axes(["schedule=1f1b"], []))
    done = explore_recording(space)
    lines = render_recorded_text(done).decode().splitlines()
    assert NoticeCode.HOST_BOUND in {note.code for note in done.notes[1:]}
    assert lines[-1] == f"{len(done.notes) - 1} notes more: -v"
    assert [line for line in lines if line.startswith("note: ")] == [line for line in lines if "the host holds" in line]


def test_microbatches_of_other_sizes_are_extrapolated_and_marked() -> None:
    """At equal tokens, as co-tuning has them; never named ahead of what was recorded."""
    choice = CASES["rt1f1b_m8"][0]
    given = read_axes([], ["schedule=geopipe,1f1b"])
    sizes = MicrobatchSize(1, 2048)
    space = RecordedSpace(rebuilt("rt1f1b_m8"), choice, given, frozenset({"p2p"}), sizes=sizes)
    done = explore_recording(space)
    tuned = co_tune(space.recording, Scenario(seated(choice, space.recording)), sizes, schedule="geopipe")
    expected = {
        (one.batch.sequences, one.microbatches, one.extra_forwards): one.metrics.step_ns
        for one in tuned.candidates
        if one.batch.length == 2048
    }
    seen = {
        (plan.way.microbatch or 1, plan.point.microbatches, plan.point.extra_forwards): plan.step_ns
        for plan in done.plans
        if plan.point.schedule == "geopipe"
    }
    assert len(expected) == 3
    assert all(seen[key] == step_ns for key, step_ns in expected.items())
    scaled = [plan for plan in done.plans if plan.way.microbatch is not None]
    assert all(plan.point.evidence == "unproven" for plan in scaled)
    assert all("microbatches of other sizes" in plan.point.rests_on for plan in scaled)
    assert done.best is not None
    assert done.best.way.microbatch is None


def test_chunks_are_those_of_schedules_that_take_them() -> None:
    """One and two go with unlike schedules; two that were recorded are not cut again."""
    choice = CASES["rt1f1b_m8"][0]
    given = read_axes(["p2p=in-order"], ["schedule=1f1b,interleaved,dualpipe", "chunks=1,2"])
    space = RecordedSpace(rebuilt("1f1b_m8"), choice, given)
    done = explore_recording(space)
    ran = {(plan.point.schedule, plan.way.chunks) for plan in done.plans}
    assert ran == {("1f1b", 1), ("interleaved", 2)}
    for plan in done.plans:
        chunks = plan.way.chunks if plan.way.chunks != 1 else None
        assert plan.step_ns == replayed_ns(space, replace(plan, way=plan.way._replace(chunks=chunks)))
    with pytest.raises(ScenarioError, match="2 stages per rank already"):
        RecordedSpace(looked_at(small("interleaved2")), choice, read_axes([], ["chunks=2"]))


def test_where_nothing_is_shorter_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = files(tmp_path, CASES["rt1f1b_m8"][0])
    assert run(["explore", *asked, "--fix", "schedule=1f1b", "--leave", "p2p"]) == 0
    assert "nothing that is as sure is shorter" in " ".join(capsys.readouterr().out.split())
    assert run(["explore", *asked, "--fix", "schedule=gpipe", "--leave", "p2p"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Stay with the recorded order, ")
    assert "of what was asked for the best is gpipe" in shown
    assert "faster" not in shown


# With all ways to issue transfers the same is tried on four times as many plans.
@spread("fixed", [[], ["p2p=grouped"]], [["p2p=grouped"]])
def test_more_stages_per_rank_to_choose_from_are_never_worse(fixed: list[str]) -> None:
    """One stage per rank is what the recording has: with it are all schedules of one, whatever else may be tried."""
    found, choice = rebuilt("rt1f1b_m8"), CASES["rt1f1b_m8"][0]
    # Four stages per rank are a choice more, of the same kind.
    asked = ("chunks=1", "chunks=1,2", "chunks=1,2,4")[: 3 if is_asked() else 2]
    done = [explore_recording(RecordedSpace(found, choice, read_axes(fixed, [chunks]))) for chunks in asked]
    steps = [one.best.step_ns for one in done if one.best is not None]
    assert len(steps) == len(asked)
    assert steps == sorted(steps, reverse=True)
    assert all(one.best is not None and one.best.point.evidence == "recorded" for one in done)
    assert {"1f1b", "geopipe", "zb-h1"} <= {plan.point.schedule for plan in done[0].plans}
    assert {plan.point.schedule for plan in done[0].plans} < {plan.point.schedule for plan in done[1].plans}


def test_choices_alone_start_from_what_is_fixed() -> None:
    """Bytes fixed to a half: each choice alone, and one by one, reaches what it does over twice the bandwidth."""
    found, tried = rebuilt("tp2pp2_1f1b_m8"), ["schedule=1f1b,eager-1f1b,zb-h1"]
    half = explore_recording(RecordedSpace(found, fleet(GB, 5 * MS, "tp,pp"), read_axes(["compression=50%"], tried)))
    wide = explore_recording(RecordedSpace(found, fleet(2 * GB, 5 * MS, "tp,pp"), read_axes([], tried)))
    assert half.start.step_ns == wide.base.step_ns == wide.start.step_ns < half.base.step_ns
    steps = [{one.name: one.best and one.best.step_ns for one in done.alone} for done in (half, wide)]
    assert steps[0] == steps[1]
    assert (steps[0]["schedule"] or 0) < half.start.step_ns
    assert half.one_by_one.best is not None
    assert wide.one_by_one.best is not None
    assert half.one_by_one.best.step_ns == wide.one_by_one.best.step_ns


# The other choices are written into the fleet's file by the same means, each in its own words.
@spread(
    ("name", "words", "verb"),
    [
        ("tp2pp2_1f1b_m8", [], "replay"),
        ("tp2pp2_1f1b_m8", ["--fix", "compression=50%"], "explore"),
        ("tp2pp2_1f1b_m8", ["--fix", "routing=70%"], "explore"),
        ("tp2pp2_1f1b_m8", ["--fix", "placement=tp,pp"], "explore"),
        ("tp2pp2_1f1b_m8", ["--fix", "placement=tp,pp", "--leave", "p2p"], "explore"),
        ("tp2pp2_1f1b_m8", ["--fix", "sharing=spatial"], "replay"),
        ("rt1f1b_m8", ["--fix", "sharing=spatial", "--try", "chunks=2"], "replay"),
        ("rt1f1b_m8", ["--fix", "schedule=gpipe", "--leave", "p2p"], "replay"),
    ],
    [("rt1f1b_m8", ["--fix", "schedule=gpipe", "--leave", "p2p"], "replay")],
)
def test_the_next_command_gives_the_step_of_the_plan_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: list[str], verb: str
) -> None:
    """What replay cannot be told is explored again, and replayed over the fleet's file as the answer would have it."""
    choice = CASES[name][0]
    if "placement=tp,pp" in words:
        choice = replace(choice, placement="pp,tp")
    asked = [str(h100(name).path), *files(tmp_path, choice)[1:], *words]
    assert run(["explore", *asked]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert run(["explore", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    best = told["best"]
    named = told["base"] if shown[0].startswith("Stay") else best
    following = shlex.split(last.removeprefix("Next: tracetool "))
    assert following[0] == verb
    if verb == "explore":
        assert run([*following, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["best"] == best
        fleet_file = tmp_path / "fleet.toml"
        changes = re.findall(r'(placement|bandwidth) = ("[^"]+")', " ".join(" ".join(shown).split()))
        assert changes
        text = fleet_file.read_text()
        for key, value in changes:
            before, _, after = text.rpartition(f"{key} = ")
            text = f"{before}{key} = {value}\n" + after.partition("\n")[2]
        fleet_file.write_text(text)
        order = ["--schedule", best["schedule"], "--p2p", best["p2p"], "--link-sharing", best["sharing"]]
        following = ["replay", *asked[:3], *order, "-o"]
    assert run([*following[: following.index("-o")], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["step_ns"] == named["step_ns"]


def test_where_what_is_fixed_takes_another_schedule_choices_start_from_the_one_that_the_rule_names() -> None:
    """Two stages per rank are no 1f1b: not the shortest, which rests on less."""
    space = RecordedSpace(rebuilt("rt1f1b_m8"), CASES["rt1f1b_m8"][0], read_axes(["chunks=2"], []), frozenset({"p2p"}))
    done = explore_recording(space)
    assert done.best is not None
    assert done.start == done.best != min(done.plans, key=lambda plan: plan.step_ns)
    assert done.start.step_ns > done.base.step_ns
    assert done.named is done.base
