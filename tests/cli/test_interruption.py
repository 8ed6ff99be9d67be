"""Ctrl-C, SIGTERM, SIGKILL and a full disk while reading: no half Run, no worker left, one line on stderr."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from helpers.recorded import SAMPLES
from helpers.thorough import spread

from tracetool.cli import run
from tracetool.errors import StoreError, TraceToolError, UnknownName
from tracetool.ingestion import ingest
from tracetool.store.run import Run

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")

_EVENT = (
    '{"ph":"X","cat":"kernel","name":"k%d","tid":7,"ts":17323%011d.125,"dur":12.5,"args":{"stream":7,"grid":[1,2]}},\n'
)


def _write(folder: Path, blocks: int) -> Path:
    block = "".join(_EVENT % (n % 997, n * 7919) for n in range(20_000))
    for rank in range(2):
        with (folder / f"rank{rank}.json").open("w", encoding="utf-8") as file:
            file.write(f'{{"schemaVersion":1,"distributedInfo":{{"rank":{rank},"world_size":2}},"traceEvents":[\n')
            file.writelines(block.replace(":17323", f":{17323 + again}") for again in range(blocks))
            file.write('{"ph":"f"}]}')
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of 150 MB: seconds of reading, so that even on a busy machine it is not over when the signal comes."""
    return _write(tmp_path_factory.mktemp("traces"), 62)


def _command(traces: Path, output: Path, jobs: int) -> list[str]:
    return [sys.executable, "-m", "tracetool", "ingest", str(traces), "-o", str(output), "--jobs", str(jobs), "-q"]


def _start(traces: Path, output: Path, jobs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(_command(traces, output, jobs), stderr=subprocess.PIPE, text=True, start_new_session=True)


def _until_it_writes(output: Path) -> None:
    until = time.monotonic() + 60
    while not list(output.parent.glob(f".{output.name}.*/*/*")):
        assert time.monotonic() < until
        time.sleep(0.01)


def _members(group: int) -> list[int]:
    """The live processes of a session, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == group and state != "Z":
            found.append(int(folder.name))
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def _gone(group: int) -> bool:
    until = time.monotonic() + 30
    while _members(group):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


# Ctrl-C in a terminal, of a command with workers; the others tell which signal and number of jobs is handled wrongly.
@spread(
    ("number", "everybody", "jobs"),
    [
        (signal.SIGINT, True, 1), (signal.SIGTERM, True, 1),
        (signal.SIGINT, True, 2), (signal.SIGINT, False, 2), (signal.SIGTERM, False, 2),
    ],
    [(signal.SIGINT, True, 2)],
)  # fmt: skip
def test_an_interruption_leaves_nothing(
    number: signal.Signals, everybody: bool, jobs: int, traces: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.run"
    process = _start(traces, output, jobs)
    _until_it_writes(output)
    # A terminal sends Ctrl-C to all processes of the command.
    (os.killpg if everybody else os.kill)(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.strip() == "Interrupted; nothing was left half-written."
    assert list(tmp_path.iterdir()) == []
    assert _gone(process.pid)


_MET_TEXT = """
import os
import tracetool.cli as cli, tracetool.ingestion.runs as runs

runs.open_run = lambda *_: os.kill(os.getpid(), {number})
print_error = cli._print_error

def interrupted(error):
    code = print_error(error)
    try:
        eval("(_ for _ in ()).throw(KeyboardInterrupt)")
    except KeyboardInterrupt:
        return code

cli._print_error = interrupted
cli.main(["info", {traces!r}])
"""


@spread("number", [signal.SIGINT, signal.SIGTERM], 1)
def test_an_interruption_that_meets_code_made_from_text_has_its_exit_code(
    number: signal.Signals, tmp_path: Path
) -> None:
    text = _MET_TEXT.format(number=int(number), traces=str(SAMPLES / "h100-1f1b"))
    (tmp_path / "met_text.py").write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-m", "met_text"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 128 + number
    assert ended.stderr.strip() == "Interrupted; nothing was left half-written."


def test_workers_end_with_a_parent_that_is_killed_and_the_next_run_names_what_it_left(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _start(traces, tmp_path / "x.run", 2) as process:
        _until_it_writes(tmp_path / "x.run")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert _gone(process.pid)
    assert not (tmp_path / "x.run").exists()
    (left,) = tmp_path.glob(".x.run.*")
    (tmp_path / "few").mkdir()
    assert run(["ingest", str(_write(tmp_path / "few", 1)), "-o", str(tmp_path / "x.run")]) == 0
    assert f"note: {left} (" in capsys.readouterr().err
    assert left.exists()


# Of one process the error comes from where the files are, of two from a worker, as others do by default (below).
@spread("jobs", [1, 2], [1])
def test_a_full_disk_leaves_nothing(jobs: int, tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: writing fails in the same way."""
    traces, output = tmp_path / "traces", tmp_path / "out" / "x.run"
    traces.mkdir()
    output.parent.mkdir()
    command = _command(_write(traces, 1), output, jobs)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 2
    assert "Error: could not write" in done.stderr
    assert "File too large" in done.stderr
    assert "Unexpected" not in done.stderr
    assert list(output.parent.iterdir()) == []


def test_it_stops_before_the_disk_is_full(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1 << 40, 1 << 40, 5 << 20))
    with pytest.raises(StoreError, match=r"could not write .*x\.run.*only 5 MiB are free") as caught:
        ingest([traces], tmp_path / "x.run")
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


# Work of a worker that is killed is done by another by default in tests/ingestion; here it is a command that reads.
@pytest.mark.thorough
def test_the_run_is_whole_although_a_worker_was_killed(traces: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.run"
    with _start(traces, output, 2) as process:
        _until_it_writes(output)
        # The workers are forked by a server, whose parent is the command.
        parents = {pid: _parent(pid) for pid in _members(process.pid)}
        workers = [pid for pid, parent in parents.items() if parents.get(parent) == process.pid]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        _, error = process.communicate(timeout=100)
    assert (process.returncode, error) == (0, f"wrote {output}\n")
    assert Run(output).rows("SELECT rank, count(*) FROM events GROUP BY rank ORDER BY rank") == [
        (rank, 62 * 20_000) for rank in range(2)
    ]
    assert _gone(process.pid)


def test_errors_come_home_from_workers() -> None:
    for error in (UnknownName("scanner", "x", ["plain"]), StoreError("a", hint="b"), TraceToolError("c")):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
        assert (type(again), again.message, again.hint) == (type(error), error.message, error.hint)


def test_a_scanner_that_is_none_is_told_from_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", "fast")
    assert run(["ingest", str(SAMPLES / "h100-1f1b"), "-o", str(tmp_path / "x.run"), "--jobs", "2", "-q"]) == 2
    assert "no scanner named 'fast'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_server_of_workers_sees_no_interruption_while_it_loads() -> None:
    """Started while ranks are discovered, it printed where it was, beside what the command says of Ctrl-C."""
    asked = (
        "from multiprocessing.forkserver import _forkserver; from tracetool.ingestion import executors, reading; "
        "executors.prepare_workers(reading.__name__); print(_forkserver._forkserver_pid); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        server = int(process.stdout.readline())
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
        process.stdin.write("\n")
        process.stdin.close()
    assert int(status["SigBlk"], 16) & 1 << signal.SIGINT - 1
