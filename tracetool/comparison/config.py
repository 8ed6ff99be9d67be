"""Settings of a project: ``[tool.tracetool]`` in pyproject.toml, or a TOML file of the same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import Option, ScenarioError
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from pathlib import Path


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What a project sets; the command line goes ahead of it."""

    fail_on: Annotated[list[str], doc("Limits of tracetool compare, as in bubble_ratio>+2% or step_ns>400ms.")] = []
    least_change: Annotated[str, doc("Least change of a median that counts, as in 2%.")] = "2%"
    alpha: Annotated[
        float, msgspec.Meta(gt=0, lt=1, description="Chance at which the rank test calls equal sets different.")
    ] = 0.01
    informational: Annotated[bool, doc("Whether a closed gate exits with 0.")] = False
    allow_inconclusive: Annotated[bool, doc("Whether limits may be inconclusive (too few steps).")] = False


def find_config(folder: Path) -> Path | None:
    """The nearest pyproject.toml with ``[tool.tracetool]``, from a folder upwards; None if there is none."""
    import tomllib

    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            try:
                tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ScenarioError(
                    f"{path} is no TOML: {error}.", hint=f"correct it, or name another: {Option.CONFIG}"
                ) from error
            if "tracetool" in tools:
                return path
    return None


def read_config(path: Path) -> Config:
    """Read settings from a file, there under ``[tool.tracetool]`` if it has that table, else at the top.

    Raises:
        ScenarioError: If it is no TOML, or holds what no setting is.
    """
    import tomllib

    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        tables = read.get("tool", {})
        return msgspec.convert(tables.get("tracetool", {}) if "tool" in read else read, Config)
    except OSError as error:
        raise ScenarioError(
            f"{path} cannot be read: {error.strerror}.", hint=f"name another file: {Option.CONFIG}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        known = ", ".join(msgspec.structs.asdict(Config())).replace("_", "-")
        raise ScenarioError(f"{path}: {error}.", hint=f"settings are {known}") from error
