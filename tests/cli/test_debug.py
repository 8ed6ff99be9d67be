"""``--debug``: what a bug report needs is in it, and nothing that a trace, a path or a name of the user's tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import SAMPLES
from helpers.small_pipeline import Job, write

from tracetool.cli import cli, run
from tracetool.cli.set_options import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

PLANTED = "zanzibar"


@pytest.fixture
def secret_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small traces of which every name that is not the profiler's own is a secret; as is their folder."""

    def plant(rank: int, trace: dict[str, Any]) -> None:
        trace["hostname"] = f"{PLANTED}-host-{rank}"
        trace["deviceProperties"][0]["name"] = f"{PLANTED} accelerator"
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and "nccl" not in event["name"]:
                event["name"] = f"{PLANTED}_kernel"
        # A record of a kind that nothing reads is counted by its name.
        trace["traceEvents"].append({"ph": "X", "cat": PLANTED, "name": PLANTED, "ts": 1, "dur": 1, "pid": 0, "tid": 0})

    folder = write(tmp_path / f"{PLANTED}-folder", Job(p=2), plant)
    (folder / f"{PLANTED}.txt").write_text(PLANTED, encoding="utf-8")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return folder


def _bundle(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> tuple[dict[str, Any], str]:
    assert run([*words, "--debug"]) == code
    err = capsys.readouterr().err
    (path,) = Path.cwd().glob("tracetool-debug-*.json")
    text = path.read_text(encoding="utf-8")
    assert f"wrote {path}: " in err
    assert PLANTED not in text.lower()
    assert str(Path.home()) not in text
    path.unlink()
    return json.loads(text), err


def test_sizes_codes_and_words_of_ours_stand_in_it_and_no_secrets(
    capsys: pytest.CaptureFixture[str], secret_traces: Path
) -> None:
    link = f"{PLANTED}0-{PLANTED}1=25Gbit/s,10ms"
    found, _ = _bundle(
        capsys, 2, "replay", str(secret_traces), "--schedule", "1f1b,gpipe", "--hbm", "80GiB", "--link", link,
        "-o", f"{PLANTED}.png",
    )  # fmt: skip
    assert found["command"] == (
        "tracetool replay PATH --schedule 1f1b,gpipe --hbm 80GiB --link TEXT=25Gbit/s,10ms -o TEXT --debug"
    )
    assert found["exit"] == 2
    assert [one["type"] for one in found["error"]] == ["BadTopology"]
    (recording,) = found["inputs"]
    ranks = len(list(secret_traces.glob("rank*.json")))
    assert recording["given"] == {"folder": 1}
    assert recording["tables"]["ranks"]["rows"] == recording["shape"]["ranks"] == ranks
    assert recording["tables"]["events"]["rows"] > 100
    assert [source["reader"] for source in recording["sources"]] == ["kineto"] * ranks
    assert recording["notices"]
    assert {"tracetool", "python", "pyarrow", "duckdb"} <= found["versions"].keys()


def test_a_crash_leaves_its_way_and_not_its_words(
    capsys: pytest.CaptureFixture[str], secret_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError(f"{PLANTED}_kernel")

    monkeypatch.setattr("tracetool.explanation.explain", crash)
    found, err = _bundle(capsys, 2, "explain", str(secret_traces))
    (way,) = found["error"]
    assert way["type"] == "KeyError"
    assert any("tracetool/cli/explain.py:" in frame for frame in way["frames"])
    assert way["frames"][-1].startswith("tests/cli/test_debug.py:")
    assert "Unexpected error: KeyError: 'zanzibar_kernel'\nThis is a bug in tracetool " in err
    assert run(["explain", str(secret_traces)]) == 2
    assert ": run it again with --debug, and report the file that it writes" in capsys.readouterr().err


def test_what_cannot_be_read_is_said_to_be_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{PLANTED}.json").write_text('{"traceEvents": [{"name": "zanzibar"', encoding="utf-8")
    found, _ = _bundle(capsys, 2, "info", f"{PLANTED}.json")
    assert found["command"] == "tracetool info PATH --debug"
    assert found["inputs"][0]["given"] == {"file": 1}
    assert found["inputs"][0]["error"][0]["type"] == found["error"][0]["type"]


def test_queries_stay_out_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _ = _bundle(capsys, 0, "sql", str(SAMPLES / "h100-1f1b"), f"select '{PLANTED}' as {PLANTED}")
    assert found["command"] == "tracetool sql PATH TEXT --debug"
    assert (found["exit"], found["error"]) == (0, None)
    assert found["inputs"][0]["shape"] == {"ranks": 4, "microbatches": 8, "chunks": 1}


def test_every_command_that_works_has_it() -> None:
    has: Callable[[Any], bool] = lambda command: any("--debug" in option.opts for option in command.params)  # noqa: E731
    assert {name for name, command in leaves(cli) if not has(command)} == {"config", "completion", "help"}


def test_what_is_required_on_other_platforms_alone_is_left_out(
    capsys: pytest.CaptureFixture[str], secret_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = ["click>=8.2", "not-for-here>=1; platform_machine == 'other'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    found, _ = _bundle(capsys, 0, "info", str(secret_traces))
    assert found["versions"].keys() == {"tracetool", "python", "platform", "click"}
