"""Keeps tests away from the user's cache, and from the speed of the machine."""

from __future__ import annotations

import gc
import os
import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import parsed
from helpers.asked_once import answers_kept
from helpers.browser import chromium
from helpers.figures import figures_undrawn
from helpers.recorded import OWN_CACHE, derive_once, fetched_once, reconstruct_once, views_once, write_once
from helpers.shared import FOLDER
from helpers.thorough import ASKED, FIRST_EXAMPLES, drawn, is_asked
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from helpers.browser import Browser

# Where nothing compiled is kept, each of some hundred processes compiles the product anew, and each worker the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A Run is some fifty small files and folders: a disk takes about as long to make them as all that is computed of it.
IN_MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108 - pytest makes a folder of its own in it
if os.access(IN_MEMORY, os.W_OK):
    room = os.statvfs(IN_MEMORY)
    # Some tests build what they then run.
    if room.f_bavail * room.f_frsize > ENOUGH_BYTES and not room.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

LEFT = pytest.StashKey[int]()
SELDOM = (1_000_000, 1000, 1000)
"""Thresholds of Python's collector between modules of tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="all of every matrix, and many examples of each property")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("thorough"):
        os.environ[ASKED] = "1"
    # A busy machine makes no property false.
    settings.register_profile("tracetool", drawn(100))
    settings.load_profile("tracetool")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every other worker begins at the end: what one has compiled before they meet, the other reads."""
    report = yield
    if isinstance(collector, pytest.Dir) and os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        report.result = (report.result or [])[::-1]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mypy begins first: begun last, as its file is called, one core waits for it alone.

    Then come those that walk through the product's syntax trees, for one worker to parse them.
    """
    left = [] if is_asked() else [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left)
    config.stash[LEFT] = len(left)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = len(left)
    items[:] = [item for item in items if is_asked() or not item.get_closest_marker("thorough")]
    items.sort(key=lambda item: (item.path.name != "test_quality.py", not _walks_trees(item), item.path))


def _walks_trees(item: pytest.Item) -> bool:
    names = vars(item.module) if isinstance(item, pytest.Function) else {}
    return any(getattr(value, "__module__", None) == parsed.__name__ for value in names.values())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker left, every other one left too."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(LEFT, 0)
    if left:
        terminalreporter.write_line(
            f"{left} tests, and more than {FIRST_EXAMPLES} examples of a property, are left to --thorough"
        )


def pytest_collection_finish() -> None:
    """Imports and tests stay: to look through them for garbage again and again took a seventh of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a module leaves is looked through once, also for what was never closed, and then stays.

    Workers keep what was worked out once for all: to look through it again and again took a twentieth of their time.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each worker has a cache of its own; what is shared of one run of the tests lies in that run's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        own = str(tmp_path_factory.mktemp("cache"))
        patch.setenv("TRACETOOL_CACHE", own)
        patch.setenv(OWN_CACHE, own)
        if "PYTEST_XDIST_WORKER" in os.environ:
            shared = tmp_path_factory.getbasetemp().parent / "shared"
            shared.mkdir(exist_ok=True)
            patch.setenv(FOLDER, str(shared))
        yield


@pytest.fixture(scope="session", autouse=True)
def _read_and_reconstruct_once(_own_cache: None) -> Iterator[None]:
    """Commands run in this process and mostly on the same recordings: each is read and reconstructed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("tracetool.tables"), "RARELY", SELDOM)
        for room in ("tracetool.reconstruction", "tracetool.ingestion.runs", "tracetool.stragglers.measured"):
            patch.setattr(import_module(room), "reconstruct", reconstruct_once)
        patch.setattr(import_module("tracetool.ingestion"), "write_run", write_once)
        patch.setattr(import_module("tracetool.ingestion.runs"), "derive", derive_once)
        lens = import_module("tracetool.store.query").Lens
        patch.setattr(lens, "_fetched", fetched_once(lens._fetched))
        run = import_module("tracetool.store.run").Run
        views = cached_property(views_once(run._views.func))
        views.__set_name__(run, "_views")
        patch.setattr(run, "_views", views)
        yield


@pytest.fixture(scope="session")
def browser_() -> Iterator[Browser]:
    """To start one takes as long as to show some ten pages."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Pictures are made, but not drawn."""
    with figures_undrawn():
        yield


@pytest.fixture(scope="module")
def coarse_knees(asked_once: None) -> Iterator[None]:
    """Knees to a quarter octave: as many and as wide as those to 1/512 of one, which take most of a sweep's replays."""
    bend = import_module("tracetool.sweeps.bend")
    with pytest.MonkeyPatch.context() as patch, answers_kept("coarse knees"):
        patch.setattr(bend._highest, "__defaults__", ((4,),))
        patch.setattr(bend, "_PARTS", (4,))
        yield


@pytest.fixture(scope="module")
def asked_once(_read_and_reconstruct_once: None) -> Iterator[None]:
    """What commands of this module work out is worked out once for the same question: ``usefixtures`` asks for it."""
    with answers_kept():
        yield
