"""Bad input: one clear error, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from helpers.recorded import SAMPLES, data

from tracetool.cli import run

SAMPLE = SAMPLES / "h100-1f1b"


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "Unexpected" not in captured.err
    assert captured.out == ""
    return captured.err


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A copy of the sample to spoil."""
    folder = tmp_path / "traces"
    shutil.copytree(SAMPLE, folder)
    return folder


def _write(path: Path, **changes: object) -> None:
    """Rewrite a rank's trace with other top-level entries."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(trace | changes).encode()))


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.json does not exist" in _refused(capsys, "replay", "nowhere.json")


def test_an_empty_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank0.json").touch()
    assert "rank0.json is empty" in _refused(capsys, "replay", tmp_path / "rank0.json")


def test_a_trace_without_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"schemaVersion": 1, "traceEvents": []}', encoding="utf-8")
    error = _refused(capsys, "ingest", tmp_path / "rank0.json", "-o", tmp_path / "x.run")
    assert "holds no events" in error
    assert "on_trace_ready" in error
    assert not (tmp_path / "x.run").exists()


def test_a_file_that_is_no_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    error = _refused(capsys, "info", tmp_path / "notes.txt")
    assert "notes.txt is no trace of a known format" in error
    assert "no trace found" in _refused(capsys, "info", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("job.toml", '# ours\n[model]\nname = "x"\n', "it is a job's shape: tracetool estimate "),
        ("fleet.toml", '[[tier]]\nname = "node"\n', "it is a network: name traces or a Run, and --network "),
        (
            "report.json",
            '{"$schema": "urn:tracetool:schema:1:report"}',
            "it is an answer of this tool: name the traces",
        ),
        ("other.toml", '[tool]\nname = "x"\n', "tracetool reads torch.profiler"),
    ],
)
def test_other_files_of_ours_say_what_they_are_for(
    name: str, text: str, hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    error = _refused(capsys, "advise", tmp_path / name)
    assert f"{name} is no trace of a known format" in error
    assert f"Hint: {hint}" in error


def test_one_rank_missing(capsys: pytest.CaptureFixture[str], ranks: Path) -> None:
    (ranks / "rank2.json.gz").unlink()
    error = _refused(capsys, "replay", ranks)
    assert "3 of 4 pipeline ranks were recorded (missing: 2)" in error


def test_two_files_of_one_rank(capsys: pytest.CaptureFixture[str], ranks: Path) -> None:
    shutil.copy(ranks / "rank1.json.gz", ranks / "again.json.gz")
    error = _refused(capsys, "ingest", ranks, "-o", ranks / "x.run")
    assert "again.json.gz" in error
    assert "rank1.json.gz" in error
    assert "both say rank 1" in error
    assert not (ranks / "x.run").exists()


def test_ranks_of_different_jobs(capsys: pytest.CaptureFixture[str], ranks: Path) -> None:
    _write(ranks / "rank3.json.gz", distributedInfo={"rank": 3, "world_size": 8})
    error = _refused(capsys, "info", ranks)
    assert "disagree about the size of the job: 4 ranks" in error
    assert "8 ranks" in error
    assert "rank3.json.gz" in error


def test_a_trace_without_gpu_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    hta = ("torch", "facebookresearch+HolisticTraceAnalysis", "tests", "data", "cpu_only")
    error = _refused(capsys, "replay", data(*hta))
    assert "holds no kernels" in error
    assert "ProfilerActivity.CUDA" in error


def test_a_trace_without_rank(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("some.json", "other.json"):
        shutil.copy(data("broken", "norank", "r0.json"), tmp_path / name)
    error = _refused(capsys, "info", tmp_path)
    assert "2 sources do not say their rank" in error
    assert "where all of them are of one job, ingest with --rank other.json=0 --rank some.json=1" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--schedule", "geopip"], "Did you mean 'geopipe'"),
        (["--schedule", "GEOPIP"], "Did you mean 'geopipe'"),
        (["--schedule", "geopipe", "--dc", "0-1,2-3", "--link", "dc0-dc1=25,10ms"], "'25' has no unit"),
        (["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10"], "'10' has no unit"),
        (["--hbm", "80"], "'80' has no unit"),
        (["--dc", "0-1,3", "--link", "dc0-dc1=25Gbit/s,10ms"], "leaves out rank 2"),
        (["--dc", "0-1,2", "--link", "dc0-dc1=25Gbit/s,10ms"], "the pipeline has ranks 0..3"),
        (["--dc", "0-1,1-3", "--link", "dc0-dc1=25Gbit/s,10ms"], "rank 1 is in dc0 and in dc1"),
        (["--dc", "0-1,2-3"], "no link dc0-dc1 is given"),
        (["--link", "dc0-dc1=25Gbit/s,10ms"], "not which ranks sit in which DC"),
        (["--dc", "0-1,2-3", "--link", "dc0-dc9=25Gbit/s,10ms"], "there is no 'dc9'"),
        (["--schedule", "geopipe", "--extra-forwards", "2,2"], "one number of extra forwards per pipeline rank (4)"),
        (["--schedule", "geopipe", "--extra-forwards", "0,0,2,2"], "grow downstream"),
        (["--step", "9"], "there is no step 9"),
        (["--activation", "1GiB"], "belong together"),
        (["--schedule", "observed", "--microbatches", "16"], "cannot be stretched"),
        (["--schedule", "csv:nowhere.csv"], "cannot read the schedule file"),
        (["--chunks", "2"], "--chunks has no effect on observed, 1f1b"),
        (["--schedule", "gpipe", "--overlap-ratio", "0.9"], "it is for dualpipev and dualpipe"),
        (["--schedule", "greedy", "--time-limit", "3s"], "--time-limit has no effect on greedy, 1f1b"),
        (["--schedule", "gpipe", "--extra-forwards", "1,1,0,0"], "--extra-forwards has no effect on gpipe"),
        (["--link-sharing", "spatial"], "how several pipelines share links, but there is one"),
        (["--hbm", "0GiB"], "a memory limit of 0 bytes"),
        (["-o", "picture.bmp"], "no report is written to .bmp"),
        (["--p2p", "fast"], "'fast' is not one of"),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert says in _refused(capsys, "replay", SAMPLE, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_query_keeps_duckdbs_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    error = _refused(capsys, "sql", SAMPLE, "select strat_ns from ops")
    assert "start_ns" in error


def test_a_crash_is_exit_code_2_and_leaves_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracetool.ingestion.runs.open_run", lambda *_: 1 / 0)
    assert run(["info", str(SAMPLE)]) == 2
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error
    assert "Traceback" not in error
    path = Path(error.split()[-1].rstrip(")"))
    assert "ZeroDivisionError" in path.read_text(encoding="utf-8")
    path.unlink()
