"""Many what-ifs at once: grids over schedules, links, memory and microbatches."""

from __future__ import annotations

from tracetool.sweeps.grid import Grid
from tracetool.sweeps.pareto import Price
from tracetool.sweeps.results import Best, Knee, Sweep, SweepPoint
from tracetool.sweeps.run import sweep

__all__ = ["Best", "Grid", "Knee", "Price", "Sweep", "SweepPoint", "sweep"]
