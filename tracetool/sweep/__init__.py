"""Many what-ifs at once: grids over schedules, links, memory and microbatches."""

from __future__ import annotations

from tracetool.sweep.results import Knee, Sweep, SweepPoint

__all__ = ["Knee", "Sweep", "SweepPoint"]
