"""Keeps tests away from the user's cache, and from the speed of the machine."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import reconstruct_once
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A busy machine makes no property false.
settings.register_profile("tracetool", deadline=None)
settings.load_profile("tracetool")


def pytest_collection_finish() -> None:
    """Imports and tests stay: to look through them for garbage again and again took a seventh of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACETOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _reconstruct_once() -> Iterator[None]:
    """Commands run in this process and mostly on the same recordings: each is reconstructed once."""
    with pytest.MonkeyPatch.context() as patch:
        for room in ("tracetool.reconstruction", "tracetool.ingestion.runs", "tracetool.stragglers.measured"):
            patch.setattr(import_module(room), "reconstruct", reconstruct_once)
        yield
