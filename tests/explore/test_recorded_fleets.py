"""A recording on several fleets, on fleets that fail, of pipelines that differ, and from the file of a search."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import ROOT, h100, rebuilt
from helpers.thorough import some, spread
from helpers.two_places import fleet_text

import tracetool as tt
from tracetool.cli import run
from tracetool.errors import ScenarioError
from tracetool.explore.failures import parse_failure
from tracetool.explore.recorded import explore_recording
from tracetool.explore.recorded_search import RecordedWork
from tracetool.explore.recorded_space import RecordedSpace
from tracetool.explore.space import read_axes
from tracetool.model.scenario import Scenario
from tracetool.network.file import FleetPrice, NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.reconstruction.job import record_job, sorted_pipelines
from tracetool.whatif.answer import answer
from tracetool.whatif.job import unlike_pipelines
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.model.pipeline import ActionCost

pytestmark = pytest.mark.usefixtures("asked_once")

GB, MS = 10**9, 10**6


def fleet(bandwidth_bytes_per_s: int = GB, placement: str = "pp", name: str = "two places") -> NetworkChoice:
    tiers = (Tier("hb", 2, 450 * GB), Tier("wan", 4, bandwidth_bytes_per_s, 5 * MS, shared_by="pair"))
    return NetworkChoice(Network(name, tiers), placement)


def space(choice: NetworkChoice, recording: str = "rt1f1b_m8") -> RecordedSpace:
    given = read_axes(["placement=" + choice.placement], ["schedule=1f1b,geopipe,zb-h1"])
    return RecordedSpace(rebuilt(recording), choice, given, frozenset({"p2p"}))


def test_other_fleets_are_explored_as_if_asked_for_by_themselves() -> None:
    others = [fleet(8 * GB), fleet(GB // 8)]
    done = explore_recording(space(fleet()), others=[space(each) for each in others])
    for there, choice in zip(done.others, others, strict=True):
        assert there.best == explore_recording(space(choice)).best
    priced = [replace(fleet(), price=FleetPrice(1.0, (0.0, 0.0), each)) for each in ("USD", "EUR")]
    with pytest.raises(ScenarioError, match="several currencies"):
        explore_recording(space(priced[0]), others=[space(priced[1])])


def test_a_tier_with_less_is_a_fleet_that_is_built_so() -> None:
    """With the mean over the time by hand."""
    failing = parse_failure("wan.bandwidth=25%@10%", fleet().network)
    done = explore_recording(space(fleet()), failures=[failing])
    built = explore_recording(space(fleet(GB // 4)))
    assert done.named is not None
    assert done.failures is not None
    (outcome,) = done.failures.outcomes
    kept = next(plan for plan in built.plans if plan.plan == done.named.plan)
    assert outcome.kept.step_ns == kept.step_ns > done.named.step_ns
    assert outcome.best is not None
    assert built.best is not None
    assert outcome.best.step_ns <= built.best.step_ns
    assert done.failures.kept is not None
    assert done.failures.kept.worst_ns == kept.step_ns
    assert done.failures.kept.expected_ns == pytest.approx(0.9 * done.named.step_ns + 0.1 * kept.step_ns)
    assert done.failures.least_worst is not None
    assert done.failures.least_worst.worst_ns <= kept.step_ns


def twice(cost: ActionCost) -> ActionCost:
    """An action that takes twice as long, however slowed down beside others."""
    alone, beside = cost.uncontended_ns, cost.contended_ns
    return replace(
        cost, duration_ns=2 * cost.duration_ns, uncontended_ns=None if alone is None else 2 * alone,
        contended_ns=None if beside is None else 2 * beside,
    )  # fmt: skip


# Groups of another tier.
@spread(("group", "slow"), [("hb0", (0, 1)), ("wan1", (2, 3))], 1)
def test_stages_within_a_slow_group_take_longer(group: str, slow: tuple[int, ...]) -> None:
    """The replay of a recording whose forwards and backwards there took twice as long, changed by hand."""
    asked = replace(space(fleet()), given=read_axes(["schedule=1f1b", "placement=pp"], []))
    done = explore_recording(asked, failures=[parse_failure(f"{group}.speed=50%", fleet().network)])
    assert done.failures is not None
    recording = rebuilt("rt1f1b_m8")
    stages = tuple(
        replace(stage, costs={kind: tuple(map(twice, costs)) for kind, costs in stage.costs.items()})
        if stage.stage in slow
        else stage
        for stage in recording.pipeline.stages
    )
    changed = replace(recording, pipeline=replace(recording.pipeline, stages=stages))
    expected = answer(changed, ["1f1b"], Scenario(seated(fleet(), recording))).results[0].step_ns
    assert done.failures.outcomes[0].kept.step_ns == expected > 1.2 * done.base.step_ns


def test_a_search_goes_on_from_its_file(tmp_path: Path) -> None:
    given = read_axes(["schedule=1f1b"], ["p2p=grouped,per-edge"])
    asked = RecordedSpace(rebuilt("rt1f1b_m8"), fleet(), given)
    whole = explore_recording(asked)
    path = tmp_path / "search.state"
    first = explore_recording(asked, work=RecordedWork(state=path, ends=0.0))
    assert first.open > 0
    assert [each.name for each in tmp_path.iterdir()] == ["search.state"]
    told: list[int] = []
    on = explore_recording(asked, work=RecordedWork(state=path, progress=_Told(told)))
    assert (on.plans, on.best, on.open) == (whole.plans, whole.best, 0)
    # With no time at all the file has everything.
    assert explore_recording(asked, work=RecordedWork(state=path, ends=0.0)).plans == whole.plans
    with pytest.raises(ScenarioError, match="of another space"):
        explore_recording(space(fleet(2 * GB)), work=RecordedWork(state=path))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ScenarioError, match="no file of a search"):
        explore_recording(asked, work=RecordedWork(state=path))


class _Told:
    """What a search says of how far it is."""

    def __init__(self, done: list[int]) -> None:
        self.done = done

    def start(self, total: int) -> None:
        self.done.append(-total)

    def advance(self, done: int) -> None:
        self.done.append(done)


def test_of_pipelines_that_differ_the_slowest_counts(tmp_path: Path) -> None:
    """Each kind replayed by itself where its own ranks are; of the recording they take different times."""
    write_job(tmp_path / "traces", MadeJob(pp=2, tp=2, microbatches=4, layers=1, jitter_ratio=0.05, slow={1: 1.3}))
    recorded = tt.ingest(tmp_path / "traces", tmp_path / "x.run")
    found = tt.reconstruct(recorded)
    known = sorted_pipelines(recorded)
    assert known.differ
    first, unlike = unlike_pipelines(recorded, found)
    assert [numbers for _, numbers in unlike] == [alike.numbers for alike in known.alike]
    choice = fleet(placement="tp,pp")
    asked = RecordedSpace(
        first, choice, read_axes(["placement=tp,pp"], ["schedule=1f1b,zb-h1"]), frozenset({"p2p"}), unlike=unlike
    )
    done = explore_recording(asked)
    firsts = record_job(recorded, found).firsts
    for plan in some(done.plans, 2):
        steps = []
        for one in firsts:
            scenario = Scenario(seated(choice, one), link_sharing=plan.way.sharing)
            result = answer(one, [plan.point.schedule], scenario, extra_forwards=plan.point.extra_forwards).results[0]
            steps.append(result.step_ns)
        assert len(set(steps)) > 1
        assert plan.step_ns == max(steps)


def test_all_of_it_is_asked_for_as_of_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here.toml", tmp_path / "there.toml"
    here.write_text(fleet_text(name="here", placement="pp"))
    there.write_text(fleet_text(name="there", placement="pp", bandwidth="8GB/s"))
    asked = [
        "explore", str(h100("rt1f1b_m8").path), "--network", str(here), "--or", str(there), "--fix", "schedule=1f1b",
        "--failure", "wan.bandwidth=50%@2%", "--state", str(tmp_path / "x.state"), "--leave", "p2p",
    ]  # fmt: skip
    assert run([*asked, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json.loads((ROOT / "schemas" / "recorded-exploration.schema.json").read_text()))
    assert [one["network"] for one in told["others"]] == ["there"]
    assert told["others"][0]["best"]["step_ns"] < told["best"]["step_ns"]
    (outcome,) = told["failures"]["outcomes"]
    # With half the bandwidth the same order waits longer within its window.
    assert outcome["kept"]["window_ns"] > told["best"]["window_ns"]
    assert outcome["kept"]["bubble_ratio"] > told["best"]["bubble_ratio"]
    assert outcome["kept"]["faster_ratio"] is None
    assert (outcome["failure"], outcome["weight_ratio"]) == ("wan.bandwidth=50%", 0.02)
    assert outcome["kept"]["step_ns"] > told["best"]["step_ns"]
    assert run(["explore", asked[1], "--network", str(there), *asked[6:8], "--leave", "p2p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == told["others"][0]["best"]
    assert run(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "on there: " in shown
    assert "wan.bandwidth=50% (2% of the time): " in shown
    assert "at worst the same plan is best" in shown
    for more, why in ((["--fit", "x"], "what was measured"), (["--baseline", str(here)], "compared with itself")):
        assert run([*asked, *more]) == 2
        assert why in capsys.readouterr().err
