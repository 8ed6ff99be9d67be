"""Plug-ins of third parties, as installed packages declare them."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from tracetool.errors import BrokenPlugin
from tracetool.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plug_in_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_schedule.py").write_text("import a_package_that_there_is_not\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    declared = EntryPoint("mine", "broken_schedule:SCHEDULE", "tracetool.schedules")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [declared])
    schedules: Registry[object] = Registry("schedule", {"sqrt": "math:sqrt"}, "tracetool.schedules")
    assert schedules.names() == ["sqrt", "mine"]
    assert schedules.get("sqrt") is not None
    with pytest.raises(BrokenPlugin, match=r"'mine' \(broken_schedule:SCHEDULE\).*a_package_that_there_is_not"):
        schedules.get("mine")
