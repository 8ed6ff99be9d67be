"""Every ``Next:`` that a command prints is run as it stands, in the folder it was printed in, and works."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from helpers.comparing import QUIET_STEPS, report
from helpers.made_job import MadeJob
from helpers.recorded import ROOT, SAMPLES, data, made
from helpers.thorough import is_asked, spread

from tracetool.cli import cli, run
from tracetool.cli.set_options import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("coarse_knees", "undrawn")

H100, ASCEND, LABELLED = (str(SAMPLES / name) for name in ("h100-1f1b", "ascend-1f1b", "h100-1f1b-annotated"))
FILES = [str(path) for path in sorted((SAMPLES / "h100-1f1b").glob("rank*"))]
DC, LINK = ["--dc", "0-1,2-3"], ["--link", "dc0-dc1=25Gbit/s,10ms"]
SWEPT = ["sweep", H100, "--schedule", "1f1b,geopipe", *DC, "--no-knees", "--jobs", "1"]
NETWORK = """\
[[tier]]
name = "node"
size = 2
bandwidth = "450GB/s"
latency = "1us"

[[tier]]
name = "wan"
size = 4
bandwidth = "25Gbit/s"
latency = "10ms"
"""
SMALL = """
model = {name = "small", layers = 8, hidden = 1024, heads = 16, vocabulary = 32000, fused_attention = true}
training = {sequence = 2048, microbatches = 4, pipeline = 2, data = 2}
device = {name = "A100", peak_tflops = 312, hbm = "80GB", efficiency = "70%"}
"""
MODEL, A100 = (str(ROOT / "schemas" / name) for name in ("models/korthikanti.toml", "networks/a100.toml"))
H200 = ROOT / "tests" / "data" / "h200-overlap" / "traces" / "nvlink"
LAYERS = [str(H200 / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]
PAPER = ["paper", "geopipe", "--model", "13b", "--efficiency", "55%", "--microbatches", "16", "--distances", "80km"]
EXPLORED = ["explore", H100, "--network", "n.toml", "--try", "schedule=1f1b,geopipe", "--time-limit", "60s"]
COMMANDS = [
    ["info", H100], ["info", H100, *DC], ["info", ASCEND], ["info", *FILES[:1]],
    ["ingest", H100, "-o", "x.run"],
    ["replay", H100], ["replay", H100, "--schedule", "1f1b,gpipe", *DC, *LINK, "-v"],
    ["replay", *FILES, "--schedule", "gpipe", "-o", "gantt.png"],
    ["replay", H100, "--schedule", "gpipe", "-o", "gantt.png"],
    ["replay", H100, "--schedule", "gpipe", "--run", "what-if.run"], ["replay", H100, "--equalize"],
    ["replay", H100, "--equalize", "--step", "1"],
    ["report", H100, "--schedule", "1f1b"], ["report", H100, "--schedule", "1f1b", *DC, *LINK, "-o", "own.html"],
    ["advise", H100, "--schedule", "1f1b,geopipe", *DC, *LINK, "--or", "100Gbit/s,10ms", "-v"],
    ["advise", *FILES, "--schedule", "1f1b", *DC, "--link", "dc0-dc1=25Gbit/s,10ms=9EUR/month"],
    ["advise", H100, "--schedule", "1f1b,zb-h1", *DC, *LINK, "--p2p", "per-edge", "--hbm", "1GiB"],
    [*SWEPT, "--bandwidth", "25Gbit/s,100Gbit/s", "--latency", "2ms"],
    [*SWEPT, "--bandwidth", "2.5GB/s", "--distance", "80km", "--hbm", "64GB,80GiB", "-o", "k.csv"],
    [*SWEPT, "--bandwidth", "10..40Gbit/s*3", "--latency", "1ms", "--p2p", "per-edge", "-o", "k.png", "-o", "k.json"],
    [*SWEPT, "--bandwidth", "25Gbit/s", "--latency", "2ms", "--hbm", "1MiB", "-o", "k.csv"],
    ["sweep", H100, "--schedule", "1f1b", "--network", "n.toml", "--no-knees", "--jobs", "1", "-o", "k.csv"],
    ["advise", H100, "--schedule", "1f1b", "--network", "n.toml"],
    ["estimate", MODEL, "--fit", "22B selective", "--network", A100],
    ["network", H100, "--network", "n.toml"], ["network", H100, "--network", "n.toml", "-o", "traffic.png"],
    ["network", "m.toml", "--network", "n.toml"],
    ["explore", "m.toml", "--network", "n.toml", "--leave", "tp,microbatch,recompute,p2p", "--try", "schedule=1f1b"],
    EXPLORED,
    ["network", "--devices", "1024", "--hb-domain", "8", "--compare", "clos3,rail-only"],
    ["overlap", *LAYERS, "--overlap", "slice:2"],
    ["explain", H100], ["explain", *FILES, "--schedule", "gpipe", "-v"], ["explain", ASCEND, "-v"],
    ["sql", H100], ["sql", H100, "bubbles"], ["sql", f"{H100},{LABELLED}"],
    ["compare", "base.json", "base.json"], ["compare", "base.json", "slower.json", "--fail-on", "step_ns>+2%"],
    ["compare", H100, LABELLED, "--informational"],
    ["baseline", "add", "base.json", "--label", "v1"], ["baseline", "list"], ["baseline", "show"],
    PAPER, [*PAPER, "--equal-stages", "-o", "points.csv"],
    ["schedules"], ["schedules", "-v"], ["schedules", "geopipe", "--stages", "4", "--extra-forwards", "2,2,0,0"],
    ["config"], ["help"], ["completion", "fish"],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with reports and a history; what would open a browser does nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", "true")
    (tmp_path / "n.toml").write_text(NETWORK, encoding="utf-8")
    (tmp_path / "m.toml").write_text(SMALL, encoding="utf-8")
    report(tmp_path / "base.json")
    report(tmp_path / "slower.json", tuple(f * 1.05 for f in QUIET_STEPS))


def _next_of(capsys: pytest.CaptureFixture[str], words: list[str], codes: tuple[int, ...] = (0,)) -> Iterator[str]:
    assert run(words) in codes, capsys.readouterr().err
    out = capsys.readouterr().out
    yield from (line.removeprefix("Next: ") for line in out.splitlines() if line.startswith("Next: "))


def _run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "tracetool":
        assert run(words[1:]) == 0, (command, capsys.readouterr().err)
    else:
        assert subprocess.run(words, check=False, capture_output=True).returncode == 0, command
    capsys.readouterr()


FIRST = [words for n, words in enumerate(COMMANDS) if words[:1] not in [before[:1] for before in COMMANDS[:n]]]
LONG = ("report", "ingest", "paper", "overlap", "estimate", "advise")
OF_BASELINES = [words for words in COMMANDS if words[0] == "baseline"]


# Of each command the first, but for what takes seconds; the other forms of it have a Next of their own, which only
# running it tells to be wrong.
@spread(
    "words",
    COMMANDS,
    [*(words for words in FIRST if words[0] not in LONG), *OF_BASELINES],
    ids=lambda words: "-".join(w for w in words if "/" not in w)[:60],
)
def test_the_next_command_runs_as_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[:2] in (["baseline", "list"], ["baseline", "show"]):
        assert run(["baseline", "add", "base.json", "--label", "v0", "-q"]) == 0
        capsys.readouterr()
    found = list(_next_of(capsys, words, (0, 1) if words[0] == "compare" else (0,)))
    assert len(found) == (words[0] not in ("help", "completion"))
    for command in found:
        _run(command, capsys)


# What it names next is a replay, as of most commands above.
@pytest.mark.thorough
def test_the_next_command_of_a_validation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    recording = data("h100-pp4", "traces", "1f1b_m8")
    (command,) = _next_of(capsys, ["validate", str(recording), str(data("h100-pp4", "measured.json"))])
    _run(command, capsys)


def test_copies_are_copied_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor parallel 2, pipeline 2, without rank 0."""
    part = made(MadeJob(pp=2, tp=2, microbatches=4, layers=1), ranks=(1, 2, 3))
    (command,) = _next_of(capsys, ["replay", str(part.path), "--copy-missing-ranks"])
    assert "--copy-missing-ranks" in command
    _run(command, capsys)


def test_every_command_is_tried_here() -> None:
    tried = {name for words in COMMANDS for name in (words[0], " ".join(words[:2]))} | {"validate"}
    assert {name for name, _ in leaves(cli)} <= tried


def test_what_is_swept_is_replayed_in_the_units_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SWEPT, "--bandwidth", "2.5GB/s,100Gbit/s", "--distance", "80km", "--hbm", "64GB", "-o", "k.csv"]
    (command,) = _next_of(capsys, words)
    typed = shlex.split(command)
    assert typed[typed.index("--link") + 1] in {"dc0-dc1=2.5GB/s,80km", "dc0-dc1=100Gbit/s,80km"}
    assert typed[typed.index("--hbm") + 1] == "64GB"
    assert typed[typed.index("--dc") + 1] == "0-1,2-3"
    assert not {"--p2p", "--microbatches"} & set(typed), "nothing that was not asked"


def test_a_file_that_is_there_is_not_suggested_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gantt.png").write_bytes(b"mine")
    (command,) = _next_of(capsys, ["replay", H100, "--schedule", "gpipe"])
    _run(command, capsys)
    assert (tmp_path / "gantt.png").read_bytes() == b"mine"
    if not is_asked():
        # A page is named by the same rule.
        return
    (command,) = _next_of(capsys, ["report", H100, "--schedule", "1f1b", "-o", "own.html"])
    assert "--force" not in command
    assert command.endswith("-o own-links.html")


# What is said of a page is tried in test_report by default.
@spread(
    ("name", "told"),
    [("x.html", "a browser opens it"), ("x.perfetto.json.gz", "https://ui.perfetto.dev opens it"), ("x.svg", None)],
    [("x.perfetto.json.gz", "https://ui.perfetto.dev opens it"), ("x.svg", None)],
)
def test_an_export_says_what_opens_it(name: str, told: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", H100, "--schedule", "1f1b", "-o", name]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"wrote {name}")]
    assert line == f"wrote {name}" + (" (1f1b)" if told is None else f" ({told})")
