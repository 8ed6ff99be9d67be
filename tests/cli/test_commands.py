"""The other commands, and what the documents say about all of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.recorded import ROOT, SAMPLES, data
from helpers.small_pipeline import Job, write
from helpers.thorough import spread

from tracetool.cli import cli, run
from tracetool.cli.help import TOPICS
from tracetool.store.run import Run

SAMPLE = str(SAMPLES / "h100-1f1b")
SMALL = str(ROOT / "tests" / "data" / "ckpt_reentrant")


def test_ingest_writes_a_run_and_says_what_is_in_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = str(tmp_path / "x.run")
    assert run(["ingest", SAMPLE, "-o", target, "-v"]) == 0
    text = capsys.readouterr().out
    assert "4 of 4 ranks (kineto) on NVIDIA H100 80GB HBM3" in text
    assert "stage 0 on rank 0: F 5.3 ms, B 13.8 ms, activation 1.20 GiB, static 5.46 GiB" in text
    assert "Next: tracetool replay" in text
    assert run(["ingest", SAMPLE, "-o", target]) == 2
    assert "--force" in capsys.readouterr().err
    of_kernels = "SELECT count(*) FROM events WHERE category = 'kernel'"
    assert Run(Path(target)).rows(of_kernels) == [(6040,)]
    assert run(["ingest", SMALL, "-o", target, "--force", "--json"]) == 0
    assert [(json.loads(capsys.readouterr().out)["kernels"],)] == Run(Path(target)).rows(of_kernels) != [(6040,)]


_HTA = ("torch", "facebookresearch+HolisticTraceAnalysis", "tests", "data")
GAPS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "gloo, host only": (
        ("cpu-gloo-pp4", "ScheduleInterleaved1F1B"),
        ["no kernels: a trace of the host only", "no memory"],
    ),
    "one rank of 300, host only": (
        (*_HTA, "cpu_only"),
        ["no kernels: a trace", "no sends and receives", "no memory", "ranks 0-33, 35-299 were not recorded"],
    ),
    "torch 2.2": (
        ("torch", "astra-sim+astra-sim", "megatron-tp8"),
        ["672 communication kernels without a record of the host", "no memory"],
    ),
    "1F1B on GPUs": (("h100-pp4", "traces", "1f1b_m8_mem"), []),
    "labelled operations": (
        ("torch", "ByteDance-Seed+StragglerAnalysis", "trace-ST.parquet"),
        ["no size of 3,072 of 3,072 sends and receives", "no memory"],
    ),
    "a vendor's figures": (
        ("ascend", "Ascend+msprof-analyze", "test", "resource", "advisor", "cluster_analysis_output"),
        ["no rank was recorded"],
    ),
    "step traces of MindSpore": (
        ("ascend", "mindspore-ai+mindinsight", "tests", "utils", "resource", "cluster_propose"),
        ["no kernels", "no size of 108 of 160", "no memory"],
    ),
}


# The others have what some of these have, or nothing that is missing.
@spread("case", GAPS, ["one rank of 300, host only", "a vendor's figures", "step traces of MindSpore"])
def test_info_says_what_is_missing_for_what(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, expected = GAPS[case]
    assert run(["info", str(data(*path)), "--json"]) == 0
    gaps = json.loads(capsys.readouterr().out)["gaps"]
    assert len(gaps) == len(expected), gaps
    for gap, lacks in zip(gaps, expected, strict=True):
        assert gap["lacks"].startswith(lacks)
        assert gap["needed_for"]
        assert gap["hint"]


def test_a_dry_run_only_looks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write(tmp_path / "traces", Job(p=2))
    (folder / "notes.txt").write_text("hello", encoding="utf-8")
    (folder / "empty.txt").write_bytes(b"")
    assert run(["ingest", str(folder), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [source["rank"] for source in facts["sources"]] == [0, 1]
    assert {Path(left["path"]).name: left["reason"] for left in facts["left"]} == {
        "notes.txt": "no trace of a known format",
        "empty.txt": "empty (0 bytes)",
    }
    assert run(["ingest", str(folder), "--dry-run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 sources would be read" in text
    assert "no trace of a known format" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["traces"]
    assert run(["ingest", str(folder), "-o", str(tmp_path / "x.run"), "-q"]) == 0
    capsys.readouterr()
    query = "select status, count(*) as n from sources group by status order by status"
    assert run(["sql", str(tmp_path / "x.run"), query, "--format", "csv"]) == 0
    assert capsys.readouterr().out == "status,n\nleft,2\nread,2\n"


def test_a_dry_run_says_which_ranks_of_the_job_are_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The sample's traces say that they are of four ranks."""
    two = [str(shutil.copy(Path(SAMPLE) / f"rank{rank}.json.gz", tmp_path)) for rank in (0, 2)]
    assert run(["ingest", *two, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("2 sources would be read; ranks 1, 3 of the job are in none of them\n")
    assert run(["ingest", *two, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_ranks"] == [1, 3]


def test_a_rank_can_be_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("some.json", "other.json"):
        text = data("broken", "norank", "r0.json").read_text(encoding="utf-8")
        (tmp_path / name).write_text(text + " " * len(name), encoding="utf-8")
    told = ["--rank", "some.json=3", "--rank", "other.json=1"]
    assert run(["ingest", str(tmp_path), "--dry-run", "--json", *told]) == 0
    assert [s["rank"] for s in json.loads(capsys.readouterr().out)["sources"]] == [1, 3]
    assert run(["ingest", str(tmp_path), "--dry-run", "--rank", "some.json"]) == 2
    assert "FILE=RANK" in capsys.readouterr().err
    assert run(["ingest", str(tmp_path), "-o", str(tmp_path / "x.run"), *told, "--rank", "nope.json=2"]) == 2
    assert "--rank nope.json=2 names none of the sources" in capsys.readouterr().err
    assert run(["ingest", SAMPLE, "-o", str(tmp_path / "x.run"), "--rank", "rank1.json.gz=2"]) == 2
    assert "says that it is rank 1, not 2" in capsys.readouterr().err


def test_a_dry_run_lists_everything_and_every_conflict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(SAMPLE, tmp_path / name)
    (tmp_path / "b" / "rank9.json").write_text('{"schemaVersion": 1, "traceEvents": []}', encoding="utf-8")
    for number in range(40):
        (tmp_path / f"note{number}.txt").write_text("x", encoding="utf-8")
    assert run(["ingest", str(tmp_path), "--dry-run"]) == 2
    text = capsys.readouterr().out
    assert text.startswith("none of 9 sources would be read: 4 conflicts\n")
    assert text.count("conflict:") == 4
    assert "28 more: no trace of a known format" in text
    assert run(["ingest", str(tmp_path), "-o", str(tmp_path / "x.run")]) == 2
    assert "both say rank 0" in capsys.readouterr().err


def test_the_next_command_fits_what_was_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    host_only = str(data(*_HTA, "cpu_only"))
    assert run(["ingest", host_only, "-o", str(tmp_path / "x.run")]) == 0
    assert "Next: tracetool sql" in capsys.readouterr().out


def test_what_is_kept_on_request(tmp_path: Path) -> None:
    trace = {
        "schemaVersion": 1,
        "traceEvents": [
            {
                "ph": "X",
                "cat": "python_function",
                "name": "f.py(1): g",
                "tid": 5,
                "ts": 1,
                "dur": 2,
                "args": {"Python id": 1},
            },
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "tid": 5,
                "ts": 3,
                "dur": 1,
                "args": {"Input Dims": [[1, 2]]},
            },
        ],
    }
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    target = tmp_path / "x.run"
    assert run(["ingest", str(path), "-o", str(target), "-q"]) == 0
    assert Run(target).rows("SELECT category, args FROM events") == [("op", None)]
    keep = ["--keep", "python_function", "--keep", "args"]
    assert run(["ingest", str(path), "-o", str(target), "-q", "--force", *keep]) == 0
    assert Run(target).rows("SELECT category, args FROM events") == [
        ("python", '{"Python id": 1}'),
        ("op", '{"Input Dims": [[1, 2]]}'),
    ]


# That such ranks say so is tried by default of the reader (tests/readers/test_ascend).
@pytest.mark.thorough
def test_ascend_ranks_without_kernels_are_reported_not_fatal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    level2 = str(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    assert run(["ingest", level2, "-o", str(tmp_path / "x.run"), "-v"]) == 0
    text = capsys.readouterr().out
    assert "ranks 1, 3: no kernel_details.csv: compute of this rank is unknown" in text
    assert "Ascend's own Bubble" in text


def test_sql_answers_in_three_forms_and_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    query = "select rank, count(*) as n from ops where stage >= 0 group by rank order by rank"
    assert run(["sql", SAMPLE, query, "--format", "csv"]) == 0
    assert capsys.readouterr().out == "rank,n\n0,16\n1,16\n2,16\n3,16\n"
    assert run(["sql", SAMPLE, query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[3] == {"rank": 3, "n": 16}
    assert run(["sql", SAMPLE, query]) == 0
    assert "| rank |" in capsys.readouterr().out
    assert run(["sql", SAMPLE]) == 0
    text = capsys.readouterr().out
    for name in ("events", "bubbles", "step_breakdown", "link_utilization", "peak_memory"):
        assert re.search(rf"^{name} +\S", text, re.MULTILINE), name
    assert run(["sql", SAMPLE, "bubbles"]) == 0
    text = capsys.readouterr().out
    assert "before_action" in text
    assert "'select * from bubbles'" in text


def test_the_views_agree_with_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """Idle per rank, three ways: gaps between ops, window minus compute, and the metric (their mean)."""
    query = (
        "select (select sum(duration_ns) from bubbles)::bigint as gaps, "
        "(select sum(idle_ns) from step_breakdown)::bigint as idle, "
        "(select value from metrics where metric = 'bubble_ns')::bigint as mean"
    )
    assert run(["sql", SAMPLE, query, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["gaps"] == row["idle"]
    assert row["idle"] // 4 == row["mean"]


def test_schedules_are_listed_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedules", "--json"]) == 0
    assert [s["name"] for s in json.loads(capsys.readouterr().out)] == [
        "gpipe",
        "1f1b",
        "geopipe",
        "eager-1f1b",
        "interleaved",
        "looped-bfs",
        "zb-h1",
        "zb-h2",
        "interleaved-zero-bubble",
        "zb-v",
        "v-half",
        "v-min",
        "hanayo",
        "dualpipev",
        "dualpipe",
        "chimera",
        "greedy",
        "optimal",
        "observed",
    ]
    assert run(["schedules", "1f1b", "--stages", "2", "--microbatches", "2", "-q"]) == 0
    assert capsys.readouterr().out == "rank  0  0F0 0F1 0B0 0B1\nrank  1  1F0 1B0 1F1 1B1\n"


def test_an_order_from_a_file_is_drawn_in_its_own_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shape = ["--stages", "6", "--microbatches", "12"]
    assert run(["schedules", "ScheduleZBVZeroBubble", *shape, "--csv"]) == 0
    written = capsys.readouterr()
    assert written.err == "note: ScheduleZBVZeroBubble is zb-v here\n"
    file = tmp_path / "order.csv"
    file.write_text(written.out, encoding="utf-8")
    assert run(["schedules", f"csv:{file}", "--csv"]) == 0
    assert capsys.readouterr().out == written.out
    assert run(["schedules", f"csv:{file}", "--stages", "4"]) == 2
    assert "is for 6 ranks and 12 stages" in capsys.readouterr().err


def test_every_command_has_help_with_an_example_and_stands_in_the_readme() -> None:
    for name, command in cli.commands.items():
        assert "Example" in (command.help or ""), name
        for document in (ROOT / "README.md", TOPICS / "commands.md"):
            assert f"tracetool {name}" in document.read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0].strip() for part in readme.split("```sh\n")[1:]]
    assert len(blocks) == 2
    assert blocks[0].endswith("--link dc0-dc1=25Gbit/s,10ms --or 100Gbit/s,10ms=9000EUR/month")
    assert blocks[1].endswith("pytest")
    assert "n == 2" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_output_is_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert run(["replay", SAMPLE, "--schedule", "geopipe,gpipe", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
