"""What a command takes at most, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Not ru_maxrss: it survives exec, so a child that was forked from a large test process starts at that one's size.
# Without pandas, which OR-tools brings into the tests' environment and pyarrow then loads.
_RUN = """
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas())
from pathlib import Path
from tracetool.cli import run
code = run(["ingest", sys.argv[1], "-o", sys.argv[2], "-q", "--force", "--jobs", "1"])
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(code, int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0]))
"""


def ingest_peak_mb(path: Path, out: Path, **environment: str) -> float:
    """Ingest a file; the most memory of its own the process took, in MiB. The command must succeed.

    Pages of libraries do not count: how many are resident depends on what the page cache holds (100 to 160 MiB after
    the imports alone).
    """
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(path), str(out)],
        capture_output=True, text=True, check=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    code, peak_kb = done.stdout.split()[-2:]
    assert code == "0", done.stderr
    return int(peak_kb) / 1024
