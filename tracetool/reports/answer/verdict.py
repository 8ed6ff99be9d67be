"""The answer in words: which schedule is best, by how much, and how sure that is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import Option
from tracetool.model.notice import NoticeCode
from tracetool.model.schedule import OBSERVED
from tracetool.reports.answer.notes import MOST_NOTES, first_notes
from tracetool.reports.answer.text import compared_results, is_baseline, result_name, results_table
from tracetool.reports.lines import lines_left, terminal_width, wrapped
from tracetool.units import format_count, format_duration, format_size
from tracetool.whatif.accuracy import format_error
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT, is_as_good, nothing_fits, unchecked
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.job import setting_text
from tracetool.whatif.memory_limit import is_near_the_limit
from tracetool.whatif.remarks import order_of_untuned
from tracetool.whatif.wording import sharing_lines, way_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.whatif.results import Answer, Result

_NAMED = 3
"""Schedules named in one sentence."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the numbers shown first: what, how much, compared with what."""

    label: str
    value: str
    beside: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader should know first.

    Attributes:
        best: The result it is about.
        headline: One sentence.
        figures: Its numbers.
        points: What to know before acting on it.
    """

    best: Result
    headline: str
    figures: tuple[Figure, ...]
    points: tuple[str, ...]


_NO_STEPS_RATIO = 0.2
"""A replay that misses its own recording by more gives no step times, only orders and messages."""


def gives_no_steps(answer: Answer) -> bool:
    """Whether replay misses the recording by too much for any step time."""
    return abs(answer.fidelity.error_ratio) > _NO_STEPS_RATIO


def screen(answer: Answer) -> bytes:
    """The answer in a sentence, every result in a table, and two notes."""
    width = terminal_width()
    if gives_no_steps(answer):
        return _orders(answer, width)
    chosen = verdict(answer)
    shape, topology, hbm = answer.pipeline.observed.shape, answer.scenario.topology, answer.scenario.hbm_bytes
    asked = [
        f"{answer.observed_schedule or 'an order without a name'} on {format_count(shape.stages, 'stage')}",
        f"{answer.baseline.microbatches} microbatch{'es' if answer.baseline.microbatches != 1 else ''}",
        *([f"over {way_text(topology)}"] if topology.links else []),
        *sharing_lines(answer.scenario),
        *([f"{format_size(hbm)} of HBM"] if hbm is not None else []),
        *([] if len({r.p2p for r in compared_results(answer)}) > 1 else [f"{answer.pipeline.p2p} transfers"]),
    ]
    refused = [f"  {one.schedule}: {one.reason}" for one in answer.refused[:MOST_NOTES]]
    lines = [*(f"warning: {text}" for text in answer.warnings), f"{chosen.headline}.", f"  {', '.join(asked)}"]
    setting = chosen.best.slowest
    lines += [] if setting is None else [f"  {setting_text(setting)}"]
    lines.append("")
    lines = wrapped([*lines, *results_table(answer, width), *refused, *near_lines(answer)], width)
    return ("\n".join([*lines, "", *first_notes(answer.notes, width, lines)]) + "\n").encode()


def _orders(answer: Answer, width: int) -> bytes:
    """What is known where steps are not: who computes what in which order, and how many messages cross."""
    lines = [
        f"No step times: replay misses its own recording by {answer.fidelity.error_ratio:+.1%}; orders and messages "
        "are as they would be.",
        *(f"warning: {notice}" for notice in answer.warnings if notice.code != NoticeCode.FIDELITY),
    ]
    for result in compared_results(answer)[:MOST_NOTES]:
        sent = Counter((move.src_rank, move.dst_rank) for move in result.timeline.transfers)
        moves = ", ".join(f"{src}→{dst} {format_count(count, 'message')}" for (src, dst), count in sorted(sent.items()))
        lines += ["", f"{named(result)}, {result.p2p} transfers: {moves or 'no messages'}"]
        lines = _with_grid(wrapped(lines, width), result.replayed.schedule.grid(width))
    return ("\n".join([*lines, "", *first_notes(answer.notes, width, lines)]) + "\n").encode()


def _with_grid(lines: Sequence[str], grid: str) -> list[str]:
    """Lines with as much of an order below as the screen has room for: its beginning at least."""
    first, *others = grid.split("\n\n")
    shown = [*lines, *first.split("\n")]
    for place, part in enumerate(others):
        more = ["", *part.split("\n")]
        if lines_left([*shown, *more]) < _BELOW_GRID:
            return [*shown, f"  {format_count(len(others) - place, 'part')} more of the order: in a wider terminal"]
        shown += more
    return shown


_BELOW_GRID = 3
"""Lines for what is not shown of an order, and for notes."""


def best_result(answer: Answer) -> Result:
    """The result to act on, the baseline among them: by the rule of ``whatif.best``, else what lacks least."""

    def lacks(result: Result) -> tuple[bool, int, int]:
        short = result.shortage
        return short is None, 0 if short is None else short.missing_bytes, result.step_ns

    best = answer.best
    return min(compared_results(answer), key=lacks) if best is None else best


def verdict(answer: Answer, best: Result | None = None) -> Verdict:
    """The answer in words.

    Args:
        answer: The answer.
        best: The result to act on; by default ``best_result``.
    """
    best = best or best_result(answer)
    headline = _headline(answer, best)
    return Verdict(
        best,
        headline[0].upper() + headline[1:] if best.schedule == OBSERVED else headline,
        tuple(_figures(answer, best)),
        tuple(_points(answer, best)),
    )


def named(result: Result) -> str:
    """A result's schedule within a sentence."""
    return "the recorded order" if result.schedule == OBSERVED else result_name(result)


def _baseline_named(answer: Answer) -> str:
    """The baseline within a sentence, with its transfers where the trace shows others."""
    base = answer.baseline
    return named(base) + (f" with {base.p2p} transfers" if base.p2p != answer.pipeline.p2p else "")


def _best_named(answer: Answer, best: Result) -> str:
    """The best within a sentence; where it is another schedule's order but for its transfers, with that."""
    plain = order_of_untuned(answer.pipeline, best.replayed)
    return named(best) + ("" if plain is None else f" ({plain}'s order with {best.p2p} transfers)")


def _headline(answer: Answer, best: Result) -> str:
    base = answer.baseline
    name, known, error = _best_named(answer, best), best.seen_error_ratio, answer.step_change_error(best)
    step = format_duration(best.metrics.step_ns)
    step += " a step (error unknown)" if known is None else f" ±{format_error(known)} a step"
    if best.feasible is None:
        step += f", not checked against {format_size(answer.scenario.hbm_bytes or 0)} of HBM"
    if best.feasible is False:
        count = len(compared_results(answer))
        limit = format_size(answer.scenario.hbm_bytes or 0)
        lacks = format_size(best.shortage.missing_bytes if best.shortage is not None else 0)
        if count == 1:
            return f"{name} does not fit {limit} of HBM: it lacks {lacks}"
        unknown = unchecked(compared_results(answer))
        if unknown:
            sentence = nothing_fits(unknown, f"{limit} of HBM")
            return f"{sentence[0].upper()}{sentence[1:]}: {name} lacks least, {lacks}"
        return f"None of {count} schedules fits {limit} of HBM: {name} lacks least, {lacks}"
    if is_baseline(answer, best):
        stays = len(compared_results(answer)) > 1
        shorter = any(r.metrics.step_ns < best.metrics.step_ns for r in _fitting(answer, best))
        surely = " by more than can be told" if shorter else ""
        return f"Nothing replayed is shorter than {name}{surely}: {step}" if stays else f"{name} takes {step}"
    change = answer.step_change(best)
    if is_as_good(base, best):
        return f"{name} takes {step}: too near to {_baseline_named(answer)} to tell which is shorter"
    more = "less" if change < 0 else "more"
    certain = "" if error is None else f" ±{format_error(error)}"
    unfit = ", which does not fit" if base.feasible is False else ""
    sure = " if it fits" if fit_of(answer, best) != "fits" and answer.scenario.hbm_bytes is not None else ""
    rivals = (*_fitting(answer, best), *answer.chosen.as_good)
    is_shortest = all(r.metrics.step_ns >= best.metrics.step_ns for r in rivals)
    word = "shortest" if known is None and is_shortest else "best"
    return f"{name} is {word}{sure}: {step}, {abs(change):.1%}{certain} {more} than {_baseline_named(answer)}{unfit}"


def _fitting(answer: Answer, best: Result) -> list[Result]:
    """Results whose memory speaks as much for them as that of the best."""
    return [r for r in compared_results(answer) if r.feasible == best.feasible]


def _figures(answer: Answer, best: Result) -> list[Figure]:
    base, metrics = answer.baseline, best.metrics
    error = best.seen_error_ratio
    against = _baseline_named(answer)
    same = is_baseline(answer, best)
    figures = [
        Figure(
            "Step time",
            format_duration(metrics.step_ns),
            "error of prediction unknown" if error is None else f"±{format_error(error)} (largest error seen)",
        )
    ]
    if not same:
        saved, of_change = base.metrics.step_ns - metrics.step_ns, answer.step_change_error(best)
        certain = "" if of_change is None else f" (±{format_error(of_change)} of {against})"
        figures.append(
            Figure(
                f"Against {against}",
                f"{-saved / base.metrics.step_ns:+.1%}",
                f"{format_duration(abs(saved))} {'less' if saved >= 0 else 'more'} per step{certain}",
            )
        )
    figures.append(
        Figure(
            "Bubble (idle share)",
            f"{metrics.bubble_ratio:.1%}",
            "of the pipeline window" if same else f"{base.metrics.bubble_ratio:.1%} with {against}",
        )
    )
    if answer.scenario.topology.dcs:
        figures.append(
            Figure(
                "Cross-DC bubble",
                format_duration(best.cross_dc_bubble_ns),
                "per step" if same else f"{format_duration(base.cross_dc_bubble_ns)} with {against}",
            )
        )
    return [*figures, _memory(answer, best)]


def _memory(answer: Answer, best: Result) -> Figure:
    hbm = answer.scenario.hbm_bytes
    # What a device must have: its peak, and what it occupies beyond that.
    of_ranks = best.metrics.needed_hbm_bytes
    sizes = [size for size in of_ranks if size is not None]
    value = format_size(max(sizes)) if sizes and len(sizes) == len(of_ranks) else "unknown"
    against = "no limit was given" if hbm is None else f"limit {format_size(hbm)}: {fit_of(answer, best)}"
    return Figure("HBM that a rank needs", value, against)


def fit_of(answer: Answer, result: Result) -> str:
    """Whether a result fits the memory limit, in words."""
    if result.feasible is None:
        return "not checked"
    if result.shortage is not None:
        return f"rank {result.shortage.global_rank} lacks {format_size(result.shortage.missing_bytes)}"
    near = is_near_the_limit(result.metrics, answer.scenario) or answer.scenario.activation_bytes is not None
    return "may fit" if near else "fits"


def _points(answer: Answer, best: Result) -> list[str]:
    return [*_on_error(answer, best), *_on_memory(answer, best), *_on_others(answer, best)]


def _on_error(answer: Answer, best: Result) -> list[str]:
    error = best.seen_error_ratio
    if error is not None:
        return [
            f"Step times predicted like this one were at most {format_error(error)} off on this tool's own H100 "
            "recordings."
        ]
    point = "How far off this prediction is, is not known: none of this tool's own recordings was like it."
    known = [r for r in compared_results(answer) if r.seen_error_ratio is not None and r.feasible is not False]
    if not known:
        return [point]
    safe = min(known, key=lambda r: r.metrics.step_ns)
    return [
        point,
        f"The best whose error is known is {named(safe)}: {format_duration(safe.metrics.step_ns)} "
        f"±{format_error(safe.seen_error_ratio or 0)}.",
    ]


def _on_memory(answer: Answer, best: Result) -> list[str]:
    hbm = answer.scenario.hbm_bytes
    if hbm is None:
        return [f"No memory limit was given ({Option.HBM}): whether schedules fit was not asked."]
    limit = format_size(hbm)
    if best.feasible is None:
        return [f"Whether it fits {limit} of HBM was not checked: what it holds in memory is not known."]
    if best.feasible is False:
        shortest = min(compared_results(answer), key=lambda r: r.metrics.step_ns)
        return [f"{named(best)} lacks least of {limit}: {fit_of(answer, best)}."] + (
            [] if shortest is best else [f"The shortest step: {_with_step(shortest)}, {fit_of(answer, shortest)}."]
        )
    needed = [size for size in best.metrics.needed_hbm_bytes if size is not None]
    return [f"It {fit_of(answer, best)} {limit} of HBM: a rank needs up to {format_size(max(needed))}."]


def _on_others(answer: Answer, best: Result) -> list[str]:
    """Those that come too near to tell, and those that would be shorter but cannot be counted on."""
    others = [r for r in compared_results(answer) if r is not best]
    step_ns = best.metrics.step_ns
    shortest = min(_fitting(answer, best), key=lambda r: r.metrics.step_ns)
    shorter = [r for r in others if r.feasible != best.feasible and r.metrics.step_ns < best.metrics.step_ns]
    points = []
    if shortest.metrics.step_ns < step_ns and best.feasible is not False:
        points.append(_why_not_the_shortest(best, shortest))
    points += near_lines(answer)
    if shorter:
        sentences = [f"{_with_step(r)}, {fit_of(answer, r)}" for r in shorter]
        points.append(f"Shorter, but its memory stands against it: {_listed(sentences, '; ')}.")
    if answer.refused:
        count = len(answer.refused)
        points.append(f"{count} schedule{'s' * (count > 1)} could not be replayed; the table says why.")
    return points


def near_lines(answer: Answer) -> list[str]:
    """All that are as good as the best, and all that may be better, in a sentence each; nothing if there are none."""
    chosen, lines = answer.chosen, []
    if chosen.as_good:
        names = ", ".join(map(_with_step, chosen.as_good))
        errors = [r.known_error for r in (chosen.best, *chosen.as_good) if r is not None]
        near = f"within {RELEVANT_RATIO:.0%} of it" if None in errors else "nearer to it than the error of prediction"
        lines.append(f"As good, {near}: {names}.")
    if chosen.unproven:
        lines.append(f"May be better, but unproven, {UNPROVEN_TEXT}: {', '.join(map(_with_step, chosen.unproven))}.")
    return lines


def _why_not_the_shortest(best: Result, shortest: Result) -> str:
    """What speaks for another than the shortest step."""
    ratio = 1 - shortest.metrics.step_ns / best.metrics.step_ns
    what = f"{_with_step(shortest)} is {ratio:.1%} shorter"
    more = [
        max(n or 0 for n in r.metrics.needed_hbm_bytes)
        for r in (best, shortest)
        if None not in r.metrics.needed_hbm_bytes
    ]
    needs = f", and needs {format_size(more[1] - more[0])} more" if len(more) == 2 and more[1] > more[0] else ""
    if ratio <= RELEVANT_RATIO:
        return f"{what}, by which steps that are repeated differ, too{needs}."
    if is_as_good(best, shortest):
        return f"{what}, which is within the error of prediction{needs}."
    rests = f" ({UNPROVEN_MARK}: {', '.join(shortest.rests_on)})" if shortest.evidence == "unproven" else ""
    return f"{what}, but its prediction rests on less{rests}{needs}."


def _with_step(result: Result) -> str:
    return f"{named(result)} ({format_duration(result.metrics.step_ns)})"


def _listed(parts: list[str], between: str = ", ") -> str:
    more = f"{between}{len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return between.join(parts[:_NAMED]) + more
