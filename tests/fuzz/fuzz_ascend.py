"""Fuzz target: any bytes as a file of an Ascend rank: ``python tests/fuzz/fuzz_ascend.py -max_total_time=300``.

The first byte chooses which file of the committed sample is replaced; nothing but the tool's own errors may be raised.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tracetool.readers"]):
    from tracetool.errors import TraceToolError
    from tracetool.ingestion.discover import discover
    from tracetool.readers import READERS, SourceReport

_SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ascend-1f1b" / "rank_1_ascend_pt"
_FOLDER = Path(tempfile.mkdtemp(prefix="tracetool-fuzz-")) / "rank_1_ascend_pt"
_FILES = (
    "kernel_details.csv", "communication.json", "communication_matrix.json", "memory_record.csv", "step_trace_time.csv",
)  # fmt: skip
_LINES = 4


def seeds(folder: Path) -> None:
    """Write the beginning of each file of the sample as an input to start from."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(_FILES):
        content = (_SAMPLE / "ASCEND_PROFILER_OUTPUT" / name).read_bytes()
        text = b"\n".join(content.split(b"\n")[:_LINES])[:3000]
        (folder / name).write_bytes(bytes([number]) + text)


def one(data: bytes) -> None:
    """One input."""
    if not data:
        return
    name = _FILES[data[0] % len(_FILES)]
    path = _FOLDER / "ASCEND_PROFILER_OUTPUT" / name
    whole = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        for found in discover([_FOLDER]).sources:
            reader, report = READERS.get(found.reader), SourceReport()
            for _, rows in reader.read(
                found.source, found.stored_rank, found.identity, frozenset(), report, lambda _: None
            ):
                rows.validate(full=True)
    except TraceToolError:
        pass
    finally:
        path.write_bytes(whole)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        seeds(Path(sys.argv[2]))
        sys.exit()
    shutil.copytree(_SAMPLE, _FOLDER)
    for name_of_file in _FILES:
        small = _FOLDER / "ASCEND_PROFILER_OUTPUT" / name_of_file
        if small.suffix == ".csv":
            small.write_bytes(b"\n".join(small.read_bytes().split(b"\n")[:_LINES]) + b"\n")
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
