"""What a command works out, once: a test that shows one answer at several widths asks for it as often."""

from __future__ import annotations

import inspect
import pickle
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tracetool.explore.recorded_space import RecordedSpace
from tracetool.reconstruction import Reconstruction
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WORKING_OUT = (
    ("tracetool.reports.recording.summary", "run_summary"),
    ("tracetool.cli.facts", "crossing_facts"),
    ("tracetool.advice", "decide"),
    ("tracetool.advice", "sweep"),
    ("tracetool.advice.cotune", "co_tune"),
    ("tracetool.explanation", "explain"),
    ("tracetool.explore.answer", "explore"),
    ("tracetool.explore.recorded", "explore_recording"),
    ("tracetool.sweeps", "sweep"),
    ("tracetool.whatif.answer", "answer"),
    ("tracetool.stragglers", "find_stragglers"),
    ("tracetool.overlap.recording", "read_recordings"),
    ("tracetool.overlap.answer", "answer_for"),
    ("tracetool.studies.geopipe.reproduce", "study_geopipe"),
)
"""Functions that commands import when they run, or other ones of these call. None of them depends on the terminal."""


@contextmanager
def answers_kept(apart: str = "") -> Iterator[None]:
    """Meanwhile, commands that ask for the same again are given what was worked out before.

    Args:
        apart: What is worked out otherwise meanwhile: kept by itself, nobody else is given it.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name in _WORKING_OUT:
            room = import_module(module)
            function = getattr(room, name)
            patch.setattr(room, name, _remembering(getattr(function, _BY, function), apart))
        yield


_BY = "worked_out_by"


@cache
def _remembering(function: Callable[..., Any], apart: str) -> Callable[..., Any]:
    known: dict[object, tuple[object, Any]] = {}
    signature = inspect.signature(function)

    @wraps(function)
    def remembered(*values: Any, **named: Any) -> Any:
        asked = signature.bind(*values, **named).arguments
        work = asked.get("work")
        if work is not None and (work.state is not None or work.ends is not None):
            return function(*values, **named)
        key = tuple((name, _key(value)) for name, value in asked.items() if name not in ("progress", "work"))
        if key not in known:
            # What is known by its identity must live as long.
            known[key] = asked, function(*values, **named)
        return copy(known[key][1])

    setattr(remembered, _BY, function)
    return remembered


def _key(value: object) -> object:
    if isinstance(value, RecordedSpace):
        return tuple(_key(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Run):
        return value.name, value.path.resolve(), value.path.stat().st_mtime_ns
    if isinstance(value, Reconstruction):
        return id(value)
    if isinstance(value, list):
        return tuple(map(_key, value))
    try:
        hash(value)
    except TypeError:
        return pickle.dumps(value)
    return value
