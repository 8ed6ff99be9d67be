"""The default run does each benchmark once, with its small sizes; ``--benchmark-enable`` measures, with all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("benchmark_enable"):
        return
    large = [item for item in items if item.get_closest_marker("large")]
    config.hook.pytest_deselected(items=large)
    items[:] = [item for item in items if not item.get_closest_marker("large")]
