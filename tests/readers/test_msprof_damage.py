"""The readers of msprof's timelines and tables on text damaged anywhere: they lose what is damaged, nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helpers.thorough import drawn
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from readers.ascend_reading import find, read_source

from tracetool.readers.msprof import READER

if TYPE_CHECKING:
    from pathlib import Path

    from readers.ascend_reading import Read

SAME_FILE = drawn(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
PID = 2731529 << 10 | 13 << 5
COUNT = 6
SUMMARY = ["Device_id,Op Name,OP Type,Stream ID,Task Start Time(us),Task Duration(us),Input Shapes"]
SUMMARY += [f'0,k{n},MatMulV3,2,1780676244313{n}89.000\t,87.380,"""1,{n};4"""' for n in range(COUNT)]
EVENTS = [{"name": "process_name", "ph": "M", "pid": PID, "tid": 0, "args": {"name": "Ascend Hardware"}}]
EVENTS += [{"name": "thread_name", "ph": "M", "pid": PID, "tid": 2, "args": {"name": "Stream 2"}}]
TASKS = [
    {
        "name": f"k{n}", "ph": "X", "pid": PID, "tid": 2, "ts": f"1780676244313{n}89.000", "dur": 87.38,
        "args": {"Task Type": "AI_CORE", "connection_id": n},
    }
    for n in range(COUNT)
]  # fmt: skip

# Where, and what instead: bytes of one file of a tree.
DAMAGE = st.tuples(
    st.floats(0, 1), st.integers(0, 40), st.binary(max_size=6) | st.sampled_from([b'"', b"{", b"][", b"\n"])
)


def damaged(text: bytes, change: tuple[float, int, bytes]) -> bytes:
    at = int(change[0] * len(text))
    return text[:at] + change[2] + text[at + change[1] :]


def kernels(read: Read) -> set[tuple[str, int, int]]:
    return {(r["name"], r["start_ns"], r["duration_ns"]) for r in read.events("kernel")}


def whole(folder: Path, name: str, text: bytes) -> list[Read]:
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / name).write_bytes(text)
    return [read_source(READER, source) for source in find(READER, folder).sources]


EXPECTED = {(f"k{n}", 1780676244313089000 + n * 100_000, 87380) for n in range(COUNT)}


@SAME_FILE
@given(change=DAMAGE)
def test_table(tmp_path: Path, change: tuple[float, int, bytes]) -> None:
    head, *records = (f"{line}\n".encode() for line in SUMMARY)
    text = damaged(b"".join(records), change)
    (found,) = whole(tmp_path / "x", "op_summary_1.csv", head + text)
    # A lone carriage return ends no record: what follows one is touched.
    lines = [line + b"\n" for line in text.split(b"\n")[:-1]]
    untouched = {e for e in EXPECTED for r in records if e[0].encode() in r and r in lines}
    assert kernels(found) >= untouched
    assert found.advanced == found.source.size_bytes
    lost = COUNT - len(untouched)
    assert lost <= 3 + change[2].count(b"\n")


@SAME_FILE
@given(change=DAMAGE)
def test_timeline(tmp_path: Path, change: tuple[float, int, bytes]) -> None:
    head = json.dumps(EVENTS)[:-1].encode() + b", "
    pieces = [json.dumps(task).encode() for task in TASKS]
    text = damaged(b", ".join(pieces) + b"]", change)
    (found,) = whole(tmp_path / "x", "msprof_1.json", head + text)
    at = int(change[0] * len(b", ".join(pieces) + b"]"))
    place, untouched = 0, set()
    for number, piece in enumerate(pieces):
        end = place + len(piece)
        # An event beside the damage may be swallowed by a bracket or quote that the damage opens.
        if end + 2 <= at or place > at + change[1] + 1:
            untouched.add(f"k{number}")
        place = end + 2
    assert {name for name, _, _ in kernels(found)} >= untouched
    assert found.advanced == found.source.size_bytes
