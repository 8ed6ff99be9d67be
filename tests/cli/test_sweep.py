"""``tracetool sweep`` as a user runs it, on the sample that comes with the tool."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import jsonschema
import polars as pl
import pytest
from helpers.recorded import ROOT, SAMPLES

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("coarse_knees")

SAMPLE = str(SAMPLES / "h100-1f1b")
TWO = ["--schedule", "1f1b,geopipe"]
LINKS = ["--dc", "0-1,2-3", "--bandwidth", "10..800Gbit/s*1", "--latency", "2ms,10ms"]


def _sweep(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["sweep", SAMPLE, *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "sweep.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    return report


def test_json_conforms_and_agrees_with_replay(capsys: pytest.CaptureFixture[str]) -> None:
    """The point at 25 Gbit/s and 10 ms is what ``replay`` says, and files hold what JSON does."""
    over = ["--bandwidth", "25Gbit/s", "--latency", "10ms", "--hbm", "13GiB,80GiB"]
    report = _sweep(capsys, "--dc", "0-1,2-3", *TWO, *over)
    link = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--hbm", "80GiB"]
    assert run(["replay", SAMPLE, "--schedule", "1f1b,geopipe", *link, "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)["results"]
    swept = [point for point in report["points"] if point["hbm_bytes"] == 80 << 30]
    for key in ("schedule", "extra_forwards", "p2p", "step_ns", "window_ns", "bubble_ratio", "feasible"):
        assert [point[key] for point in swept] == [result[key] for result in replayed]
    assert [p["peak_bytes"] for p in swept] == [max(result["peak_hbm_bytes"]) for result in replayed]
    assert {knee["hbm_bytes"] for knee in report["knees"]} == {13 << 30, 80 << 30}


def test_files_hold_all_points(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [tmp_path / f"x{suffix}" for suffix in (".parquet", ".csv", ".json")]
    outputs = [word for path in files for word in ("-o", str(path))]
    report = _sweep(capsys, *LINKS, *TWO, "--price-per-gbit", "120EUR", "--no-knees", *outputs)
    assert report["knees"] == []
    parquet, csv = pl.read_parquet(files[0]), pl.read_csv(files[1])
    assert parquet.height == csv.height == len(report["points"]) == 2 * 2 * 7
    for key in ("step_ns", "bandwidth_bytes_per_s", "latency_ns", "link_cost", "is_pareto"):
        assert parquet[key].to_list() == csv[key].to_list() == [point[key] for point in report["points"]]
    assert parquet["extra_forwards"].to_list() == [point["extra_forwards"] for point in report["points"]]
    assert json.loads(files[2].read_text(encoding="utf-8")) == report
    again = tmp_path / "again.parquet"
    assert run(["sweep", SAMPLE, *LINKS, *TWO, "--price-per-gbit", "120EUR", "--no-knees", "-q", "-o", str(again)]) == 0
    assert again.read_bytes() == files[0].read_bytes()
    assert run(["sweep", SAMPLE, *LINKS, "-o", str(again)]) == 2
    assert "--force" in capsys.readouterr().err


def test_text_fits_80_columns_and_says_what_matters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["--schedule", "gpipe,geopipe", "--hbm", "13GiB,80GiB"]
    asked = ["sweep", SAMPLE, *LINKS, *asked, "--price-per-gbit", "1USD/month"]
    matters = ("no point beats", "over the HBM limit", "56 points", "USD")
    for words, told in ((asked, matters), ([*asked, "-v"], (*matters, "best schedule", "more stops paying at"))):
        assert run(words) == 0
        text = capsys.readouterr().out
        lines = [line for line in text.splitlines()[1:] if not line.startswith("Next:")]
        assert max(map(len, lines)) <= 80
        for said in told:
            assert said in text
        assert " more: -o sweep.parquet has all" in text
        assert text.splitlines()[-1].startswith("Next: tracetool sweep")
    assert "scenarios more: -o sweep.parquet" in text


def test_the_next_command_replays_the_best_point(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three DCs, one link of them as given, without interference."""
    asked = ["--dc", "0,1-2,3", "--bandwidth", "17Gbit/s,99Gbit/s", "--latency", "3ms", "--schedule", "geopipe"]
    asked += ["--link", "dc1-dc2=40Gbit/s,1ms", "--no-interference", "--no-knees", "--hbm", "20GiB"]
    best = min(point["step_ns"] for point in _sweep(capsys, *asked)["points"])
    assert run(["sweep", SAMPLE, *asked, "-o", str(tmp_path / "x.csv")]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(line.removeprefix("Next: tracetool "))
    assert words[0] == "replay"
    assert run([*words[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["step_ns"] == best


def test_scenarios_have_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "wan.toml"
    metro, wan = ("bandwidth = '400Gbit/s'\ndistance = '80km'", "links = ['dc0-dc1=25Gbit/s,10ms']")
    path.write_text(f"[[scenario]]\nname = 'metro'\n{metro}\n[[scenario]]\nname = 'wan'\n{wan}\n", encoding="utf-8")
    report = _sweep(
        capsys, "--scenario", str(path), "--dc", "0-1,2-3", "--extra-forwards", "0;2,2,0,0", "--schedule", "geopipe"
    )
    points = [(p["scenario"], p["extra_forwards"], p["latency_ns"]) for p in report["points"]]
    assert points == [
        ("metro", [0, 0, 0, 0], 400_000), ("metro", [2, 2, 0, 0], 400_000),
        ("wan", [0, 0, 0, 0], 10_000_000), ("wan", [2, 2, 0, 0], 10_000_000),
    ]  # fmt: skip
    assert {knee["scenario"] for knee in report["knees"]} == {"metro"}


def test_what_has_no_axis_is_drawn_as_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One scenario: neither figure of a link varies."""
    target = tmp_path / "x.svg"
    assert run(["sweep", SAMPLE, "--schedule", "1f1b,gpipe", "-o", str(target)]) == 0
    capsys.readouterr()
    drawn = target.read_text(encoding="utf-8")
    assert "Step of each schedule" in drawn
    assert drawn.index(">1f1b<") < drawn.index(">gpipe<")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bandwidth", "10Gbit/s", "--dc", "0-1,2-3"], "no latency"),
        (["--latency", "1ms", "--distance", "1km"], "same thing"),
        (["--dc", "0-1,2-3"], "no link dc0-dc1"),
        (["--dc", "0-1", "--bandwidth", "1Gbit/s", "--latency", "1ms"], "0-1"),
        (["--schedule", "gepipe"], "geopipe"),
        (["--schedule", "1f1b", "--extra-forwards", "2"], "add geopipe"),
        (["--p2p", "groupd"], "grouped"),
        (["-o", "x.txt"], ".parquet"),
        (["-o", "x.png.zip"], ".png"),
        (["--scenario", "/nowhere.toml"], "/nowhere.toml"),
        (["--executor", "slurm://x"], "dask://"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", SAMPLE, *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert "Unexpected" not in told


def test_repeated_maps_are_taken_once_and_links_given_one_by_one_have_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """800 km at 5 us each are 4 ms one way."""
    report = _sweep(capsys, *TWO, "--dc", "0-1,2-3", "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,800km")
    figures = [(p["schedule"], p["bandwidth_bytes_per_s"], p["latency_ns"]) for p in report["points"]]
    assert figures == [("1f1b", 3_125_000_000, 4_000_000), ("geopipe", 3_125_000_000, 4_000_000)]
    assert "--dc gives 1 map of ranks more than once: each was taken once" in report["notes"]


def test_scenarios_of_links_that_differ_say_so_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "wan.toml"
    path.write_text(
        "[[scenario]]\nname = 'metro-ring-of-frankfurt'\ndc = '0-1,2-3'\nbandwidth = '50Gbit/s'\nlatency = '1ms'\n"
        "[[scenario]]\nname = 'three-sites-of-the-continent'\ndc = '0,1-2,3'\nmicrobatches = 16\n"
        "links = ['dc0-dc1=100Gbit/s,80km', 'dc1-dc2=100Gbit/s,10ms']\n",
        encoding="utf-8",
    )
    asked = [
        "--schedule",
        "1f1b,gpipe",
        "--scenario",
        str(path),
        "--price-per-gbit",
        "120EUR",
        "--p2p",
        "in-order,per-edge",
    ]
    assert run(["sweep", SAMPLE, *asked, "-v"]) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines()[1:] if not line.startswith("Next:")]
    assert max(map(len, lines)) <= 80
    assert "schedules tried: 1f1b, gpipe" in text
    assert "latency, one way: 1 ms; scenarios whose links differ: see notes" in text
    assert "  bandwidth of links: 50, 100 Gbit/s" in text.splitlines()
    assert "note: scenario three-sites-of-the-continent: dc0→dc1 100 Gbit/s" in text
    # Rows of the knees are told apart by how transfers are issued.
    knees = text[text.index("more stops paying at") : text.index("knee: above it")].splitlines()[2:]
    assert [" ".join(line.split()[:2]) for line in knees if line.strip()] == [
        "1f1b in-order", "gpipe in-order", "1f1b per-edge", "gpipe per-edge",
    ]  # fmt: skip


# The narrower tables of the other sweeps stay within them by default.
@pytest.mark.thorough
def test_a_wide_table_stays_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["--dc", "0-1,2-3", "--dc", "0+2,1+3", "--bandwidth", "10Gbit/s,25Gbit/s", "--latency", "1ms,10ms"]
    asked += ["--microbatches", "8,16", "--hbm", "14GiB,20GiB", "--p2p", "in-order,per-edge", "--no-knees"]
    # Depths are given: to choose them for each of 64 scenarios takes ten seconds, and is no wider.
    asked += ["--extra-forwards", "2,2,0,0"]
    assert run(["sweep", SAMPLE, *asked, "--price-per-gbit", "120EUR", "-v"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if not line.startswith("Next:")]
    assert max(map(len, lines)) <= 80
    assert any("best schedule" in line and "link" in line for line in lines)


def test_many_figures_of_a_tier_are_summed_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nine bandwidths: how often each schedule is best, and from which on no other is faster beyond the error.

    Steps, schedules and errors are those of the JSON, where the same is worked out from the points.
    """
    network = tmp_path / "n.toml"
    network.write_text(
        'placement = "tp in hb, pp across dc"\n[[tier]]\nname = "hb"\nsize = 2\nbandwidth = "450GB/s"\n'
        '[[tier]]\nname = "dc"\nsize = 4\nshared_by = "pair"\nbandwidth = "25Gbit/s"\nlatency = "10ms"\n'
    )
    words = [SAMPLE, "--network", str(network), "--schedule", "1f1b,geopipe", "--tier", "dc.bandwidth=25..100Gbit/s"]
    assert run(["sweep", *words, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    names = list(dict.fromkeys(point["scenario"] for point in points))
    assert len(names) > 6
    best = [min((p for p in points if p["scenario"] == name), key=lambda p: p["step_ns"]) for name in names]
    assert run(["sweep", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Best of {len(names)} scenarios: ")
    named = next(name for name in names if f"{name} is the first that none beats by more than" in shown)
    chosen, fastest = best[names.index(named)], min(best, key=lambda p: p["step_ns"])
    error = float(shown.split("difference (±")[1].split("%")[0]) / 100
    assert chosen["step_ns"] <= fastest["step_ns"] / (1 - error - 0.005)
    for slower in best[: names.index(named)]:
        assert slower["step_ns"] > fastest["step_ns"] * (1 + error - 0.01)
