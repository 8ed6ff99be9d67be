"""The other commands, and what the documents say about all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from recorded import ROOT, SAMPLES, data

from tracetool.cli import cli, run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SAMPLE = str(SAMPLES / "h100-1f1b")


def test_ingest_writes_a_run_and_says_what_is_in_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = str(tmp_path / "x.run")
    assert run(["ingest", SAMPLE, "-o", target]) == 0
    text = capsys.readouterr().out
    assert "4 of 4 ranks (kineto) on NVIDIA H100 80GB HBM3" in text
    assert "stage 0 on rank 0: F 5.3 ms, B 13.8 ms, activation 1.20 GiB, static 5.46 GiB" in text
    assert "Next: tracetool replay" in text
    assert run(["ingest", SAMPLE, "-o", target]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["ingest", SAMPLE, "-o", target, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == 6040


def test_info_says_what_is_missing_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(data("cpu-gloo-pp4", "ScheduleInterleaved1F1B"))]) == 0
    assert "cannot be replayed" in capsys.readouterr().out
    assert run(["info", str(SAMPLES / "h100-1f1b-annotated")]) == 0
    assert "memory: not recorded" in capsys.readouterr().out


def test_ascend_ranks_without_kernels_are_reported_not_fatal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    level2 = str(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    assert run(["ingest", level2, "-o", str(tmp_path / "x.run")]) == 0
    text = capsys.readouterr().out
    for rank in (1, 3):
        assert f"rank {rank}: no kernel_details.csv" in text
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
        assert f"\n{name}: " in text


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
    assert [s["name"] for s in json.loads(capsys.readouterr().out)] == ["gpipe", "1f1b", "geopipe", "observed"]
    assert run(["schedules", "1f1b", "--stages", "2", "--microbatches", "2", "-q"]) == 0
    assert capsys.readouterr().out == "rank  0  0F0 0F1 0B0 0B1\nrank  1  1F0 1B0 1F1 1B1\n"


def test_every_command_has_help_with_an_example_and_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, command in cli.commands.items():
        assert "Example" in (command.help or ""), name
        assert f"tracetool {name}" in readme


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0].strip() for part in readme.split("```sh\n")[1:]]
    assert len(blocks) == 2
    assert blocks[0].endswith("--link dc0-dc1=25Gbit/s,10ms --hbm 80GiB")
    assert blocks[1].endswith("pytest")
    assert "n == 2" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_output_is_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert run(["replay", SAMPLE, "--schedule", "geopipe,gpipe", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
