"""Every public and recorded Kineto trace, against what an independent parse finds in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from independent import Facts, facts, texts
from recorded import data

from tracetool.ingest import ingest

if TYPE_CHECKING:
    from pathlib import Path

_HTA = ("torch", "facebookresearch+HolisticTraceAnalysis", "tests", "data")

TRACES: dict[str, tuple[tuple[str, ...], str]] = {}
