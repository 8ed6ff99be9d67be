"""One screen: on a terminal of 80 columns no answer is longer than its 24 lines, and its first line answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT, SAMPLES

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE, ASCEND = str(SAMPLES / "h100-1f1b"), str(SAMPLES / "ascend-1f1b")
OVER = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
FEW = ["--schedule", "1f1b,geopipe,zb-h1"]
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
}


WIDTHS = [*((name, 80) for name in COMMANDS), *((name, width) for name in ("replay", "info") for width in (60, 120))]


@pytest.mark.parametrize(("name", "columns"), WIDTHS)
def test_an_answer_is_one_screen(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines as a terminal counts them: the command to run next is not broken, and takes several."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(COMMANDS[name]) == 0
    lines = capsys.readouterr().out.replace(str(SAMPLES), "sample_traces").splitlines()
    assert sum(max(1, -(-len(line) // columns)) for line in lines) <= 24
    assert lines[0].strip(), "the answer comes first"


def test_ingest_and_compare_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert run(["ingest", SAMPLE, "-o", "x.run"]) == 0
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
    for name in ("replay", "explain", "info", "schedules"):
        assert run(COMMANDS[name]) == 0
        short = capsys.readouterr().out
        assert run([*COMMANDS[name], "-v"]) == 0
        assert len(capsys.readouterr().out) > 1.5 * len(short)
        assert "-v" in short
