"""tracetool report: the page as a user asks for it."""

from __future__ import annotations

import html
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers import synthetic
from helpers.figures import figures_undrawn
from helpers.recorded import ROOT, SAMPLES

from tracetool.cli import run
from tracetool.cli.report import default_name
from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape
from tracetool.schedules import build_schedule
from tracetool.whatif.best import default_schedules

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

SAMPLE = str(SAMPLES / "h100-1f1b")
LINK = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
NAMES = ["--schedule", "1f1b,geopipe,interleaved"]
LIMIT = ["--hbm", "14GiB"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "report.html"


@pytest.fixture(scope="module")
def written(target: Path) -> tuple[str, str]:
    """What the command prints as it writes the page; its pictures are drawn in tests/reports/test_html."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, figures_undrawn():
        assert run(["report", SAMPLE, *NAMES, *LINK, *LIMIT, "-o", str(target)]) == 0
    return out.getvalue(), err.getvalue()


def test_the_page_says_what_was_asked_found_inferred_and_how_to_repeat_it(
    written: tuple[str, str], target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = written
    page = target.read_text(encoding="utf-8")
    headline = out.splitlines()[0]
    assert headline.startswith("Over 25 Gbit/s, 10 ms run geopipe +1,1,0,0 (in-order transfers): ")
    assert ", if it fits: it needs " in headline
    assert f"<h1>{headline}</h1>" in html.unescape(page)
    assert err == f"wrote {target} ({target.stat().st_size:,} bytes; a browser opens it)\n"
    assert "Next: python3 -m webbrowser" in out
    for part in (
        "Findings, the least sure first", "NVIDIA H100", "25 Gbit/s (3.125 GB/s), 10.0 ms one way", "rank0.json.gz",
        "tracetool report", "dc0: ranks 0-1; dc1: ranks 2-3", "What was lost in reading", "interleaved",
    ):  # fmt: skip
        assert part in page
    (findings,) = re.findall(r"Findings, the least sure first.*?</thead>", page, re.DOTALL)
    heads = [re.sub("<[^>]*>", "", head).strip() for head in re.findall("<th.*?</th>", findings, re.DOTALL)]
    assert heads == ["Fact", "About", "Found", "Known by", "Confidence"]
    assert run(["report", SAMPLE, *NAMES, *LINK, *LIMIT, "-o", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == page


def test_json_tells_the_file_and_its_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # They take most of the time.
    monkeypatch.setattr("tracetool.reports.html.page.pictures", lambda *_: ())
    (tmp_path / "h100-1f1b.html").write_text("an earlier page", encoding="utf-8")
    assert run(["report", SAMPLE, "--schedule", "1f1b,gpipe", "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "written.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(told)
    assert told["path"] == "h100-1f1b.html"
    assert told["size_bytes"] == (tmp_path / "h100-1f1b.html").stat().st_size
    assert told["best"]["schedule"] == "1f1b"


# The page that report writes is looked through by default.
@pytest.mark.thorough
def test_replay_writes_the_same_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    assert run(["replay", SAMPLE, "--schedule", "1f1b,geopipe", *LINK, "-o", str(target)]) == 0
    capsys.readouterr()
    assert b"geopipe +2,2,0,0" in target.read_bytes()
    assert run(["replay", SAMPLE, "-o", str(tmp_path / "a.doc")]) == 2
    assert ".html" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["runs/x.run"], "x.html"), (["traces"], "traces.html"), (["traces/"], "traces.html"),
        (["t/rank0.json.gz"], "rank0.html"), (["job7/rank0.json", "job7/rank1.json"], "job7.html"),
        (["a/.hidden"], "hidden.html"),
    ],
)  # fmt: skip
def test_the_default_name_is_that_of_the_run(paths: list[str], name: str, tmp_path: Path) -> None:
    assert str(default_name(tuple(tmp_path / path for path in paths))) == name


def test_several_stages_per_rank_are_compared_with_their_like() -> None:
    shape = PipelineShape(4, 8, chunks=2)
    costs = {ActionKind.FORWARD: 10, ActionKind.BACKWARD: 20}
    measured = synthetic.equal_stages(build_schedule("interleaved", shape), costs)
    names = default_schedules(synthetic.found(measured).pipeline.observed)
    assert names[0] == "observed"
    assert {"interleaved", "looped-bfs"} < set(names)
    assert not {"1f1b", "zb-v", "dualpipe"} & set(names)


def test_the_page_names_what_advise_names_and_what_more_buys(
    written: tuple[str, str], target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same schedules asked of both: one best, one HBM gain; what has to be scrolled to on a phone comes last."""
    assert run(["advise", SAMPLE, *NAMES, *LINK, *LIMIT, "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert " ".join(written[0].split()).startswith(advice["headline"])
    text = target.read_text(encoding="utf-8")
    _has_gains_of(advice, text, ["Schedule", "Step", "Fits", "Change"])
    needed = max(advice["best"]["needed_hbm_bytes"])
    assert f"<strong>{needed / 2**30:.2f} GiB</strong> <span>limit 14.00 GiB: may fit" in text


def _has_gains_of(advice: dict[str, Any], text: str, heads: list[str]) -> None:
    assert f"What binds is {advice['binds']}" in text
    for gain in advice["gains"]:
        assert f"{gain['more']}</th>" in text
        assert f'data-sort="{gain["gained_ns"]}">{gain["gained_ns"] / 1e6:.1f} ms</td>' in text
    found = re.findall(r'<th scope="col">([^<]*)</th>', text[text.index("All schedules in this scenario") :])
    assert found[: len(heads)] == heads


# Without a limit there is less to name than above: no column of what fits.
@pytest.mark.thorough
def test_the_page_without_a_limit_names_what_advise_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    question = [SAMPLE, *NAMES, *LINK, "--json"]
    assert run(["advise", *question]) == 0
    advice = json.loads(capsys.readouterr().out)
    target = tmp_path / "a.html"
    assert run(["report", *question, "-o", str(target)]) == 0
    told = json.loads(capsys.readouterr().out)["best"]
    assert [told[key] for key in ("schedule", "extra_forwards", "p2p", "step_ns")] == [
        advice["best"][key] for key in ("schedule", "extra_forwards", "p2p", "step_ns")
    ]
    _has_gains_of(advice, target.read_text(encoding="utf-8"), ["Schedule", "Step", "Change", "±"])
