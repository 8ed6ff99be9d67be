"""Reports to compare, as of recordings whose steps took other times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.comparing import QUIET_STEPS, report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return report(tmp_path / "base.json")


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return report(tmp_path / "new.json", tuple(f * 1.05 for f in QUIET_STEPS))
