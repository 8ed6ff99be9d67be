"""One screen: on a terminal of 80 columns no answer is longer than its 24 lines, and its first line answers."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT, SAMPLES, data, looked_at, run_of
from helpers.thorough import is_asked, some, spread

from tracetool.cli import run
from tracetool.errors import TraceToolError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

SAMPLE, ASCEND = str(SAMPLES / "h100-1f1b"), str(SAMPLES / "ascend-1f1b")
H200 = ROOT / "tests" / "data" / "h200-overlap"
LAYERS = [str(H200 / "traces" / "nvlink" / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]
OVER = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
FEW = ["--schedule", "1f1b,geopipe,zb-h1"]
SHAPES = [str(ROOT / "schemas" / "models" / "korthikanti.toml"), "--fit", "22B selective", "--network"]
NETWORKS = ROOT / "schemas" / "networks"
COMMANDS = {
    "replay": ["replay", SAMPLE, *FEW, *OVER, "--hbm", "14GiB"],
    "replay of ascend": ["replay", ASCEND, *FEW],
    "advise": ["advise", SAMPLE, *FEW, *OVER, "--hbm", "14GiB"],
    "advise of ascend": ["advise", ASCEND, *FEW, *OVER],
    "sweep": ["sweep", SAMPLE, *FEW, *OVER[:2], "--bandwidth", "10..100Gbit/s*2", "--latency", "10ms"],
    "explain": ["explain", SAMPLE],
    "explain over a link": ["explain", SAMPLE, "--schedule", "geopipe", *OVER],
    "explain of ascend": ["explain", ASCEND],
    "info": ["info", SAMPLE, *OVER[:2]],
    "info of ascend": ["info", ASCEND],
    "schedules": ["schedules"],
    "overlap": ["overlap", *LAYERS],
    "overlap over links": ["overlap", *LAYERS, "--bandwidth", "10GB/s,25GB/s,50GB/s,100GB/s,200GB/s,400GB/s"],
    "estimate": ["estimate", *SHAPES, str(NETWORKS / "a100.toml")],
    "overlap measured": ["overlap", *LAYERS, "--measured", str(H200 / "measured.json")],
}


ANSWERS = ("replay", "advise", "sweep", "explain", "info", "schedules", "overlap", "estimate")
"""One of each command."""
WIDTHS = [
    *((name, 80) for name in COMMANDS),
    *((name, width) for name in ("replay", "info", "overlap", "overlap over links") for width in (60, 120)),
]


# Other widths show the same answers: what is too long by a line that is broken at one of them only is found there.
@pytest.mark.usefixtures("coarse_knees")
@spread(("name", "columns"), WIDTHS, [(name, 80) for name in COMMANDS if name in ANSWERS])
def test_an_answer_is_one_screen(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines as a terminal counts them: the command to run next is not broken, and takes several."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(COMMANDS[name]) == 0
    lines = capsys.readouterr().out.replace(str(SAMPLES), "sample_traces").replace(f"{ROOT}/", "").splitlines()
    assert sum(max(1, -(-len(line) // columns)) for line in lines) <= 24
    assert max(len(line) for line in lines if "/" not in line) <= columns
    assert lines[0].strip(), "the answer comes first"


def test_ingest_and_compare_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert run(["ingest", str(ROOT / "tests" / "data" / "ckpt_reentrant"), "-o", "x.run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 12
    assert run(["replay", "x.run", "--schedule", "geopipe", "--json"]) == 0
    (tmp_path / "base.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(["compare", "base.json", "x.run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 24


def test_a_replay_that_misses_its_recording_by_far_gives_orders_and_no_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The recording of two ranks with two stages each is bound by its host: replay is off by a third."""
    recording = str(ROOT / "tests" / "data" / "interleaved2")
    assert run(["replay", recording, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert abs(told["fidelity"]["error_ratio"]) > 0.2
    assert run(["replay", recording]) == 0
    text = capsys.readouterr().out
    assert text.startswith("No step times: ")
    assert f"{told['results'][0]['step_ns'] / 1e6:.1f} ms" not in text
    assert "rank  0  0F0 0F1 2F0" in text
    assert "0→1 12 messages, 1→0 12 messages" in text


def test_everything_is_a_flag_away(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("replay", "explain", "info", "schedules", "overlap"):
        assert run(COMMANDS[name]) == 0
        short = capsys.readouterr().out
        assert run([*COMMANDS[name], "-v"]) == 0
        assert len(capsys.readouterr().out) > 1.5 * len(short)
        assert "-v" in short


OWN = sorted(path.name for path in (ROOT / "tests" / "data").iterdir() if any(path.glob("*.gz")))
SHARED = (
    *(f"h100-pp4/traces/{name}" for name in ("1f1b_m8_mem", "gpipe_m8", "rt1f1b_m8", "zbh1_m8", "interleaved_m8")),
    "h100-pp4/traces/tp2pp2_1f1b_m8", "megatron/1f1b_m8", "megatron/vpp2_overlap_m8",
    "ascend/Ascend+msinsight/test/st/level2", "cpu-gloo-pp4/ScheduleInterleaved1F1B",
    "cpu-gloo-pp4/ScheduleZBVZeroBubble",
)  # fmt: skip
JOBS = {"h100-1f1b", "ascend/Ascend+msinsight/test/st/level2"}
"""Of which is asked too what tries many orders: that takes long."""


def _folder(name: str) -> Path:
    places = {**{each: ROOT / "tests" / "data" / each for each in OWN}, **dict.fromkeys(SHARED)}
    if name not in places:
        return SAMPLES / name
    return places[name] or data(*name.split("/"))


def _asked(recording: str, ranks: int | None, scenarios: Path, *, is_job: bool) -> list[list[str]]:
    asked = [["info", recording]]
    if ranks is None or ranks < 2:
        return asked
    half = ranks // 2
    place = ["--dc", f"0-{half - 1},{half}-{ranks - 1}"]
    over, few = [*place, "--link", "dc0-dc1=25Gbit/s,10ms"], ["--schedule", "1f1b,geopipe"]
    asked += [["info", recording, *place], ["replay", recording], ["explain", recording], ["explain", recording, *over]]
    asked += [["replay", recording, *few, *over, "--hbm", "14GiB"]]
    swept = ["sweep", recording, *few, *place, "--bandwidth", "10..100Gbit/s*2", "--latency", "10ms"]
    offers = ["--or", "100Gbit/s,10ms=9000EUR/month"]
    if is_asked():
        # What tries many orders of the sample is on a screen above.
        asked += [["advise", recording, *few, *over, *offers], ["advise", recording, *few, *over, "--hbm", "14GiB"]]
        asked += [[*swept, "--no-knees", "--price-per-gbit", "120EUR"]]
    if is_job:
        scenarios.write_text(TWO.replace("PLACE", place[1]), encoding="utf-8")
        named = ["sweep", recording, *few, "--scenario", str(scenarios)]
        asked += [["replay", recording, "--equalize"], swept, named, [*named, "--price-per-gbit", "120EUR"]]
        asked += [[*swept, "--hbm", "14GiB,80GiB", "--price-per-gbit", "120EUR"]]
        asked += [["advise", recording, *few, *over, *offers, "--or", "400Gbit/s,2ms=9EUR/month", "--run-steps", "9"]]
        asked += [["advise", recording, *few, *over, "--co-tune", "--mbs", "1", "--seq", "2048"]]
    return asked


TWO = """scenario = [
    {name = "25 Gbit/s, 10 ms", dc = "PLACE", links = ["dc0-dc1=25Gbit/s,10ms"]},
    {name = "100 Gbit/s, 10 ms", dc = "PLACE", links = ["dc0-dc1=100Gbit/s,10ms"]},
    ]"""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_UNIT = re.compile(r"\s*(ns|us|ms|s|%|GiB|MiB|KiB|Gbit/s)( |$)")


@pytest.mark.usefixtures("coarse_knees")
# The other recordings have ranks, units, notes and lacks of their own in the same answers: what is too wide by one of
# those is seen there alone. This is memory alone; screens of pipelines are those above.
@spread("name", ["h100-1f1b", "ascend-1f1b", *OWN, *SHARED], ("snapshot",))
def test_every_recording_fits_the_screen(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """At 60, 80 and 120 columns, in a terminal with colours too: 24 lines, no wider, and no quantity is cut."""
    made = run_of(_folder(name))
    try:
        ranks = looked_at(made).pipeline.observed.shape.ranks
    except TraceToolError:
        ranks = None
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    recording = str(made.path)
    for asked in _asked(recording, ranks, tmp_path / "two.toml", is_job=name in JOBS):
        # What fits the narrowest can be too long by a line that is broken at another width only.
        for columns, coloured in some(product((60, 80, 120), (False, True)), 2):
            monkeypatch.setenv("COLUMNS", str(columns))
            with monkeypatch.context() as terminal:
                if coloured:
                    terminal.setattr("sys.stdout.isatty", lambda: True)
                code = run(asked)
            text = _STYLE.sub("", capsys.readouterr().out).replace(recording, "sample_traces/h100-1f1b")
            text = text.replace(f"{tmp_path}/", "")
            where = f"{asked} at {columns}: {text}"
            if code:
                assert (code, text) == (2, ""), where
                break
            lines = text.splitlines()
            assert lines[0].strip(), where
            assert sum(max(1, -(-len(line) // columns)) for line in lines) <= 24, where
            body = [line for line in lines if not line.startswith("Next: ") and "/" not in line]
            assert max(map(len, body)) <= columns, where
            for line, after in pairwise(lines):
                assert not (line[-1:].isdigit() and _UNIT.match(after)), where


# validate alone is not on a screen elsewhere: the others are by default (above).
@pytest.mark.thorough
# What fits the narrowest can be too long by a line that is broken at another width only.
@spread("columns", [60, 80, 120], 1)
def test_the_other_commands_fit_too(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """schedules, validate, ingest and compare, on the sample and on what was measured beside it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    assert run(["replay", SAMPLE, "--schedule", "geopipe", "--json"]) == 0
    (tmp_path / "base.json").write_text(capsys.readouterr().out, encoding="utf-8")
    measured = str(data("h100-pp4", "measured.json"))
    asked = (["schedules"], ["validate", SAMPLE, measured], ["ingest", SAMPLE, "-o", "x.run"])
    for words in (*asked, ["compare", "base.json", "x.run"]):
        assert run(words) == 0
        text = capsys.readouterr().out.replace(str(SAMPLES), "sample_traces")
        lines = [line for line in text.splitlines() if not line.startswith("Next: ")]
        assert sum(max(1, -(-len(line) // columns)) for line in lines) <= 24, text
        assert max(len(line) for line in lines if "/" not in line) <= columns, text
        assert lines[0].strip(), text


OTHER_DEVICE = "NVIDIA H100 80GB HBM3 against NVIDIA H200"


# That a step of another order is compared as a whole first is tried on reports by default (tests/comparison); here the
# recordings are read for it, three of them.
@pytest.mark.thorough
def test_what_the_step_does_comes_before_what_parts_of_it_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZB-H1 took 6 % less than 1F1B as measured, with forwards that took longer; 60 columns hold it."""
    monkeypatch.setenv("COLUMNS", "60")
    one, other, elsewhere = (
        str(run_of(data(*name.split("/"))).path)
        for name in ("h100-pp4/traces/1f1b_m8_mem", "h100-pp4/traces/zbh1_m8", "megatron/1f1b_m8")
    )
    assert run(["compare", one, other]) == 0, "another order: its step is to be shorter, not each of its actions"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step_ns ")
    assert max(len(line) for line in lines if not line.startswith("Next: ")) <= 60
    run(["compare", one, elsewhere])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(
        f"the sides did other work: {OTHER_DEVICE}; 4 against 2 stages (and 1 difference more); step_ns"
    )
    assert text.count("the sides did other work") == 2, "in short, and all of it below"


def test_lists_are_whole_where_nothing_says_how_wide_the_other_end_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["schedules"]) == 0
    assert "…" not in capsys.readouterr().out
