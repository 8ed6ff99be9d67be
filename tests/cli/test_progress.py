"""What takes long shows a bar on a terminal, with rate and time left, and it ends where all is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import pytest
from helpers.recorded import ROOT, SAMPLES, data
from helpers.thorough import spread

from tracetool.cli import run
from tracetool.cli.output import ProgressBar

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
SMALL = str(ROOT / "tests" / "data" / "zbv")
NETWORKS = ROOT / "schemas" / "networks"
H200 = ROOT / "tests" / "data" / "h200-overlap"
LAYERS = [str(H200 / "traces" / "nvlink" / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]
LINKED = ["--schedule", "1f1b,gpipe", "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
SWEPT = ["--schedule", "1f1b", "--dc", "0-1,2-3", "--bandwidth", "10..40Gbit/s*2", "--latency", "1ms", "--jobs", "1"]
PAPER = ["--model", "13b", "--efficiency", "55%", "--microbatches", "8", "--distances", "80km"]


@pytest.fixture
def bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], list[tuple[str, int, int]]]:
    """Runs a command on a terminal; gives of each bar what it counts, of how many, and how far it came."""
    shown: list[tuple[str, list[int]]] = []
    start, advance = ProgressBar.start, ProgressBar.advance

    def started(bar: ProgressBar, total: int) -> None:
        start(bar, total)
        shown.append((bar.of, [total, 0]))

    def advanced(bar: ProgressBar, count: int) -> None:
        advance(bar, count)
        shown[-1][1][1] += count

    def asked(words: list[str]) -> list[tuple[str, int, int]]:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        assert run(words) == 0
        return [(of, total, done) for of, (total, done) in shown]

    monkeypatch.setattr(ProgressBar, "start", started)
    monkeypatch.setattr(ProgressBar, "advance", advanced)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return asked


Bars = Callable[[list[str]], list[tuple[str, int, int]]]
"""What the fixture gives."""


def _check(of: str, shown: list[tuple[str, int, int]], err: str) -> None:
    """One bar of that at least is for several, every bar but of bytes ends where all is done, and time left is told."""
    total, done = next((total, done) for unit, total, done in shown if unit == of and total > 1)
    assert all(each == reached for unit, each, reached in shown if unit != "bytes")
    text = click.unstyle(err)
    if of == "bytes":
        assert done == pytest.approx(total, rel=0.01)
    else:
        assert of in text
        assert f"/{total} " in text
    assert "0:0" in text or "-:--:--" in text


# Each command counts something else: one whose bar does not end is found by its own case.
@spread(
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
        (["explain", SAMPLE, *LINKED[2:]], "replays"),
        (["overlap", *LAYERS], "layers"),
        (["overlap", *LAYERS, "--measured", str(H200 / "measured.json")], "rows"),
        (["ingest", SMALL, "-o", "x.run"], "bytes"),
    ],
    [
        (["replay", SAMPLE, *LINKED], "schedules"),
        (["sweep", SAMPLE, *SWEPT, "--no-knees"], "points"),
        (["ingest", SMALL, "-o", "x.run"], "bytes"),
    ],
    ids=lambda value: " ".join(word for word in value[:3] if "/" not in word) if isinstance(value, list) else value,
)
def test_a_bar_ends_where_all_is_done(
    words: list[str],
    of: str,
    bars: Bars,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    _check(of, bars(words), capsys.readouterr().err)


@pytest.mark.parametrize(("command", "of"), [("validate", "rows"), ("estimate", "plans")])
def test_a_bar_of_what_others_measured_ends_too(
    command: str, of: str, bars: Bars, capsys: pytest.CaptureFixture[str]
) -> None:
    plans, layers = (str(data("sailor-gh200", name)) for name in ("plans.json", "layers.json"))
    words = {
        "validate": [SAMPLE, str(data("h100-pp4", "measured.json"))],
        "estimate": ["--plans", plans, "--layers", layers, "--network", str(NETWORKS / "gh200.toml")],
    }
    _check(of, bars([command, *words[command]]), capsys.readouterr().err)


@pytest.mark.parametrize("quiet", [False, True])
def test_there_is_no_bar_off_a_terminal_nor_where_it_is_not_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, quiet: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: quiet)
    assert run(["replay", SAMPLE, *LINKED, *(["-q"] if quiet else [])]) == 0
    assert capsys.readouterr().err == ""
