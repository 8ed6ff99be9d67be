"""What pictures are drawn of in tests: answers with idle time by cause, and sweeps, both made by replay."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeVar

from helpers import synthetic

from tracetool.causes.cause import Cause, Idle
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.replays.scenarios import replay_many
from tracetool.reports.picture import STYLE
from tracetool.schedules import build_schedule
from tracetool.sweeps import Knee, Sweep, SweepPoint
from tracetool.whatif.answer import answer
from tracetool.whatif.memory_limit import fits
from tracetool.whatif.results import Answer, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.timeline import Timeline

MS = 10**6
GIB = 2**30
GBIT = 125_000_000

_Held = TypeVar("_Held", Answer, Result)


def pipeline(p: int, m: int) -> Pipeline:
    """Equal stages of 5 and 10 ms whose forwards keep half a GiB."""
    return synthetic.pipeline(
        p, m, 5 * MS, 10 * MS, payload_bytes=2**24, transfer_ns=MS // 10, activation_bytes=GIB // 2,
        transient_bytes=GIB // 4, static_bytes=8 * GIB, tail_ns=8 * MS, p2p="posted-ahead",
    )  # fmt: skip


def gaps(timeline: Timeline) -> tuple[Idle, ...]:
    """Every gap of every rank within the window, with causes in turn: which is right does not matter to pictures."""
    window = measure(timeline).window_ns
    rows = defaultdict(list)
    for op in timeline.computes():
        rows[op.rank].append(op)
    causes = list(Cause)
    idles: list[Idle] = []
    for rank, ops in rows.items():
        spans = [(op.start_ns, op.end_ns) for op in sorted(ops, key=lambda op: op.start_ns)]
        at = 0
        for start, end in [*spans, (window, window)]:
            if start > at:
                idles.append(Idle(rank, at, start, causes[(len(idles) + rank) % len(causes)]))
            at = max(at, end)
    return tuple(idles)


def with_idles(held: _Held, name: str, idles: Sequence[Idle]) -> _Held:
    """The same with idle time by cause."""
    told: Any = {f.name: getattr(held, f.name) for f in fields(held)}
    if name in told:
        return type(held)(**{**told, name: tuple(idles)})
    kind: Any = type(type(held).__name__, (type(held),), {name: tuple(idles)})
    made: _Held = kind(**told)
    return made


def what_if(
    p: int, m: int, dcs: Sequence[int], *, extra: int = 1, hbm_bytes: int | None = 20 * GIB, causes: bool = True
) -> Answer:
    """geopipe over links of 25 Gbit/s and 10 ms, with so many forwards more per boundary ahead."""
    topology = synthetic.places(dcs, latency_ns=10 * MS, bandwidth_bytes_per_s=25 * GBIT)
    ahead = [extra * (len(dcs) - 1 - number) for number, size in enumerate(dcs) for _ in range(size)]
    scenario = Scenario(topology=topology, hbm_bytes=hbm_bytes)
    done = answer(synthetic.found(pipeline(p, m)), ["geopipe"], scenario, extra_forwards=tuple(ahead))
    if not causes:
        return done
    base, result = (with_idles(r, "idles", gaps(r.timeline)) for r in (done.baseline, done.results[0]))
    return with_idles(replace(done, baseline=base, results=(result,)), "observed_idles", gaps(done.observed))


def point(
    schedule: str,
    extra_forwards: tuple[int, ...] | None = None,
    microbatches: int = 8,
    p2p: str = "posted-ahead",
    **more: Any,
) -> SweepPoint:
    """A point of a sweep that fits, unless something else is said."""
    return SweepPoint(schedule, extra_forwards, microbatches, p2p, **{"feasible": True, **more})


def bend(schedule: str, bandwidth: int | None, hidden: int | None = None, **more: Any) -> Knee:
    """A knee without what memory costs."""
    return Knee(schedule, bandwidth, hidden, None, (), **more)


def sweep_of(points: Iterable[SweepPoint], knees: Iterable[Knee] = ()) -> Sweep:
    """A sweep of them."""
    return Sweep(tuple(points), tuple(knees))


def log_range(low: float, high: float, count: int) -> list[int]:
    """So many values, evenly spaced on a logarithmic axis."""
    return [round(low * (high / low) ** (n / (count - 1))) for n in range(count)]


def swept(
    measured: Pipeline,
    bandwidths: Sequence[int],
    latencies: Sequence[int],
    *,
    schedules: Sequence[str] = ("1f1b", "gpipe", "geopipe"),
    hbm_bytes: int | None = None,
) -> Sweep:
    """Schedules over links between two halves of a pipeline; geopipe with two forwards more in the first."""
    shape = measured.observed.shape
    half = shape.ranks // 2
    topologies = [
        synthetic.places([half, half], latency_ns=latency, bandwidth_bytes_per_s=bandwidth)
        for bandwidth, latency in product(bandwidths, latencies)
    ]
    scenarios = [Scenario(topology=topology, hbm_bytes=hbm_bytes) for topology in topologies]
    points: list[SweepPoint] = []
    for name in schedules:
        extra = (2,) * half + (0,) * half if name == "geopipe" else None
        schedule = build_schedule(name, shape, extra_forwards=extra)
        feasible = fits(measure(replay(measured, schedule, scenarios[0]).timeline), scenarios[0])
        for scenario, times in zip(scenarios, replay_many(measured, schedule, scenarios), strict=True):
            link = scenario.topology.links[0]
            points.append(
                point(
                    name,
                    extra,
                    shape.microbatches,
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                    latency_ns=link.latency_ns,
                    hbm_bytes=hbm_bytes,
                    dcs=scenario.topology.dcs,
                    step_ns=times.step_ns,
                    bubble_ratio=1 - 15 * MS * shape.microbatches / times.window_ns,
                    feasible=feasible,
                )
            )
    return sweep_of(points)


def figure_of(draw: Callable[[], Figure]) -> Figure:
    """A figure as it is made, for what it holds: to put everything in its place takes three times as long."""
    from matplotlib.style import context

    with context(["default", STYLE]):
        return draw()


def laid_out(draw: Callable[[], Figure]) -> Figure:
    """A figure with everything in its place, as in a PNG: where texts are, and the labels of ticks."""
    from matplotlib.style import context

    with context(["default", STYLE]):
        figure = draw()
        figure.draw_without_rendering()
    return figure


def texts_of(figure: Figure) -> list[Text]:
    """Every text of a figure that is seen: labels of ticks beyond an axis are not."""
    from matplotlib.text import Text

    beyond = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        beyond |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    found = (text for text in figure.findobj(Text) if isinstance(text, Text) and id(text) not in beyond)
    return [text for text in found if text.get_text() and text.get_visible()]


def points_of(line: Line2D) -> list[tuple[float, float]]:
    """The points that a line joins."""
    xs: Any = line.get_xdata(orig=True)
    ys: Any = line.get_ydata(orig=True)
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def untidy(figure: Figure) -> list[str]:
    """Texts that leave the figure, or touch another one by more than a pixel."""
    width, height = figure.canvas.get_width_height()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    out = [text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    touching = [
        f"{one!r} and {other!r}"
        for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    return [f"{text!r} leaves the picture" for text in out] + touching
