"""What ``tracetool overlap`` prints: whether overlap pays for recorded layers, and predictions beside measured ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.overlap.prediction import FEW_RECORDINGS, FEW_RECORDINGS_NEW_KERNELS, HOST_BOUND
from tracetool.reports.answer.text import fitted_table
from tracetool.reports.checks.overlap_json import left_texts, untried
from tracetool.reports.checks.validation import InputInfo  # noqa: TC001 - msgspec reads it
from tracetool.reports.lines import Note, lines_left, wrapped
from tracetool.units import format_bandwidth, format_bits, format_count, format_duration

if TYPE_CHECKING:
    from tracetool.overlap.answer import LayerSide, OverlapAnswer, WayTime
    from tracetool.overlap.prediction import OverlapComparison, PredictedVariant
    from tracetool.overlap.variants import LayerShape
    from tracetool.reports.answer.text import Cells

_SIDES = {"ag": "all-gather, then product", "rs": "product, then reduce-scatter"}
_SHORT_SIDES = {"ag": "gather", "rs": "scatter"}


def render_comparison_text(done: OverlapComparison, measured: InputInfo, *, verbose: bool) -> bytes:
    """The answer, a table, and what is doubtful; a screen of rows, the furthest off, unless verbose."""
    right = sum(winner.is_right for winner in done.winners)
    lines = [f"{right} of {len(done.winners)} fastest ways are right."] if done.winners else []
    if done.mape_ratio is not None and done.max_error_ratio is not None:
        lines.append(
            f"{len(done.errors)} of {len(done.rows)} rows of {measured.name} predicted: mean error "
            f"{done.mape_ratio:.1%}, largest {done.max_error_ratio:.1%}."
        )
    after: dict[str, int] = {}
    for row in done.rows:
        if row.reason is not None:
            after[row.reason] = after.get(row.reason, 0) + 1
    wrong = [
        f"  wrong: {_name(w.shape)} over {w.transport}, {w.side}: {w.predicted} is {w.lost_ratio:.1%} slower than "
        f"{w.measured}"
        for w in done.winners
        if not w.is_right
    ]
    doubts = [Note(f"{count} rows: {reason}") for reason, count in after.items()]
    if not verbose and len(wrong) > _MOST_WRONG:
        wrong[_MOST_WRONG:] = [f"  and {len(wrong) - _MOST_WRONG} wrong ones more: -v"]
    above, below = [*wrapped(lines), ""], ["", *wrapped([*wrong, *doubts])]
    room = max(_FEWEST_ROWS, lines_left([*above, *below]) - 3)
    shown = done.rows if verbose or len(done.rows) <= room else sorted(done.rows, key=_rank, reverse=True)[:room]
    if len(shown) < len(done.rows):
        below.insert(0, f"  {len(done.rows) - len(shown)} rows more, closer than these: -v")
    several = len({row.measured.transport for row in done.rows}) > 1
    table = fitted_table([_row_cells(row, several=several) for row in shown], ["over", "predicted"])
    return ("\n".join([*above, *table, *below]).rstrip() + "\n").encode()


_FEWEST_ROWS, _MOST_WRONG = 5, 3


def _rank(row: PredictedVariant) -> float:
    """How far it is off; what has no prediction comes last, notes count it."""
    return -1.0 if row.error_ratio is None else abs(row.error_ratio)


def _name(shape: LayerShape) -> str:
    return f"{shape.tokens} x {shape.hidden} x {shape.ffn_per_rank}"


def _row_cells(row: PredictedVariant, *, several: bool) -> Cells:
    return {
        "layer": _name(row.measured.layer),
        "over": row.measured.transport if several else "",
        "way": row.measured.variant,
        "ms": f"{row.measured.measured_ms:.3f}",
        "predicted": "-" if row.predicted_ms is None else f"{row.predicted_ms:.3f}",
        "error": "" if row.error_ratio is None else f"{row.error_ratio:+.1%}",
    }


def render_answer_text(done: OverlapAnswer, *, verbose: bool) -> bytes:
    """The answer first, then a row per side of a layer; every way of each if verbose."""
    head = wrapped([_headline(done)])
    below = [
        *wrapped(
            [
                *([] if verbose else _gains_without_hosts(done)),
                *([_ASYNC] if any(_has_async(side) for side in done.sides) else []),
                *_few(done),
                *_left(done, verbose=verbose),
            ]
        )
    ]
    if verbose:
        lines = [
            line
            for side in done.sides
            for line in (
                *wrapped([_verdict(side)]),
                *_ways_table(side),
                *wrapped(_loss_lines(side)),
                *wrapped(_over_lines(side)),
                "",
            )
        ]
        return ("\n".join([*head, "", *lines, *below]).rstrip() + "\n").encode()
    cells = [each for side in done.sides for each in _side_cells(side)]
    room = max(_FEWEST_ROWS, lines_left([*head, "", "", *below]) - 3)
    shown = cells if len(cells) <= room else cells[:room]
    more = [
        f"  {len(cells) - len(shown)} rows more, and every way: -v" if len(shown) < len(cells) else "  every way: -v"
    ]
    table = fitted_table(shown, ["as it is", "takes"])
    return ("\n".join([*head, "", *table, *more, "", *below]).rstrip() + "\n").encode()


_ASYNC = Note("async-tp was compared with measured calls of groups of two ranks alone (H200)")
_BOUND_TEXT = "whether one kernel with product and communication ({way}) pays was never measured: it is"
_PAYS = {True: "yes", False: "no", None: "open"}


def _headline(done: OverlapAnswer) -> str:
    """Where overlap pays, of all sides of layers."""
    asked = [side for side in done.sides if side.next_best is not None]
    if not asked:
        return f"{len(done.sides)} sides of layers, as they are."
    counts = {verdict: sum(side.pays is verdict for side in asked) for verdict in _PAYS}
    if len(asked) == counts[False]:
        return f"Overlap does not pay{'' if len(asked) == 1 else f': in none of {len(asked)} sides of layers'}."
    if len(asked) == counts[True]:
        return f"Overlap pays{'' if len(asked) == 1 else f' in all {len(asked)} sides of layers'}."
    parts = [f"pays in {counts[True]}", f"does not pay in {counts[False]}"]
    parts = [part for part, verdict in zip(parts, (True, False), strict=True) if counts[verdict]]
    opened = f"the error leaves {counts[None]} open" if counts[None] else ""
    of = "" if len(asked) == 1 else f" of {len(asked)} sides of layers"
    if not parts:
        return (
            f"Whether overlap pays is open{of.replace(' of', ' in all', 1)}: the error is larger than what it changes."
        )
    return f"Overlap {' and '.join(parts)}{of}{f'; {opened}' if opened else ''}."


def _gains_without_hosts(done: OverlapAnswer) -> list[str]:
    """What would pay without hosts where nothing does with them, in a sentence."""
    device_gains = [
        (free, side.device_gain_ratio(free)) for side in done.sides if (free := _without_hosts(side)) is not None
    ]
    if not device_gains:
        return []
    gains = sorted({f"{gain:.0%}": gain for _, gain in device_gains}.items(), key=lambda each: each[1])
    by = gains[0][0] if len(gains) == 1 else f"{gains[0][0]} to {gains[-1][0]}"
    ways = " or ".join(dict.fromkeys(free.way for free, _ in device_gains))
    where = "" if len(done.sides) == 1 else f" in {len(device_gains)} of {len(done.sides)}"
    return [f"If hosts took no time (CUDA graphs), {ways} would pay{where}: {by} shorter."]


def _few(done: OverlapAnswer) -> list[Note]:
    """What more recordings would give where the host's calls rest on few."""
    if not any(way.error in {FEW_RECORDINGS, FEW_RECORDINGS_NEW_KERNELS} for side in done.sides for way in side.ways):
        return []
    number, less = (
        done.machine.call_recordings,
        f"±{HOST_BOUND.time_ratio:.0%} instead of ±{FEW_RECORDINGS.time_ratio:.0%}",
    )
    return [Note(f"the host's calls rest on {format_count(number, 'recording')}; four give host-bound ways {less}")]


def _left(done: OverlapAnswer, *, verbose: bool) -> list[Note]:
    """Recordings that were not used; unless verbose, how many."""
    if verbose:
        return [Note(text) for text in left_texts(done)]
    counts = Counter(each.reason for each in done.left)
    return [
        *map(Note, untried(done)),
        *(Note(f"{number} recording{'s' * (number > 1)} left out: {reason}") for reason, number in counts.items()),
    ]


def _has_async(side: LayerSide) -> bool:
    free = _without_hosts(side)
    return any(best is not None and best.way == "async-tp" for best in (side.next_best, free))


def _without_hosts(side: LayerSide) -> WayTime | None:
    """What would pay without hosts where it does not with them."""
    return None if side.pays else side.pays_without_host


def _side_cells(side: LayerSide) -> list[Cells]:
    """A side of a layer, and the same over other links."""
    rows = [("", side), *((f"at {format_bits(rate)}", there) for rate, there in side.over)]
    return [
        {
            "layer": _name(side.shape) if not at else f"  {at}",
            "side": _SHORT_SIDES[side.side] if not at else "",
            "as it is": format_duration(there.ways[0].time.call_ns),
            "fastest\noverlap": "" if best is None else best.way,
            "takes": "" if best is None else format_duration(best.time.call_ns),
            "gain": "" if best is None else _gain(there, best),
            "pays": "" if best is None else _PAYS[there.pays],
        }
        for at, there in rows
        for best in [there.next_best]
    ]


def _gain(side: LayerSide, way: WayTime, digits: int = 0) -> str:
    """What a way gains, and how far off that may be; that it gains nothing where the error leaves none."""
    gain = side.gain_ratio(way)
    if way.is_bound:
        return f"at most {max(gain, 0.0):+.{digits}%}"
    error = side.gain_error_ratio(way)
    return "no gain" if gain < -error else f"{gain:+.{digits}%} ±{error:.0%}"


def _verdict(side: LayerSide) -> str:
    head = f"{_name(side.shape)} on {side.ranks} ranks, {_SIDES[side.side]}:"
    best = side.next_best
    if best is None:
        return f"{head} {format_duration(side.ways[0].time.call_ns)} as it is."
    gain = side.gain_ratio(best)
    if best.is_bound:
        far = f"at most {gain:.1%} shorter" if gain > 0 else "no shorter"
        return f"{head} {_BOUND_TEXT.format(way=best.way)}, {far} than as it is."
    by = f"{abs(gain):.1%} (±{side.gain_error_ratio(best):.0%}) {'shorter' if gain > 0 else 'longer'}"
    said = {True: "overlap pays", False: "overlap does not pay", None: "the error leaves open whether overlap pays"}
    sentence = f"{head} {said[side.pays]}. Best is {best.way}, {by} than as it is."
    free = _without_hosts(side)
    if free is None:
        return sentence
    by = f"{side.device_gain_ratio(free):.1%} (±{side.device_gain_error_ratio(free):.0%}) shorter"
    return f"{sentence} If hosts took no time (CUDA graphs), {free.way} would be {by}."


def _loss_lines(side: LayerSide) -> list[str]:
    """What is in the way of the fastest overlap."""
    best = side.next_best
    if best is None or not side.losses:
        return []
    losses = "; ".join(f"{loss.cause.value} {format_duration(loss.lost_ns)}" for loss in side.losses)
    return [f"    in the way of {best.way}, each by itself: {losses}"]


def _over_lines(side: LayerSide) -> list[str]:
    """Over links of other bandwidths: whether it pays there, and what."""
    said = {True: "pays", False: "does not pay", None: "may pay or not"}
    return [
        f"    over {format_bandwidth(bandwidth)}: {format_duration(there.ways[0].time.call_ns)} as it is; overlap "
        f"{said[there.pays]}, {best.way} {_gain(there, best)}"
        for bandwidth, there in side.over
        if (best := there.next_best) is not None
    ]


def _ways_table(side: LayerSide) -> list[str]:
    return fitted_table([_way_cells(side, way) for way in side.ways], ["MFU", "exposed", "device\nalone", "rests on"])


def _way_cells(side: LayerSide, way: WayTime) -> Cells:
    is_first = way is side.ways[0]
    return {
        "": way.way,
        "call": format_duration(way.time.call_ns),
        "±": "bound" if way.error_ratio is None else f"{way.error_ratio:.0%}",
        "gain": "" if is_first else _gain(side, way, 1),
        "device\nalone": format_duration(way.time.device_ns),
        "exposed": format_duration(max(0.0, way.exposed_ns)),
        "MFU": "-" if way.mfu_ratio is None else f"{way.mfu_ratio:.0%}",
        "rests on": way.error.kind,
    }
