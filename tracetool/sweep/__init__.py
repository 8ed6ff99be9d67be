"""Many what-ifs at once: grids over schedules, links, memory and microbatches."""

from __future__ import annotations

from tracetool.sweep.grid import Grid
from tracetool.sweep.pareto import Price
from tracetool.sweep.results import Best, Knee, Sweep, SweepPoint
from tracetool.sweep.run import sweep

__all__ = ["Best", "Grid", "Knee", "Price", "Sweep", "SweepPoint", "sweep"]
