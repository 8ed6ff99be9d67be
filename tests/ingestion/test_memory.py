"""The memory of reading does not grow with the file (as pytorch/kineto#595 and
facebookresearch/HolisticTraceAnalysis#332 ask for)."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import pytest
from helpers.peak_memory import ingest_peak_mb
from helpers.recorded import SAMPLES
from helpers.thorough import spread

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_MB = 300


def _write(path: Path, size_mb: int) -> int:
    """A trace of at least this much text, compressed as members that repeat; the number of copies in it."""
    text = gzip.decompress((SAMPLES / "h100-1f1b-annotated" / "rank0.json.gz").read_bytes())
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    found = re.search(rb"\}\s*\](?=[^\]]*\Z)", text)
    assert found is not None
    events = text[begin : found.start() + 1]
    copies = -(-size_mb * 10**6 // len(events))
    packed = gzip.compress(events + b",\n", 1)
    with path.open("wb") as file:
        file.write(gzip.compress(text[:begin]))
        for _ in range(copies - 1):
            file.write(packed)
        file.write(gzip.compress(events + text[found.end() - 1 :]))
    return copies


# A large file takes little by default (readers/test_hostile); here one ten times as large takes no more.
@pytest.mark.thorough
# The plain scanner, which is there where nothing compiles, keeps other things of a block.
@spread(("scanner", "sizes_mb"), [("", (10, 100)), ("plain", (4, 30))], 1)
def test_the_peak_does_not_grow_with_the_file(scanner: str, sizes_mb: tuple[int, int], tmp_path: Path) -> None:
    peaks = []
    for size in sizes_mb:
        path = tmp_path / f"rank0_{size}.json.gz"
        _write(path, size)
        peaks.append(ingest_peak_mb(path, tmp_path / "x.run", TRACETOOL_SCANNER=scanner))
    assert max(peaks) < LIMIT_MB
    # What a process takes differs by some 20 MB from run to run. 1 GB of text is read in the benchmarks.
    assert peaks[1] < peaks[0] + 80
