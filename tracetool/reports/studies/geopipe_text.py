"""The report of ``tracetool paper geopipe`` for people: 80 columns, what is known before what is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.answer.text import aligned
from tracetool.reports.lines import wrapped
from tracetool.studies.geopipe import BUBBLE_REDUCTION, FACTS, ITERATION_REDUCTION, NOT_PUBLISHED, SOURCES, STAGES
from tracetool.studies.geopipe.findings import DEFINITIONS, joint, least_idle_ratio
from tracetool.studies.geopipe.optimum import GAIN_PER_DOUBLING
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.studies.geopipe.findings import Definition, FigureOrigin, Point
    from tracetool.studies.geopipe.optimum import Need, Optimum
    from tracetool.studies.geopipe.reproduce import ModelStudy, Study

    Pick = Callable[[ModelStudy], tuple[FigureOrigin, ...]]

_WIDTH = 80
_BUBBLES, _ITERATIONS = f"{100 * BUBBLE_REDUCTION:.2f} %", f"{100 * ITERATION_REDUCTION:.1f} %"

_WORDS: dict[Definition | None, str] = {
    "bubble_ratio": "idle share",
    "bubble_ns": "idle time",
    "cross_dc_bubble_ns": "cross-DC time",
    None: "iteration",
}
_BASELINE: dict[P2PMode, str] = {"grouped": "blocking", "posted-ahead": "non-blocking"}
_BASES = {"abstract": "abstract", "two summaries": "2 summaries", "one note": "1 note, unconfirmed"}


def render(study: Study) -> list[str]:
    """The lines of the report."""
    sections = (
        (f"{_BUBBLES} fewer bubbles", lambda m: m.bubbles),
        (f"Iterations {_ITERATIONS} shorter", lambda m: m.iterations),
        ("Both in one configuration", lambda m: m.both),
    )
    lines = wrapped(
        [
            *_title(),
            "",
            "In short (ranges over all settings at which it arises; the maps below show where)",
            *_short(study),
            "",
            *_basis(study),
            "",
            *_definitions(),
        ],
        _WIDTH,
    )
    for number, (title, pick) in enumerate(sections):
        lines += ["", *_section(study, title, pick, explain=number == 0)]
    sources = wrapped(["Sources", *(f"  {source}" for source in SOURCES)], _WIDTH)
    return [*lines, "", *_optimum(study), "", *_memory(study), "", *sources]


def render_screen(study: Study) -> list[str]:
    """One screen of it: whether the figures arise, where, and what they rest on."""
    models = " and ".join(model.name for model in study.models)
    sentences = (
        f"In a model of GeoPipe's setting ({models}), {_BUBBLES} fewer bubbles arise "
        f"{_arises(study, lambda m: m.bubbles)}; {_ITERATIONS} shorter iterations arise "
        f"{_arises(study, lambda m: m.iterations)}; both arise in one configuration "
        f"{_arises(study, lambda m: m.both)}."
    )
    notes = [
        "Compute times come from an analytical model; nothing here was measured. It is not a claim about the paper."
    ]
    more = "Maps of where, what is published, assumed and counted as a bubble, and memory: -v"
    return wrapped([sentences, "", *_short(study), "", *notes, more], _WIDTH)


def _arises(study: Study, pick: Pick) -> str:
    """As what a figure arises in any model."""
    figures = [f for model in study.models for f in pick(model) if f.points]
    words = [_WORDS[d] for d in (*DEFINITIONS, None) if any(f.definition == d for f in figures)]
    if not words:
        return "nowhere"
    return "somewhere" if words == [_WORDS[None]] else f"as {', '.join(words)}"


def _title() -> list[str]:
    return [
        "GeoPipe (arXiv 2510.12064): where its published figures can arise",
        "  Compute times come from an analytical model; nothing here was measured. Formulas, orders and replays are "
        "this tool's own, none is the paper's. A report of what is possible, not a claim about the paper.",
    ]


def _basis(study: Study) -> list[str]:
    return [
        "Published (and how it is known)",
        *(f"  {fact.text} [{_BASES[fact.basis]}]" for fact in FACTS),
        f"  not published: {'; '.join(NOT_PUBLISHED)}",
        "",
        "Assumed",
        *(f"  {a.what}: {a.value} ({a.why})" for a in study.assumptions),
        *_checks(study),
    ]


def _definitions() -> list[str]:
    return [
        "How a bubble is counted (the paper's own definition is not known)",
        "  idle share: 1 - compute / (ranks x window); idle time: the same in time (bubble_ratio, bubble_ns). Both "
        "count fill, drain and unequal stages as well.",
        "  cross-DC time: window minus the window of the same order over free links (cross_dc_bubble_ns).",
        "  A figure arises at a setting where replay comes within half a percentage point of it, or passes it between "
        "that distance and the next.",
    ]


def _short(study: Study) -> list[str]:
    lines = [f"  {_BUBBLES} fewer bubbles, counted as"]
    lines += [f"    {_WORDS[d]}: {_reach(study, d, lambda m: m.bubbles)}" for d in DEFINITIONS]
    lines.append(f"  {_ITERATIONS} shorter iterations: {_reach(study, None, lambda m: m.iterations)}")
    lines.append("  both in one configuration, counted as")
    lines += [f"    {_WORDS[d]}: {_reach(study, d, lambda m: m.both)}" for d in DEFINITIONS]
    knees = [o.knee_bytes_per_s for model in study.models for o in model.optima if o.knee_bytes_per_s is not None]
    if knees:
        lines.append(
            f"  optimum bandwidth: {_gbit(min(knees))} to {_gbit(max(knees))} Gbit/s, by model, distance and how many "
            "messages cross at once"
        )
    return lines


def _reach(study: Study, definition: Definition | None, pick: Pick) -> str:
    """For each model, the microbatches and distances at which a figure arises, against either 1F1B."""
    words = []
    for model in study.models:
        figures = [f for f in pick(model) if f.definition == definition]
        where = "nowhere in the sweep" if any(f.total for f in figures) else "does not fit the HBM limit"
        if any(f.points for f in figures):
            where = f"m {_range(_rows(study, figures))}, {_range(_columns(study, figures))} km"
        words.append(f"{model.name} {where}")
    return "; ".join(words)


def _rows(study: Study, figures: Sequence[FigureOrigin]) -> list[int]:
    """Microbatches at which a figure arises."""
    return [m for i, m in enumerate(study.choice.grid.microbatches) if any(any(f.shares[i]) for f in figures)]


def _columns(study: Study, figures: Sequence[FigureOrigin]) -> list[int]:
    """Distances at which it does."""
    return [
        km for i, km in enumerate(study.choice.grid.distances_km) if any(row[i] for f in figures for row in f.shares)
    ]


def _range(values: Sequence[int]) -> str:
    if not values:
        return "-"
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def _checks(study: Study) -> list[str]:
    lines = []
    for model in study.models:
        if model.throughput is not None:
            predicted = ", ".join(f"{tokens:,.0f}" for tokens in model.throughput.predicted)
            lines.append(
                f"  check {model.name}: {predicted} tokens/s per device at the efficiencies above, without fill and "
                f"drain; MindSpeed-LLM's README tells {model.throughput.published:,} of Atlas 900 A2 (4096 tokens, "
                "communication beside compute)"
            )
        middle, slowest = model.cycles_ns
        if slowest > middle:
            lines.append(
                f"  check {model.name}: the last stage takes {format_duration(slowest - middle)} longer per microbatch "
                f"than the others' {format_duration(middle)}"
            )
    return lines


_HEAD = ("", "1F1B", "bubble as", "reduction", "arises at", "m", "km")


def _section(study: Study, title: str, pick: Pick, *, explain: bool) -> list[str]:
    rows = [_HEAD, *(_finding_cells(study, model, figure) for model in study.models for figure in pick(model))]
    without = {"bubble as"} if all(words == _WORDS[None] for _, _, words, *_ in rows[1:]) else set()
    columns = [i for i, head in enumerate(_HEAD) if head not in without]
    widths = [max(len(row[i]) for row in rows) for i in columns]
    table = [aligned([row[i] for i in columns], widths) for row in rows]
    notes = [f"  {line}" for model in study.models for line in _notes(model, pick(model))]
    looked = ", ".join(f"{model.name} {pick(model)[0].total:,}" for model in study.models)
    counted = [f"  settings replayed that fit the HBM limit: {looked}"] if explain else []
    return [title, *wrapped(counted, _WIDTH), *table, *_map(study, pick, explain=explain), *wrapped(notes, _WIDTH)]


def _finding_cells(study: Study, model: ModelStudy, figure: FigureOrigin) -> tuple[str, ...]:
    return (
        model.name,
        _BASELINE[figure.baseline],
        _WORDS[figure.definition],
        f"{_percent(figure.least)}..{_percent(figure.most)} %" if figure.total else "-",
        f"{figure.points:,}",
        _range(_rows(study, [figure])),
        _range(_columns(study, [figure])),
    )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}".replace("-0.0", "0.0")


def _map(study: Study, pick: Pick, *, explain: bool) -> list[str]:
    """Where on microbatches and distance, against 1F1B in blocking batches."""
    blocks = [
        (f"{model.name} {_WORDS[figure.definition]}", figure.shares)
        for model in study.models
        for figure in pick(model)
        if figure.baseline == "grouped" and figure.points
    ]
    if not blocks:
        return []
    grid = study.choice.grid
    columns = len(grid.distances_km)
    width = max(columns, *(len(title) for title, _ in blocks))
    per_line = max(1, (_WIDTH - 8) // (width + 2))
    caption = (
        f"  Where, against blocking 1F1B: a row per m, a column per distance ({', '.join(map(str, grid.distances_km))} "
        "km); share of the other settings at which it arises: . none, 0 below 10 %, 1 from 10 %, ..."
    )
    lines = ["", *(wrapped([caption], _WIDTH) if explain else [])]
    for at in range(0, len(blocks), per_line):
        some = blocks[at : at + per_line]
        lines.append("  m     " + "  ".join(title.ljust(width) for title, _ in some).rstrip())
        for i, microbatches in enumerate(grid.microbatches):
            cells = ["".join(_digit(share) for share in shares[i]).ljust(width) for _, shares in some]
            lines.append(f"  {microbatches:<6}" + "  ".join(cells).rstrip())
    return lines


def _digit(share: float) -> str:
    return str(min(9, int(10 * share))) if share else "."


def _notes(model: ModelStudy, findings: Sequence[FigureOrigin]) -> list[str]:
    lines = []
    idle = least_idle_ratio(model.swept)
    for figure in findings:
        if figure.baseline != "grouped" or figure.nearest is None or figure.highest is None:
            continue
        name = f"{model.name}, {_WORDS[figure.definition]}"
        lines.append(f"nearest {name}: {_point_text(figure.nearest)}")
        if not figure.points:
            lines.append(f"not reached {name}: {_why(figure, figure.highest, idle, is_both=findings is model.both)}")
    return lines


def _why(figure: FigureOrigin, highest: Point, least_idle_ratio: float, *, is_both: bool) -> str:
    left = (
        f"{100 * figure.left_ratio:.0f} % of the idle time left there is fill, drain and unequal stages, which neither "
        "links nor warm-ups change"
    )
    if is_both and figure.definition in ("bubble_ratio", "bubble_ns"):
        needed = joint(STAGES, figure.definition)
        if least_idle_ratio > needed.after_ratio:
            return (
                f"one configuration with both would idle {_percent(needed.before_ratio)} % with 1F1B and "
                f"{_percent(needed.after_ratio)} % with extra forwards; over free links the least of the sweep is "
                f"{_percent(least_idle_ratio)} % (fill, drain and unequal stages), and with equal stages it takes m "
                f"{needed.least_microbatches} for fill and drain to be that short"
            )
    if is_both:
        return "where one arises, the other does not"
    target = ITERATION_REDUCTION if figure.definition is None else BUBBLE_REDUCTION
    if figure.least <= target <= figure.most:
        return "reductions on both sides of it, none so close: they step with the number of crossings per microbatch"
    if figure.least > target:
        return f"at least {_percent(figure.least)} %"
    return f"at most {_percent(figure.most)} %, at {_place(highest)}; {left}"


def _point_text(point: Point) -> str:
    bubbles = "" if point.bubble_reduction is None else f"bubbles {_signed(point.bubble_reduction)}, "
    return f"{bubbles}iteration {_signed(point.iteration_reduction)} at {_place(point)}"


def _place(point: Point) -> str:
    return (
        f"m {point.microbatches}, {point.distance_km} km, {point.bandwidth_gbit_per_s} Gbit/s, "
        f"{point.sharing} at once, {'/'.join(map(str, point.split))}, efficiency {100 * point.efficiency_ratio:g} %, "
        f"+{point.depth} per boundary"
    )


def _signed(reduction: float) -> str:
    return f"{-100 * reduction:+.1f} %".replace("-0.0 %", "+0.0 %")


def _optimum(study: Study) -> list[str]:
    choice = study.choice
    lines = wrapped(
        [
            "Optimum bandwidth, in Gbit/s",
            f"  m {study.microbatches}, {'/'.join(map(str, study.split))}, efficiency {100 * choice.middle_ratio:g} %. "
            "BW* is this tool's formula: the larger of what the messages need within f + B (throughput) and of what "
            "lets the forwards that fit hide a delay (hiding). 1F1B+N and 1F1B (blocking), replayed: the bandwidth "
            f"from which on twice as much shortens the step by less than {100 * GAIN_PER_DOUBLING:.0f} %.",
        ],
        _WIDTH,
    )
    head = ("", "at once", "km", "BW*", "by", "1F1B+N", "1F1B", "400 for 200: +N", "1F1B")
    rows: list[tuple[str, ...]] = [head]
    for model in study.models:
        rows += [(model.name, *_optimum_cells(optimum)) for optimum in model.optima]
    if len(rows) == 1:
        return [*lines, "  not looked for: 1F1B does not fit the HBM limit"]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [*lines, *(aligned(row, widths) for row in rows), *wrapped(_optimum_notes(study), _WIDTH)]


def _optimum_cells(optimum: Optimum) -> tuple[str, ...]:
    hiding = optimum.hiding_bytes_per_s
    by = "none hides" if hiding is None else "throughput" if optimum.throughput_bytes_per_s >= hiding else "hiding"
    return (
        str(optimum.sharing),
        str(optimum.distance_km),
        _gbit(optimum.formula_bytes_per_s),
        by,
        _gbit(optimum.knee_bytes_per_s),
        _gbit(optimum.baseline_knee_bytes_per_s),
        _signed(optimum.gain_ratio),
        _signed(optimum.baseline_gain_ratio),
    )


def _gbit(speed: int | None) -> str:
    return "-" if speed is None else f"{speed * 8 / 1e9:.1f}"


def _optimum_notes(study: Study) -> list[str]:
    within = [
        f"{model.name}, {optimum.sharing} at once, {optimum.distance_km} km"
        for model in study.models
        for optimum in model.optima
        if optimum.knee_bytes_per_s is not None and 25e9 <= optimum.knee_bytes_per_s <= 50e9
    ]
    where = "; ".join(within) if within else "in none of these settings"
    return [
        "  Above BW* the steady state no longer gains; filling and draining still do, which puts the replayed optimum "
        "higher.",
        f"  The optimum of 1F1B+N lies within the published 200 to 400 Gbit/s: {where}.",
    ]


def _memory(study: Study) -> list[str]:
    head = ("", "batch", "static", "per microbatch", "1F1B peak", "+1 peak", "fits", "most +N")
    rows = [head, *((model.name, *_need_cells(need)) for model in study.models for need in model.needs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [
        *wrapped(
            [
                f"HBM, limit {study.choice.hbm_bytes / 1e9:g} GB ({format_size(study.choice.hbm_bytes)}) per device",
                f"  m {study.microbatches}, {'/'.join(map(str, study.split))}, sequences of {study.choice.sequence}; "
                "first stage, peaks of the stage that needs most; without what the runtime and its allocator take.",
            ],
            _WIDTH,
        ),
        *(aligned(row, widths) for row in rows),
    ]


def _need_cells(need: Need) -> tuple[str, ...]:
    return (
        str(need.batch),
        format_size(need.static_bytes),
        format_size(need.activation_bytes),
        format_size(need.peak_bytes),
        format_size(need.deeper_peak_bytes),
        "yes" if need.fits else "NO",
        "-" if need.depth_limit is None else f"+{need.depth_limit}",
    )
