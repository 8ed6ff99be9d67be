"""The picture of a sweep: lines where bandwidth or latency was swept, a map where both were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.sweep.facets import bandwidths_of, latencies_of
from tracetool.reports.sweep.lines import render_sweep_lines
from tracetool.reports.sweep.map import render_sweep_map

if TYPE_CHECKING:
    from tracetool.reports.picture import PictureFormat
    from tracetool.sweeps import Sweep


def render_sweep(sweep: Sweep, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """Draw a sweep as what it varies asks for.

    Args:
        sweep: Points and knees.
        format: File format.

    Returns:
        The file; equal input gives equal bytes.

    Raises:
        ScenarioError: If neither bandwidth nor latency was swept, or nothing could be replayed.
    """
    both = len(bandwidths_of(sweep.points)) > 1 and len(latencies_of(sweep.points)) > 1
    return render_sweep_map(sweep, format=format) if both else render_sweep_lines(sweep, format=format)
