"""The compiled engine, where it was built: the same results as the plain one, many times as fast."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from tracetool.errors import TraceToolError, UnknownName

if TYPE_CHECKING:
    from types import ModuleType

CHOICE = "TRACETOOL_ENGINE"


def compiled_engine() -> ModuleType | None:
    """The module ``_engine``; None if it was not built or is turned off by ``TRACETOOL_ENGINE=plain``.

    Raises:
        TraceToolError: If ``TRACETOOL_ENGINE=compiled`` insists on it but it is not there.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", "plain", "compiled"}:
        raise UnknownName("engine", choice, ["plain", "compiled"], hint=f"set {CHOICE} to plain, compiled or nothing")
    if choice == "plain":
        return None
    try:
        return import_module("tracetool.replays._engine")
    except ImportError as error:
        if choice != "compiled":
            return None
        raise TraceToolError(
            f"the compiled engine is not there: {error}.",
            hint=f"install tracetool where a C compiler is, or unset {CHOICE}",
        ) from error
