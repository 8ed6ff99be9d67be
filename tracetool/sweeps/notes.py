"""What a user should know beside the figures of a sweep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import Option
from tracetool.model.notice import Notice, NoticeCode, Notices
from tracetool.model.scenario import Scenario
from tracetool.units import format_count
from tracetool.whatif.answer import fidelity_of
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT
from tracetool.whatif.remarks import SLOWS_UNDER_LOAD, collective_notes, distrust, host_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.grid import Grid
    from tracetool.sweeps.results import SweepPoint


def notes_of(found: Reconstruction, grids: Sequence[Grid], points: Sequence[SweepPoint]) -> tuple[Notice, ...]:
    """What holds for all points: how far replay misses the recording, and what was not checked or left out."""
    pipeline = found.pipeline
    fidelity, own = fidelity_of(found)
    notes = Notices(distrust(own))
    notes.add(
        NoticeCode.FIDELITY,
        f"fidelity: the observed order, replayed, differs by {fidelity.error_ratio:+.2%} from what was observed",
    )
    if any(point.seen_error_ratio is not None for point in points):
        notes.add(NoticeCode.ERRORS_SEEN, "±: the largest error of such predictions on this tool's own H100 recordings")
    marked = dict.fromkeys(reason for point in points for reason in point.rests_on if point.evidence == "unproven")
    if marked:
        notes.add(
            NoticeCode.UNPROVEN,
            f"unproven (± {UNPROVEN_MARK}): {UNPROVEN_TEXT} ({', '.join(marked)}); never named best ahead of others",
        )
    links = {grid.name: grid.scenario.topology.links for grid in grids}
    shared = next(iter(links.values()))
    if all(each == shared for each in links.values()):
        notes += [Notice(NoticeCode.LINKS_FIXED, f"link {link} stays as given") for link in shared]
    else:
        told = {name: ", ".join(map(str, each)) for name, each in links.items() if each}
        notes += [Notice(NoticeCode.LINKS_DIFFER, f"scenario {name}: {each}") for name, each in told.items()]
    repeated = max(grid.repeated_maps for grid in grids)
    if repeated:
        notes.add(
            NoticeCode.MAPS_REPEATED,
            f"{Option.DC} gives {format_count(repeated, 'map')} of ranks more than once: each was taken once",
        )
    unchecked = sorted({p.schedule for p in points if p.step_ns and p.feasible is None})
    if unchecked:
        notes.add(
            NoticeCode.HBM_UNCHECKED,
            f"what {', '.join(unchecked)} needs in memory is unknown, so the HBM limit was not checked: give "
            f"{Option.ACTIVATION} and {Option.STATIC} (torch: or record with profile_memory=True)",
        )
    if any(grid.scenario.activation_bytes is not None for grid in grids):
        notes.add(
            NoticeCode.GIVEN_MEMORY,
            f"peaks from {Option.ACTIVATION} and {Option.STATIC} leave out transient buffers and gradients",
        )
    sharing = max(
        replace(column.scenario, topology=swept.topology).pipelines_on_link
        for grid in grids
        for column in grid.columns()
        for swept in column.links[:1]
    )
    if sharing > 1:
        notes.add(
            NoticeCode.LINKS_SHARED,
            f"{sharing} equal pipelines share the links: figures are of the slowest ({Option.PIPELINES_ON_LINK})",
        )
    if not all(grid.scenario.interference for grid in grids):
        notes.add(
            NoticeCode.INTERFERENCE_OFF,
            f"slowdown beside communication and under sustained load is left out ({Option.INTERFERENCE.off})",
        )
    elif any(rank.load is not None for rank in pipeline.ranks):
        notes.append(SLOWS_UNDER_LOAD)
    places = dict.fromkeys(column.links[0].topology for grid in grids for column in grid.columns())
    crossing = (collective_notes(pipeline, Scenario(topology)) for topology in places)
    notes += dict.fromkeys(note for of_map in crossing for note in of_map)
    return (*found.notes, *host_notes(found), *notes)
