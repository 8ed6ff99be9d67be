"""Commands run in this process and mostly on the same recordings: each is reconstructed once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from helpers.comparing import QUIET_STEPS, report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

# The package's own attribute of that name is the verb.
_ROOM = import_module("tracetool.reconstruction")
_RECONSTRUCT: Callable[..., Reconstruction] = _ROOM.reconstruct
_known: dict[object, Reconstruction] = {}


def _once(run: Run, **how: Any) -> Reconstruction:
    if "account" in how:
        return _RECONSTRUCT(run, **how)  # it takes up what is found
    key = (str(run.path), run.manifest.get("digest"), *sorted(how.items()))
    if key not in _known:
        _known[key] = _RECONSTRUCT(run, **how)
    return _known[key]


@pytest.fixture(autouse=True)
def _reconstruct_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ROOM, "reconstruct", _once)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return report(tmp_path / "base.json")


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return report(tmp_path / "new.json", tuple(f * 1.05 for f in QUIET_STEPS))
