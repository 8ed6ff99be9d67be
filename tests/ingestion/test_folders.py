"""What is among the files: odd names, pipes, links, Runs, many files; each is read, or told as left or failed."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest
from helpers.recorded import SAMPLES
from helpers.thorough import spread

from tracetool.cli import run as command
from tracetool.errors import DuplicateRank, IngestError, MalformedTrace, NotARun, UnknownFormat
from tracetool.ingestion import IngestOptions, discover, ingest

SAMPLE = SAMPLES / "h100-1f1b"


def _write(path: Path, rank: int, world: int = 4, kernels: int = 5) -> Path:
    times = range(1732300000000000, 1732300000000000 + kernels)
    events = [{"ph": "X", "cat": "kernel", "name": f"k{n}", "ts": time_us, "dur": 1} for n, time_us in enumerate(times)]
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world}, "traceEvents": events}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace), encoding="utf-8")
    return path


def _left(folder: Path) -> dict[str, str]:
    found = discover([folder])
    return {str(left.path.relative_to(folder)): left.reason for left in [*found.left, *found.failed]}


def test_a_pipe_or_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    for path in (tmp_path / "rank0.json", Path("/dev/zero")):
        with pytest.raises(UnknownFormat, match=f"{path} is no regular file"):
            discover([path])


def test_pipes_and_sockets_in_a_folder_are_left(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", 0)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        assert _left(tmp_path) == {"pipe": "no regular file", "socket": "no regular file"}


def test_links_are_followed_once(tmp_path: Path) -> None:
    _write(tmp_path / "real" / "a.json", 0)
    _write(tmp_path.parent / f"{tmp_path.name}-else" / "b.json", 1)
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "aaa").symlink_to(tmp_path / "real")
    (tmp_path / "latest.json").symlink_to(tmp_path / "real" / "a.json")
    (tmp_path / "else").symlink_to(tmp_path.parent / f"{tmp_path.name}-else")
    (tmp_path / "nothing").symlink_to(tmp_path / "nowhere")
    found = discover([tmp_path])
    assert [str(f.source.path.relative_to(tmp_path)) for f in found.sources] == ["real/a.json", "else/b.json"]
    left = _left(tmp_path)
    assert left["latest.json"] == "a link to a.json"
    assert "No such file" in left["nothing"]


def test_a_named_link_to_nothing_or_to_itself(tmp_path: Path) -> None:
    (tmp_path / "nothing").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("nothing", "circle", "n" * 300, "a\0b"):
        with pytest.raises(IngestError, match="cannot be read"):
            discover([tmp_path / name])


def test_what_cannot_be_opened_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "a.json", 0)
    _write(tmp_path / "b.json", 1)
    (tmp_path / "secret").mkdir()
    opening, listing = Path.open, Path.iterdir

    def opened(path: Path, *arguments: object, **named: object) -> object:
        if path.name == "b.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *arguments, **named)  # type: ignore[call-overload]

    def listed(path: Path) -> object:
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(Path, "iterdir", listed)
    found = discover([tmp_path])
    assert [f.rank for f in found.sources] == [0]
    assert {left.path.name: "Permission denied" in left.reason for left in found.failed} == {
        "b.json": True,
        "secret": True,
    }
    with pytest.raises(IngestError, match="Permission denied"):
        ingest([tmp_path], tmp_path / "x.run", options=IngestOptions(strict=True))


def test_a_run_in_a_folder_is_left_as_a_run(tmp_path: Path) -> None:
    _write(tmp_path / "traces" / "a.json", 0)
    old = ingest([tmp_path / "traces"], tmp_path / "traces" / "old.run")
    again = ingest([tmp_path / "traces"], tmp_path / "new.run")
    assert again.rows("SELECT count(*) FROM events") == old.rows("SELECT count(*) FROM events")
    assert again.manifest["left"] == [{"path": str(tmp_path / "traces" / "old.run"), "reason": "a Run"}]
    with pytest.raises(UnknownFormat, match="is a Run already"):
        discover([tmp_path / "traces" / "old.run"])


def test_a_run_without_its_manifest_is_no_folder_of_traces(tmp_path: Path) -> None:
    _write(tmp_path / "traces" / "a.json", 0)
    whole = ingest([tmp_path / "traces"], tmp_path / "x.run")
    (whole.path / "manifest.json").unlink()
    with pytest.raises(NotARun, match="has the tables of a Run and no manifest"):
        discover([whole.path])
    # Tables of the straggler analysis are Parquet files, too.
    _write(whole.path / "b.json", 1)
    assert [source.rank for source in discover([whole.path]).sources] == [1]


def test_of_a_recording_inside_the_folder_of_another_one_each_can_be_named(tmp_path: Path) -> None:
    for folder, kernels in (("outer", 5), ("outer/inner", 6)):
        _write(tmp_path / folder / "rank0.json", 0, kernels=kernels)
    with pytest.raises(DuplicateRank) as caught:
        ingest([tmp_path / "outer"], tmp_path / "x.run")
    inner, outer = tmp_path / "outer" / "inner", f"{tmp_path / 'outer'}/*.json"
    assert str(caught.value.hint) == f"these are several recordings: name one folder, as {inner}, {outer}"


def test_another_tools_manifest_makes_no_run(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", 0)
    (tmp_path / "manifest.json").write_text('{"name": "app"}', encoding="utf-8")
    assert [f.rank for f in discover([tmp_path]).sources] == [0]


# Quotes, braces and other scripts can each be lost in a text that is put together without quoting.
@spread(
    "name", ["a\nb.json", 'it\'s "quoted".json', "-o.json", "%s{0}.json", "ключ.json", "a\udcff.json"], ["a\udcff.json"]
)
def test_names_may_be_anything(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / name, 0)
    (tmp_path / f"{name}.txt").write_bytes(b"nothing")
    assert command(["ingest", str(tmp_path), "-o", str(tmp_path / "x.run"), "-q"]) == 0
    assert command(["info", str(tmp_path / "x.run")]) in (0, 2)
    assert command(["ingest", str(tmp_path), "--dry-run"]) == 0
    assert command(["ingest", str(tmp_path), "--dry-run", "--json"]) == 0
    assert command(["ingest", str(path), "-o", str(tmp_path / "y.run"), "-q", "--json"]) == 0
    assert "Unexpected" not in capsys.readouterr().err


def test_an_output_named_in_other_bytes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path / "a.json", 0)
    assert command(["ingest", str(path), "-o", str(tmp_path / "a\udcff.run"), "-q"]) == 2
    error = capsys.readouterr().err
    assert "UTF-8" in error
    assert "Unexpected" not in error
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(encoding: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.json", 0)
    path.write_bytes(path.read_text(encoding="utf-8").encode(encoding))
    with pytest.raises(UnknownFormat, match=r"a\.json is UTF-16 text: save it as UTF-8"):
        discover([path])


def test_errors_name_the_files(tmp_path: Path) -> None:
    one, two = _write(tmp_path / "one.json", 1), _write(tmp_path / "two.json", 1)
    other = _write(tmp_path / "other.json", 2, world=8)
    with pytest.raises(DuplicateRank, match=r"one\.json and .*two\.json both say rank 1"):
        discover([one, two])
    with pytest.raises(IngestError, match=r"4 ranks \(.*one\.json\), 8 ranks \(.*other\.json\)"):
        discover([one, other])
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(UnknownFormat, match=r"notes\.txt is no trace"):
        discover([one, tmp_path / "notes.txt"])
    # A file whose own account of the job is lost does not disagree about it.
    broken = tmp_path / "rank3.json"
    broken.write_bytes(one.read_bytes().replace(b'"distributedInfo"', b'"distri%utedInfo"'))
    assert [f.rank for f in discover([one, broken]).sources] == [1, 3]


def test_a_job_of_nothing_but_damage_says_what_is_damaged(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.json", 0)
    path.write_bytes(path.read_bytes().replace(b'"ph"', b'"xx"').replace(b'"traceEvents"', b'"traceEvent"'))
    with pytest.raises((MalformedTrace, IngestError), match=r"a\.json: no list of events"):
        ingest([path], tmp_path / "x.run")


def test_hundreds_of_other_files_cost_no_time(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", 0)
    for number in range(400):
        (tmp_path / f"{number}.txt").write_bytes(b"%d" % number)
    begin = time.monotonic()
    found = discover([tmp_path])
    assert len(found.left) == 400
    assert time.monotonic() - begin < 12
