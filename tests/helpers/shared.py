"""What is worked out once in a run of the tests, by whichever worker needs it first: the others read it from disk."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

FOLDER = "TRACETOOL_TESTS_SHARED"
"""Names the folder that the workers of this run share, in the environment; without it nothing is shared."""


@contextmanager
def place_of(*key: object) -> Iterator[Path | None]:
    """Where what this key says is kept, held against the other workers meanwhile; None where nothing is shared."""
    folder = os.environ.get(FOLDER)
    if folder is None or sys.platform == "win32":
        yield None
        return
    import fcntl

    place = Path(folder, hashlib.sha256(repr(key).encode()).hexdigest()[:32])
    with place.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place


def once(make: Callable[[], T], *key: object) -> T:
    """What ``make`` gives, pickled for the other workers; the key says all that it depends on."""
    with place_of(*key) as place:
        if place is not None and place.exists():
            read: T = pickle.loads(place.read_bytes())  # noqa: S301 - written by this run
            return read
        made = make()
        if place is not None:
            place.write_bytes(pickle.dumps(made, protocol=pickle.HIGHEST_PROTOCOL))
        return made
