"""What takes long shows a bar on a terminal, with rate and time left, and it ends where all is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from helpers.recorded import SAMPLES

from tracetool.cli import run
from tracetool.cli.output import ProgressBar

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
LINKED = ["--schedule", "1f1b,gpipe", "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
SWEPT = ["--schedule", "1f1b", "--dc", "0-1,2-3", "--bandwidth", "10..40Gbit/s*2", "--latency", "1ms", "--jobs", "1"]
PAPER = ["--model", "13b", "--efficiency", "55%", "--microbatches", "8", "--distances", "80km"]


@pytest.mark.parametrize(
    ("words", "of"),
    [
        (["replay", SAMPLE, *LINKED], "schedules"),
        (["replay", SAMPLE, "--equalize"], "steps"),
        (["advise", SAMPLE, *LINKED, "--or", "100Gbit/s,10ms"], "scenarios"),
        (["advise", SAMPLE, "--schedule", "geopipe", *LINKED[2:], "--co-tune", "--mbs", "1", "--seq", "2048"], "sizes"),
        (["report", SAMPLE, *LINKED, "-o", "x.html"], "scenarios"),
        (["sweep", SAMPLE, *SWEPT, "--no-knees"], "points"),
        (["paper", "geopipe", *PAPER], "settings"),
        (["ingest", SAMPLE, "-o", "x.run"], "bytes"),
    ],
    ids=lambda value: " ".join(word for word in value[:3] if "/" not in word) if isinstance(value, list) else value,
)
def test_a_bar_ends_where_all_is_done(
    words: list[str], of: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    bars: list[list[int]] = []
    units: list[str] = []

    start, advance = ProgressBar.start, ProgressBar.advance

    def started(bar: ProgressBar, total: int) -> None:
        start(bar, total)
        bars.append([total, 0])
        units.append(bar.of)

    def advanced(bar: ProgressBar, count: int) -> None:
        advance(bar, count)
        bars[-1][1] += count

    monkeypatch.setattr(ProgressBar, "start", started)
    monkeypatch.setattr(ProgressBar, "advance", advanced)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(words) == 0
    shown = click.unstyle(capsys.readouterr().err)
    total, done = bars[units.index(of)]
    assert all(each[0] == each[1] for each, unit in zip(bars, units, strict=True) if unit != "bytes")
    assert total > 1
    if of == "bytes":
        assert done == pytest.approx(total, rel=0.01)
    else:
        assert of in shown
        assert f"/{total} " in shown
    assert "0:0" in shown or "-:--:--" in shown


@pytest.mark.parametrize("quiet", [False, True])
def test_there_is_no_bar_off_a_terminal_nor_where_it_is_not_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, quiet: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: quiet)
    assert run(["replay", SAMPLE, *LINKED, *(["-q"] if quiet else [])]) == 0
    assert capsys.readouterr().err == ""
