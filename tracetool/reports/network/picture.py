"""Traffic as a heat map of ranks beside bars of tiers; and what networks are built of, as bars."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracetool.reports.picture import SERIES, save
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.network.fabric import DomainSize
    from tracetool.network.traffic import Traffic
    from tracetool.reports import RunFacts
    from tracetool.reports.network import FabricsInfo
    from tracetool.reports.picture import PictureFormat
    from tracetool.whatif.on_network import OnNetwork

MOST_CELLS = 512
"""Cells along a side of the map: of more ranks several share one, which shows their sum."""


_TICKS = 5
"""Sizes that the scale of colours names, from the least to the most."""


def traffic_picture(carried: OnNetwork, facts: RunFacts, picture_format: PictureFormat) -> bytes:
    """Who sends how much to whom, which tier carries it, and the step against the size of HB domains if asked for."""
    return save(partial(traffic_figure, carried, facts.name), picture_format)


def traffic_figure(carried: OnNetwork, name: str = "") -> Figure:
    """The same as a figure.

    Args:
        carried: The traffic.
        name: What the job is called; by default as its shapes say, if it has any.
    """
    from matplotlib.figure import Figure

    has_sizes = carried.knee is not None
    figure = Figure(figsize=(14 if has_sizes else 10, 5), layout="constrained")
    heat, bars, *line = figure.subplots(1, 3 if has_sizes else 2, width_ratios=(3, 2, 2) if has_sizes else (3, 2))
    draw_heat(heat, carried.job.traffic)
    tiers = carried.tier_bytes()
    bars.barh(list(tiers), [size / 2**30 for size in tiers.values()], color=SERIES[0])
    for place, size in enumerate(tiers.values()):
        bars.annotate(format_size(size), (size / 2**30, place), (3, 0), textcoords="offset points", va="center")
    bars.margins(x=0.35)
    bars.set_xlabel("GiB a step, by the tier\nat which both ranks meet")
    bars.spines[["top", "right"]].set_visible(False)
    bars.invert_yaxis()
    if carried.knee is not None:
        _draw_sizes(line[0], carried.domains, carried.knee)
    silent = f"{carried.job.traffic.silent_ratio:.1%} of pairs exchange nothing"
    figure.suptitle(f"{name or carried.shapes or 'Traffic'} on {carried.seating.network.name}: {silent}")
    return figure


def _draw_sizes(axes: Axes, domains: Sequence[DomainSize], knee: int) -> None:
    """The step against the size of HB domains."""
    sizes = [one.devices for one in domains]
    axes.plot(sizes, [one.step_ns / 1e6 for one in domains], marker="o", color=SERIES[0])
    axes.axvline(knee, color=SERIES[1], linestyle="--", label=f"knee: {knee}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices of an HB domain")
    axes.set_ylabel("step in ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()


def draw_heat(axes: Axes, traffic: Traffic) -> None:
    """A cell per pair of ranks, or of as many ranks as fit.

    Args:
        axes: Where.
        traffic: What.
    """
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    each = -(-traffic.ranks // MOST_CELLS)
    side = -(-traffic.ranks // each)
    cells = np.zeros(side * side)
    np.add.at(cells, traffic.src // each * side + traffic.dst // each, traffic.payload_bytes)
    shown = np.ma.masked_equal(cells.reshape(side, side), 0)
    low, high = (int(shown.min()), int(shown.max())) if shown.count() else (1, 1)
    # Equal bytes are in the middle of a scale, on which nothing else is.
    norm = LogNorm(low, high) if low < high else LogNorm(low / 2, 2 * high)
    image = axes.imshow(
        shown,
        norm=norm,
        cmap="viridis",
        interpolation="nearest",
        extent=(-0.5, side * each - 0.5, side * each - 0.5, -0.5),
    )
    for axis, label in ((axes.xaxis, "receiving rank"), (axes.yaxis, "sending rank")):
        axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        axis.set_label_text(label)
    if each > 1:
        axes.set_title(f"{each} × {each} ranks in a cell")
    if shown.count():
        ticks = np.geomspace(low, high, _TICKS if low < high else 1)
        bar = axes.figure.colorbar(image, ax=axes, ticks=ticks, format=lambda size, _: format_size(round(size)))
        bar.ax.minorticks_off()
        bar.ax.set_title("a step")


def fabrics_picture(info: FabricsInfo, picture_format: PictureFormat) -> bytes:
    """Switches, links, and money where it is known, of each network against the first."""
    return save(partial(_fabrics, info), picture_format)


def _fabrics(info: FabricsInfo) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    first = info.fabrics[0]
    shares = {
        "switches": [one.switches / first.switches for one in info.fabrics],
        "links": [one.links / first.links for one in info.fabrics],
    }
    if first.cost:
        shares["cost"] = [(one.cost or 0) / first.cost for one in info.fabrics]
    room = 0.8 / len(shares)
    for number, (name, values) in enumerate(shares.items()):
        places = [place + number * room for place in range(len(values))]
        axes.bar(places, [100 * value for value in values], room, label=name, color=SERIES[number])
    axes.set_xticks([place + room * (len(shares) - 1) / 2 for place in range(len(info.fabrics))])
    axes.set_xticklabels([f"{one.kind}\n{one.tiers} tiers" for one in info.fabrics])
    axes.set_ylabel(f"% of {first.kind}")
    axes.set_title(f"{info.devices:,} devices, switches of {info.radix} ports, HB domains of {info.hb_domain}")
    axes.legend()
    return figure
