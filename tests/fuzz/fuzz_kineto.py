"""Fuzz target: any bytes as a Kineto file, both scanners: ``python tests/fuzz/fuzz_kineto.py -max_total_time=600``.

Nothing but the tool's own errors may be raised, and both scanners must find the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tracetool.readers"]):
    from tracetool.errors import TraceToolError
    from tracetool.readers import Source, SourceReport
    from tracetool.readers.kineto import KinetoReader

_FOLDER = Path(tempfile.mkdtemp(prefix="tracetool-fuzz-"))
_SCANNERS = ("plain", "compiled")


def read(path: Path, scanner: str, keep: frozenset[str]) -> tuple[object, ...]:
    """Every table and count, or the error."""
    os.environ["TRACETOOL_SCANNER"] = scanner
    reader, report = KinetoReader(), SourceReport()
    source = Source("kineto", path, (path,))
    found: dict[str, list[dict[str, object]]] = {}
    try:
        with closing(reader.read(source, 0, reader.identify(source), keep, report, lambda _: None)) as tables:  # type: ignore[type-var]
            for name, rows in tables:
                found.setdefault(name, []).extend(rows.to_pylist())
    except TraceToolError as error:
        return ("error", error.message)
    return found, report.rows, report.dropped, report.repaired, report.skipped


def one(data: bytes) -> None:
    """One input; the first byte chooses how it is read."""
    kind, text = data[:1], data[1:]
    path = _FOLDER / "rank0.json"
    if kind in (b"a", b"b"):
        text = b'{"schemaVersion":1,"traceEvents":[' + text
    path.write_bytes(text)
    reader = KinetoReader()
    if not reader.find([path]).sources:
        return
    keep = frozenset({"args"} if kind == b"b" else ())
    plain, compiled = (read(path, scanner, keep) for scanner in _SCANNERS)
    if plain != compiled:
        raise AssertionError(f"scanners differ:\n{plain}\n{compiled}")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
