"""Whatever is asked otherwise is told from a change of the tool: each member of a what-if, and what goes beside it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from helpers.comparing import as_json, report, sample
from helpers.recorded import h100, rebuilt
from helpers.thorough import spread

from tracetool.baselines import add_report, read_history
from tracetool.cli import run
from tracetool.cli.question import borrow_memory, borrow_slowdown
from tracetool.comparison.report import ChoiceInfo, TakenInfo
from tracetool.explanation import explain
from tracetool.model.scenario import Choice, Scenario, Taken
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.network.seating import Seating
from tracetool.network.tiers import Network, Tier
from tracetool.reports import RunFacts
from tracetool.reports.answer.json import scenario_info
from tracetool.reports.explanation.json import explanation_info

if TYPE_CHECKING:
    import pytest

LINKS = (Link("dc0", "dc1", 3_125_000_000, 10_000_000), Link("dc1", "dc0", 3_125_000_000, 10_000_000))
PLACED = Scenario(topology=Topology(("dc0", "dc0", "dc1", "dc1"), LINKS))
OTHERWISE: dict[str, Any] = {
    "hbm_bytes": 80 << 30, "p2p": "per-edge", "microbatches": 16, "activation_bytes": 1 << 30, "static_bytes": 1 << 30,
    "overlap_ratio": 0.5, "interference": False, "pipelines": 2, "link_sharing": "spatial",
}  # fmt: skip
SEATED = Seating(Network("a node", (Tier("hb", 4, 450 * 10**9),)), ((0, 1, 2, 3),))
ELSEWHERE: dict[str, Any] = {
    "dcs": ("dc0", "dc1", "dc1", "dc1"), "links": (LINKS[0], replace(LINKS[1], latency_ns=1)),
    "rank_dcs": ((0, "dc0"), (1, "dc1")), "partial": True, "pipelines": 2,
    "seating": SEATED,
}  # fmt: skip
SEATED_OTHERWISE: dict[str, Seating] = {
    "network": replace(SEATED, network=Network("a node", (Tier("hb", 4, 400 * 10**9),))),
    "pipelines": replace(SEATED, pipelines=(*SEATED.pipelines, (4, 5, 6, 7))),
    "rank_devices": replace(SEATED, rank_devices=((0, 0), (1, 1))),
    "algorithms": replace(SEATED, algorithms=((frozenset({0, 1}), "ring"),)),
}
NOT_ASKED = {"free"}
"""What only comparisons with a result are replayed with: nobody asks for it."""
SOMEWHERE: dict[str, Any] = {"src_dc": "dc2", "dst_dc": "dc2", "bandwidth_bytes_per_s": 1, "latency_ns": 1}


def changed_scenarios() -> dict[str, Scenario]:
    """One per member of a what-if, its topology and a link; a member without a value here is an error."""
    found = {f.name: replace(PLACED, **{f.name: OTHERWISE[f.name]}) for f in fields(Scenario) if f.name != "topology"}
    for f in (f for f in fields(Topology) if f.name not in NOT_ASKED):
        found[f"topology.{f.name}"] = replace(PLACED, topology=replace(PLACED.topology, **{f.name: ELSEWHERE[f.name]}))
    for f in fields(Link):
        links = (replace(LINKS[0], **{f.name: SOMEWHERE[f.name]}), LINKS[1])
        found[f"link.{f.name}"] = replace(PLACED, topology=replace(PLACED.topology, links=links))
    return found


def test_the_schema_has_the_members_of_a_what_if_and_no_others() -> None:
    members = {f.name for kind in (Scenario, Topology) for f in fields(kind)} - {"topology", "seating"} - NOT_ASKED
    members |= {"network"}  # where ranks are seated on one
    assert set(msgspec.structs.asdict(scenario_info(PLACED))) == members


def with_scenario(path: Path, scenario: Scenario, **changes: Any) -> Path:
    """A report as of another what-if, with other microbatches in its results where the what-if has them."""
    made = json.loads(report(path, digest="traces").read_text(encoding="utf-8")) | changes
    made["scenario"] = msgspec.to_builtins(scenario_info(scenario))
    if scenario.microbatches is not None:
        for result in (made["baseline"], *made["results"]):
            result["microbatches"] = scenario.microbatches
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


# That no member lacks a value here is tried by default (above); members are walked through by one function.
@spread("name", sorted(changed_scenarios()), 2)
def test_each_member_of_a_what_if_is_seen(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    base = with_scenario(tmp_path / "base.json", PLACED)
    other = with_scenario(tmp_path / "other.json", changed_scenarios()[name])
    assert_other_what_ifs(capsys, tmp_path, base, other)


@spread("name", [f.name for f in fields(Seating)], 1)
def test_each_member_of_a_place_on_a_network_is_seen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    one, other = (
        with_scenario(tmp_path / f"{n}.json", replace(PLACED, topology=replace(PLACED.topology, seating=seating)))
        for n, seating in enumerate((SEATED, SEATED_OTHERWISE[name]))
    )
    assert_other_what_ifs(capsys, tmp_path, one, other)


def assert_other_what_ifs(capsys: pytest.CaptureFixture[str], tmp_path: Path, base: Path, other: Path) -> None:
    """They are not compared with each other, and stand apart in a history."""
    for sides in ((base, other), (other, base)):
        found = as_json(capsys, 1, *sides)
        (failure,) = found["failures"]
        assert failure.startswith("the sides replayed different scenarios (")
        assert not any(line["name"].endswith("/gpipe") for line in found["lines"])
    for label, path in (("one", base), ("two", other)):
        add_report(tmp_path / "h.parquet", path, label=label)
    what_ifs = {value.scenario for value in read_history(tmp_path / "h.parquet") if value.schedule == "gpipe"}
    assert len(what_ifs) == 2


@spread("name", [f.name for f in fields(Taken)], 2)
def test_what_was_taken_from_elsewhere_is_seen(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """Of two other recordings, and of one and none."""
    others: dict[str, list[Any]] = {"copied_ranks": [{2: 0}, {2: 1}], "copied_spread_ratio": [0.01, 0.02]}
    values = others.get(name, ["one", "two"])
    taken = [msgspec.to_builtins(TakenInfo(**{name: value}), str_keys=True) for value in values]
    one, two = (with_scenario(tmp_path / f"{n}.json", PLACED, taken=taken[n]) for n in range(2))
    none = with_scenario(tmp_path / "none.json", PLACED)
    for other, told in ((two, name), (none, name if name in others else f"{name}, taken")):
        assert as_json(capsys, 1, one, other)["failures"] == [f"the sides replayed different scenarios ({told})"]


@spread(
    ("name", "value"), [("extra_forwards", [1, 1, 0, 0]), ("chunks", 3), ("time_limit_s", 2.0), ("order", "f00")], 2
)
def test_what_was_asked_of_one_schedule_is_seen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, value: object
) -> None:
    """It alone is not compared; its own figures are no drift, and those of others still are."""
    assert {f.name for f in fields(Choice)} == set(msgspec.structs.asdict(ChoiceInfo()))
    base = with_scenario(tmp_path / "base.json", PLACED)
    made = json.loads(base.read_text(encoding="utf-8"))
    made["results"].append(made["results"][0] | {"schedule": "geopipe"})
    base.write_text(json.dumps(made), encoding="utf-8")
    made["results"][1]["choice"] = made["results"][1]["choice"] | {name: value}
    made["results"][1]["step_ns"] += 1000
    other = tmp_path / "other.json"
    other.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 1, base, other)
    assert found["failures"] == [f"geopipe was asked for otherwise ({name}): it is not compared"]
    verdicts = {line["name"]: line["verdict"] for line in found["lines"]}
    assert "step_ns/geopipe" not in verdicts
    assert verdicts["step_ns/gpipe"] == "unchanged"


@cache
def said_by_replay(*options: str) -> dict[str, Any]:
    from click.testing import CliRunner

    from tracetool.cli import cli

    arguments = ["replay", str(sample()), *options, "--json"]
    result = CliRunner().invoke(cli, arguments, obj=arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


PLACE = ("--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms")


@spread(
    ("options", "seen"),
    [
        (("--microbatches", "16"), "scenarios (microbatches)"),
        (("--no-interference",), "scenarios (interference)"),
        (("--p2p", "per-edge"), "scenarios (p2p)"),
        (("--pipelines-on-link", "2"), "scenarios (pipelines)"),
        (("--extra-forwards", "1,1,0,0"), "geopipe was asked for otherwise (extra_forwards)"),
    ],
    2,
)
def test_options_of_replay_are_no_drift(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], seen: str
) -> None:
    base, other = tmp_path / "base.json", tmp_path / "other.json"
    base.write_text(json.dumps(said_by_replay("--schedule", "geopipe", *PLACE)), encoding="utf-8")
    other.write_text(json.dumps(said_by_replay("--schedule", "geopipe", *PLACE, *options)), encoding="utf-8")
    found = as_json(capsys, 1, base, other)
    assert any(seen in failure for failure in found["failures"])
    assert not any("same traces, other results" in failure for failure in found["failures"])
    assert all(line["verdict"] == "unchanged" for line in found["lines"])


def test_as_many_microbatches_as_recorded_are_the_same_question(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base, other = tmp_path / "base.json", tmp_path / "other.json"
    base.write_text(json.dumps(said_by_replay("--schedule", "gpipe")), encoding="utf-8")
    other.write_text(json.dumps(said_by_replay("--schedule", "gpipe", "--microbatches", "8")), encoding="utf-8")
    assert as_json(capsys, 0, base, other)["passed"]


def test_a_report_of_before_tells_its_microbatches_by_its_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    older, newer = tmp_path / "older.json", tmp_path / "newer.json"
    made = said_by_replay("--schedule", "gpipe", "--microbatches", "16")
    first = ("microbatches", "rank_dcs", "partial")
    without = made | {"scenario": {k: v for k, v in made["scenario"].items() if k not in first}}
    older.write_text(json.dumps({k: v for k, v in without.items() if k != "taken"}), encoding="utf-8")
    newer.write_text(json.dumps(said_by_replay("--schedule", "gpipe")), encoding="utf-8")
    failures = as_json(capsys, 1, older, newer)["failures"]
    assert failures == ["the sides replayed different scenarios (microbatches)"]
    newer.write_text(json.dumps(made), encoding="utf-8")
    assert as_json(capsys, 0, older, newer)["passed"]
    for label, path in (("one", older), ("two", newer)):
        add_report(tmp_path / "h.parquet", path, label=label)
    assert len({v.scenario for v in read_history(tmp_path / "h.parquet") if v.schedule == "gpipe"}) == 1


def test_orders_of_two_files_of_one_name_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = []
    for name in ("1f1b", "gpipe"):
        (tmp_path / name).mkdir()
        assert run(["schedules", name, "--stages", "4", "--microbatches", "8", "--csv"]) == 0
        (tmp_path / name / "own.csv").write_text(capsys.readouterr().out, encoding="utf-8")
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(said_by_replay("--schedule", f"csv:{tmp_path / name / 'own.csv'}")))
    failures = as_json(capsys, 1, *paths)["failures"]
    assert failures == ["csv:own.csv was asked for otherwise (order): it is not compared"]


def test_other_draws_are_no_drift(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("1", "2", "as if of 1")]
    for seed, path in zip("122", paths, strict=True):
        path.write_text(json.dumps(said_by_replay("--schedule", "gpipe", "--jitter", seed)), encoding="utf-8")
    assert as_json(capsys, 0, *paths[:2])["passed"]
    made = json.loads(paths[2].read_text(encoding="utf-8"))
    made["results"][0]["jitter"] |= {"seed": 1}
    paths[2].write_text(json.dumps(made), encoding="utf-8")
    assert as_json(capsys, 1, paths[0], paths[2])["figures"] == [
        "results[gpipe].jitter[1].p50_ns", "results[gpipe].jitter[1].p95_ns",
    ]  # fmt: skip


def test_borrowed_figures_name_the_recording_they_are_of() -> None:
    own, other = rebuilt("1f1b_m8"), h100("1f1b_m8_mem")
    assert own.taken == Taken()
    lent = borrow_memory(borrow_slowdown(own, h100("rt1f1b_m8"), Path("a")), other, Path("b"))
    assert lent.taken == Taken(h100("rt1f1b_m8").manifest["digest"], other.manifest["digest"])
    why = explain(lent, "gpipe", replace(PLACED, interference=False))
    told = explanation_info(why, RunFacts("x", "", "", ""))
    assert told.taken == TakenInfo(
        costs_from=lent.taken.costs_from, memory_from=lent.taken.memory_from, copied_ranks={}
    )
    assert told.scenario.interference is False
