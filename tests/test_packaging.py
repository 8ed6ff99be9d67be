"""What is imported when, and what the package offers."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import tracetool

HEAVY = ("polars", "pyarrow", "duckdb", "matplotlib", "numpy", "msgspec", "rich", "isal")


def _loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print('\\n' + ' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import tracetool",
        "from tracetool.cli import run; run(['--help'])",
        "from tracetool.cli import run; run(['--version'])",
        "from tracetool.cli import run; run(['replay', '--help'])",
        "from tracetool.cli import run; run(['schedules', 'geopipe'])",
    ],
)
def test_light_commands_import_no_heavy_package(code: str) -> None:
    assert _loaded_after(code) & set(HEAVY) == set()


def test_text_replay_of_a_run_does_not_import_the_plotting_package() -> None:
    assert "matplotlib" not in _loaded_after("import tracetool.cli.replay, tracetool.whatif, tracetool.reports.text")


def test_every_exported_name_loads() -> None:
    for name in tracetool.__all__:
        assert getattr(tracetool, name) is not None
    assert set(tracetool.__all__) == set(dir(tracetool))


def test_the_installed_version_is_the_packages_own() -> None:
    assert version("tracetool") == tracetool.__version__
