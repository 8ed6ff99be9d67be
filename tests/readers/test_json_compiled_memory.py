"""The compiled event scanner reads nothing outside its window, keeps nothing, and survives without memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import sysconfig
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.event_soup import FIELDS, OWN_KEYS, WANTED
from helpers.recorded import ROOT
from helpers.thorough import is_asked

if TYPE_CHECKING:
    from tracetool.readers.chrome.compiled import Kind

SOURCE = ROOT / "tracetool" / "readers" / "chrome" / "_scan.c"
SANITIZE = ["-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]

TEXT = b"""{"ph":"X","cat":"kernel","tid":"stream 7","ts":1.5,"args":{"dtype":"f","grid":[1,2],"External id":"x"}},
{"ph":"f","cat":"ac2g"},{"ph":"X","cat":"cpu_op","name":"b","ts":2,"args":{"dtype":"g","External id":3}},{"ph":"i"}"""
MANY = b",".join(b'{"ph":"X","name":"%d","tid":"%d!"},{"ph":"%d"}' % (n, n, n) for n in range(100))


def _library(name: str) -> str:
    """Path of a library of gcc's; skips the test where there is none."""
    try:
        done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no gcc")
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        pytest.skip(f"gcc has no {name}")
    return str(path)


# Windows that end anywhere, damaged bytes and failing allocations are tried on the scanner as it is by default
# (test_json_compiled, test_json_compiled_shapes, below); a compiler with sanitizers sees what reads beyond without a
# trace.
@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="sanitizers are preloaded the Linux way")
def test_sanitizers_find_nothing_in_random_text(tmp_path: Path) -> None:
    """Of the scanner as it is built, and without SSE2.

    Each case is another text: what only one in hundreds of them does is reached by all 400 of a thorough run, which
    cuts off a long text behind each of its bytes, too, and tries the scanner without SSE2.
    """
    cases, every = ("400", "1") if is_asked() else ("20", "37")
    preload = f"{_library('libasan.so')} {_library('libubsan.so')}"
    modules: dict[Path, list[str]] = {tmp_path / "as_built.so": []}
    modules |= {tmp_path / "without_sse2.so": ["-U__SSE2__"]} if is_asked() else {}
    include = f"-I{sysconfig.get_path('include')}"
    for module, flags in modules.items():
        subprocess.run(["gcc", *SANITIZE, *flags, "-shared", "-fPIC", include, SOURCE, "-o", module], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "helpers.scan_fuzz", "20240229", cases, every, *modules],
        cwd=ROOT / "tests",
        env={**os.environ, "LD_PRELOAD": preload, "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [f"{cases} cases"] * len(modules)


def test_nothing_is_kept() -> None:
    pytest.importorskip("tracetool.readers.chrome._scan", reason="the compiled scanner was not built")
    from tracetool.readers.chrome import _scan

    fields = [(key.encode(), kind, in_args) for key, kind, in_args in FIELDS]

    def rounds(count: int) -> int:
        for _ in range(count):
            scanner = _scan.Scanner(fields, WANTED)
            scanner.scan(TEXT, 0, len(TEXT))
            scanner.scan(TEXT, 0, len(TEXT) // 2)
            bad: Any
            for bad in ([*fields, (b"x", "no kind", False)], [*fields, b"x"]):
                with pytest.raises((TypeError, ValueError)):
                    _scan.Scanner(bad, WANTED)
            with pytest.raises(ValueError, match="outside"):
                scanner.scan(TEXT, 0, len(TEXT) + 1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = rounds(100)
        kept = rounds(400) - before
    finally:
        tracemalloc.stop()
    # The smallest of objects kept in each round would be 6.4 kB.
    assert kept < 4096


@pytest.mark.parametrize("text", [TEXT, MANY], ids=["few", "many"])
@pytest.mark.parametrize("own", [FIELDS, OWN_KEYS], ids=["any shape", "known shapes"])
def test_it_survives_each_allocation_that_fails(text: bytes, own: list[tuple[str, Kind, bool]]) -> None:
    pytest.importorskip("tracetool.readers.chrome._scan", reason="the compiled scanner was not built")
    testing = pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")
    from tracetool.readers.chrome import _scan

    fields = [(key.encode(), kind, in_args) for key, kind, in_args in own]
    expected = _scan.Scanner(fields, WANTED).scan(text, 0, len(text))
    failures = 0
    for n in range(1, 20_000):
        result = None
        testing.set_nomemory(n, n + 1)
        try:
            result = _scan.Scanner(fields, WANTED).scan(text, 0, len(text))
        except MemoryError:
            failures += 1
        finally:
            testing.remove_mem_hooks()
        assert result in (None, expected)
        if result is not None and n > failures + 50:
            break
    assert failures > 20
