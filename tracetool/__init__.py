"""Replay distributed training traces under other pipeline schedules, links and memory limits.

The verbs are ``ingest``, ``reconstruct``, ``build_schedule``, ``replay`` and ``measure``; names are loaded
when first used, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tracetool.version import __version__

_EXPORTS = {
    "Action": "tracetool.model.action",
    "ActionKind": "tracetool.model.action",
    "Link": "tracetool.model.topology",
    "Metrics": "tracetool.metrics",
    "Pipeline": "tracetool.model.pipeline",
    "PipelineShape": "tracetool.model.schedule",
    "Run": "tracetool.store",
    "Scenario": "tracetool.model.scenario",
    "Schedule": "tracetool.model.schedule",
    "Timeline": "tracetool.model.timeline",
    "Topology": "tracetool.model.topology",
    "TraceToolError": "tracetool.errors",
    "answer": "tracetool.whatif",
    "build_schedule": "tracetool.schedules",
    "ingest": "tracetool.ingest",
    "measure": "tracetool.metrics",
    "reconstruct": "tracetool.reconstruct",
    "replay": "tracetool.replay",
}

__all__ = ["__version__", *sorted(_EXPORTS)]  # noqa: PLE0604 - names of lazily loaded objects

if TYPE_CHECKING:
    from tracetool.errors import TraceToolError as TraceToolError
    from tracetool.ingest import ingest as ingest
    from tracetool.metrics import Metrics as Metrics
    from tracetool.metrics import measure as measure
    from tracetool.model.action import Action as Action
    from tracetool.model.action import ActionKind as ActionKind
    from tracetool.model.pipeline import Pipeline as Pipeline
    from tracetool.model.scenario import Scenario as Scenario
    from tracetool.model.schedule import PipelineShape as PipelineShape
    from tracetool.model.schedule import Schedule as Schedule
    from tracetool.model.timeline import Timeline as Timeline
    from tracetool.model.topology import Link as Link
    from tracetool.model.topology import Topology as Topology
    from tracetool.reconstruct import reconstruct as reconstruct
    from tracetool.replay import replay as replay
    from tracetool.schedules import build_schedule as build_schedule
    from tracetool.store import Run as Run
    from tracetool.whatif import answer as answer


def __getattr__(name: str) -> object:
    """Load an exported name from its room."""
    # A submodule of the same name (ingest, replay ...) must not hide the verb it defines.
    if name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tracetool' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names offered to completion."""
    return sorted(__all__)
