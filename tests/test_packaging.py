"""What is imported when, what the package offers, and what is built."""

from __future__ import annotations

import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.recorded import ROOT, SAMPLES, derived
from helpers.thorough import spread

import tracetool
from tracetool.version import VERSION_LINE

HEAVY = ("polars", "pyarrow", "duckdb", "matplotlib", "numpy", "msgspec", "rich", "isal", "jinja2")


def _loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print('\\n' + ' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


# The others are found by what each of them alone imports.
@spread(
    "code",
    [
        "import tracetool",
        "from tracetool.cli import run; run(['--help'])",
        "from tracetool.cli import run; run(['--version'])",
        "from tracetool.cli import run; run(['replay', '--help'])",
        "from tracetool.cli import run; run(['report', '--help'])",
        "from tracetool.cli import run; run(['schedules', 'geopipe'])",
        "from tracetool.cli import run; run(['help'])",
        "from tracetool.cli import run; run(['help', 'metrics'])",
        "from tracetool.cli import run; run(['help', 'replay'])",
    ],
    [
        "from tracetool.cli import run; run(['--help'])",
        "from tracetool.cli import run; run(['replay', '--help'])",
        "from tracetool.cli import run; run(['schedules', 'geopipe'])",
    ],
)
def test_light_commands_import_no_heavy_package(code: str) -> None:
    assert _loaded_after(code) & set(HEAVY) == set()


def test_the_version_does_not_load_what_reads_metadata_of_packages_or_writes_files() -> None:
    assert (
        _loaded_after("from tracetool.cli import run; run(['--version'])") & {"email", "zipfile", "tempfile"} == set()
    )


def test_the_version_alone_loads_no_commands_and_says_the_same() -> None:
    asked = "import sys; sys.argv[1:] = ['--version']; from tracetool.__main__ import main; main()"
    assert _loaded_after(asked) & {"click", "json", "dataclasses"} == set()
    said = [
        subprocess.run([sys.executable, *how, "--version"], capture_output=True, text=True, check=True).stdout
        for how in (["-m", "tracetool"], ["-c", "import sys; from tracetool.cli import main; main(sys.argv[1:])"])
    ]
    assert said == [f"{VERSION_LINE}\n"] * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that takes nothing")
def test_a_version_that_cannot_be_written_ends_like_any_other_answer() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tracetool", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "Error: [Errno 28] No space left on device\n")


def test_a_replay_of_a_run_loads_neither_what_reads_traces_nor_what_draws_nor_metadata_of_packages() -> None:
    """Loading them took as long as the replay itself."""
    run = derived(SAMPLES / "h100-1f1b").path
    loaded = _loaded_after(
        f"from tracetool.cli import run; assert run(['replay', {str(run)!r}, '--schedule', 'gpipe']) == 0"
    )
    others = {"email", "zipfile", "multiprocessing", "concurrent", "duckdb", "polars", "pyarrow", "matplotlib"}
    assert loaded & others == set()
    assert {"numpy", "tracetool"} <= loaded


def test_every_exported_name_loads() -> None:
    for name in tracetool.__all__:
        assert getattr(tracetool, name) is not None
    assert set(tracetool.__all__) == set(dir(tracetool))


def _verbs() -> set[str]:
    return {name for name in tracetool.__all__ if inspect.isfunction(getattr(tracetool, name))}


def test_no_module_is_named_like_a_verb() -> None:
    """Python puts an imported module into its package, where one named like a verb would take the verb's place."""
    rooms = {module.name for module in pkgutil.iter_modules(tracetool.__path__)}
    assert len(rooms) > 20
    assert len(_verbs()) > 10
    assert rooms & _verbs() == set()


# Modules that put something else into the package as they are imported are found here, by importing each.
@pytest.mark.thorough
def test_no_module_hides_a_verb() -> None:
    code = """
import inspect, pkgutil, tracetool
from importlib import import_module
verbs = [name for name in tracetool.__all__ if inspect.isfunction(getattr(tracetool, name))]
names = [m.name for m in pkgutil.walk_packages(tracetool.__path__, "tracetool.") if not m.name.endswith("__main__")]
for name in names:
    import_module(name)
assert len(verbs) > 10 and len(names) > 200, (verbs, len(names))
print([name for name in verbs if not inspect.isfunction(getattr(tracetool, name))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_installed_version_is_the_packages_own() -> None:
    assert version("tracetool") == tracetool.__version__


def _build(work: Path, what: list[str], compiler: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run pip on a copy of the sources: nothing built before is found, and nothing is left in the tree."""
    if find_spec("pip") is None or find_spec("setuptools") is None:
        pytest.skip("building needs pip and setuptools")
    source = work / "source"
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "tracetool", source / "tracetool", ignore=built)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **({"CC": compiler} if compiler else {})}
    command = [sys.executable, "-m", "pip", *what, "--no-deps", "--no-build-isolation", "--no-index", str(source)]
    return subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)


def _kept() -> set[str]:
    """What of the tree belongs into what is built."""
    patterns = ("*.json", "*.md", "*.py", "*.pyi", "*.sql", "static/*", "py.typed")
    return {path.relative_to(ROOT).as_posix() for each in patterns for path in (ROOT / "tracetool").rglob(each)}


# To compile both parts optimized takes most of it; what else the wheel holds is tried by default below.
@pytest.mark.thorough
def test_the_wheel_holds_the_package_and_the_compiled_parts(tmp_path: Path) -> None:
    compiler = (sysconfig.get_config_var("CC") or "").partition(" ")[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    if "CC" in os.environ or shutil.which(compiler) is None or not header.exists():
        pytest.skip("the compiler that Python was built with is not here")
    done = _build(tmp_path, ["wheel", "--wheel-dir", str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("tracetool-*.whl")
    assert wheel.name.startswith(f"tracetool-{tracetool.__version__}-")
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    extensions = {f"tracetool/readers/chrome/_scan{suffix}", f"tracetool/replays/_engine{suffix}"}
    assert held == _kept() | extensions


def test_what_is_built_is_all_of_the_package() -> None:
    code = """
from setuptools import Distribution
made = Distribution({"script_name": "setup.py"})
made.parse_config_files()
made.include_package_data = False  # what a manifest names besides, for which one is written
build = made.get_command_obj("build_py")
build.ensure_finalized()
print(*sorted(path[len(build.build_lib) + 1 :] for path in build.get_outputs(include_bytecode=0)), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*done.stdout.replace(os.sep, "/").splitlines()} == _kept()


# What is in it is tried above, by what builds it; here it is installed where no compiler is.
@pytest.mark.thorough
def test_without_a_compiler_it_installs_silently_and_works(tmp_path: Path) -> None:
    target = tmp_path / "target"
    # An older pip's and setuptools' own remarks are not ours to judge: only what the missing compiler adds.
    done = _build(tmp_path, ["install", "--quiet", "--target", str(target)], compiler="/bin/false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/bin/false" not in done.stdout + done.stderr
    held = {path for path in (target / "tracetool").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(target).as_posix() for path in held} == _kept()
    program = """
import sys
from tracetool.cli import run
from tracetool.readers.chrome import compiled as json_compiled
from tracetool.replays.engine import compiled_engine
print(json_compiled.__file__, json_compiled.available(), compiled_engine())
sys.exit(run(["schedules"]))
"""
    env = {**os.environ, "PYTHONPATH": str(target)}
    env.pop("TRACETOOL_SCANNER", None)
    env.pop("TRACETOOL_ENGINE", None)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, *rest = ran.stdout.splitlines()
    assert first == f"{target / 'tracetool' / 'readers' / 'chrome' / 'compiled.py'} False None"
    assert any("geopipe" in line for line in rest)
