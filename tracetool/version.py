"""The version of this tool, and which code it is."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

__version__ = "0.1.0"
VERSION_LINE = f"tracetool, version {__version__}"
"""What ``tracetool --version`` prints."""


@cache
def code_digest() -> str:
    """SHA-256 over the tool's own files: two installs that may read or reconstruct differently differ in it."""
    import hashlib

    package = str(Path(__file__).parent)
    total = hashlib.sha256()
    # What every command waits for: Path.rglob takes twice as long.
    for folder, below, names in os.walk(package):
        below.sort()
        for name in sorted(names):
            if name.endswith((".py", ".sql", ".c", ".h")):
                path = os.path.join(folder, name)  # noqa: PTH118
                total.update(f"{path.removeprefix(package)}\n".encode())
                with open(path, "rb") as file:  # noqa: PTH123
                    total.update(hashlib.sha256(file.read()).digest())
    return total.hexdigest()
