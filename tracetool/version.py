"""The version of this tool, and which code it is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def code_digest() -> str:
    """SHA-256 over the tool's own files: two installs that may read or reconstruct differently differ in it."""
    import hashlib

    package = Path(__file__).parent
    total = hashlib.sha256()
    for file in sorted(f for f in package.rglob("*") if f.suffix in (".py", ".sql", ".c", ".h")):
        total.update(f"{file.relative_to(package).as_posix()}\n".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
