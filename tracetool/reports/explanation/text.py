"""Why a step takes as long as it does, for people: the answer first, then causes, then the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.causes.cause import LATE, Cause
from tracetool.costs.over_links import crossing_uses
from tracetool.errors import Option
from tracetool.reports.answer.text import Note, aligned, wrap, wrapped
from tracetool.reports.answer.verdict import first_notes
from tracetool.reports.explanation import PathWords
from tracetool.units import format_duration, format_ranges
from tracetool.whatif.wording import sharing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.causes.removals import Removal
    from tracetool.explanation import CauseFound, Explanation
    from tracetool.explanation.path import PathPart
    from tracetool.reports import RunFacts

_MOST_PARTS = 24
"""So many parts of the critical path are printed; JSON has them all."""


_NO_GAIN_RATIO = 0.0005
"""A step that is longer by so much without a cause gains nothing by its removal: another wait takes its place."""
_WORTH_RATIO = 0.01
"""What shortens the step by less is not advised."""


def render_text(explained: Explanation, facts: RunFacts, width: int, *, verbose: bool) -> bytes:
    """The explanation as text of so many columns.

    Args:
        explained: The explanation.
        facts: Facts about the Run and the call.
        width: Columns.
        verbose: Also what causes mean, the critical path, and all notes.
    """
    words = PathWords(explained.answer.observed.global_ranks)
    warnings = [f"warning: {text}" for text in explained.answer.warnings]
    lines = [*wrapped([*warnings, *_idle(explained, words)], width), ""]
    lines += wrapped([*_asked(explained, facts if verbose else None)], width)
    lines += ["", *_table(explained, words), *_footnote(explained)]
    if not verbose:
        lines += ["", *wrapped(first_notes(explained.answer.notes), width)]
        return ("\n".join(lines) + "\n").encode()
    lines += [
        *wrapped([*_meanings(explained)], width),
        "",
        *_path(explained, words, width),
        "",
        *wrapped([*_spent(explained, words), *_trust(explained)], width),
    ]
    return ("\n".join(lines) + "\n").encode()


def _name(explained: Explanation) -> str:
    extra = explained.extra_forwards
    return explained.name + (f" +{','.join(map(str, extra))}" if extra is not None else "")


def _asked(explained: Explanation, facts: RunFacts | None) -> Iterator[str]:
    """What is explained."""
    metrics = explained.metrics
    if facts is not None:
        yield facts.name
    what = "as recorded" if explained.seen else "replayed"
    yield (
        f"  {_name(explained)}, {what}: {explained.microbatches} microbatches, {explained.p2p} transfers; a step of "
        f"{format_duration(metrics.step_ns)}, its window {format_duration(metrics.window_ns)}"
    )
    if not explained.seen:
        yield from (f"  link {link}" for link in explained.answer.scenario.topology.links)
        yield from (f"  {line}" for line in sharing_lines(explained.answer.scenario))


def _idle(explained: Explanation, words: PathWords) -> Iterator[str]:
    """How much ranks idle and why, what would shorten the step most, and what it cannot be shorter than."""
    metrics = explained.metrics
    yield (
        f"Ranks idle {format_duration(metrics.bubble_ns)} of the window on average ({metrics.bubble_ratio:.1%})"
        + (f", most for {explained.causes[0].cause.words.label}." if explained.causes else ".")
    )
    yield _advice(explained)
    busiest = explained.busiest_rank
    bound = f"The busiest rank ({words.rank(busiest)}) computes {format_duration(metrics.rank_compute_ns[busiest])}."
    if explained.without_any.step_ns is not None:
        bound += (
            " With free links, free transfers that slow no compute, and stages "
            f"{'equally fast' if explained.without_any.stages_alike else 'as they are'} a step takes "
            f"{_change(explained.without_any)}: compute, fill and drain, and the optimizer."
        )
    yield bound
    if crossing_uses(explained.answer.pipeline, explained.answer.scenario.topology):
        yield (
            "What collectives take over links is in none of these causes: it is part of computes and of what follows "
            "the last backward. tracetool advise says what faster or nearer links would save of it."
        )


def _advice(explained: Explanation) -> str:
    """What would shorten the step most."""
    best, longer = _best(explained), _longer(explained)
    if best is not None and _gain(best, explained) <= -_WORTH_RATIO:
        change = _signed(_gain(best, explained)) + (" of the recorded one" if _is_base(best) else "")
        step = format_duration(best.removal.step_ns or 0)
        return f"Most would come from {best.removal.how}: a step of {step} ({change})."
    told = f"No single cause of idle time would give {_WORTH_RATIO:.0%} of the step if it were removed."
    if longer is not None:
        told += f" A step of {longer.how}: {_signed(longer.change_ratio)} per microbatch."
    return told


def _change(removal: Removal) -> str:
    return f"{format_duration(removal.step_ns or 0)} ({_signed(removal.change_ratio)})"


def _longer(explained: Explanation) -> Removal | None:
    """The step with more microbatches, if it was replayed."""
    longer = (f.removal for f in explained.causes if f.removal.microbatches > explained.microbatches)
    return next(longer, None)


def _best(explained: Explanation) -> CauseFound | None:
    """The cause whose removal shortens the step most, with as many microbatches."""
    found = [cause for cause in explained.causes if cause.removal.microbatches == explained.microbatches]
    return min(found, key=lambda cause: _gain(cause, explained), default=None)


def _gain(found: CauseFound, explained: Explanation) -> float:
    """Change of the step without a cause: against the replay, and of the replay, which has no late host, itself."""
    if _is_base(found):
        return (found.removal.step_ns or 0) / explained.metrics.step_ns - 1
    return found.removal.change_ratio or 0.0


def _is_base(found: CauseFound) -> bool:
    """Whether the step without a cause is what others are compared with: of a recording, its replay."""
    return found.cause in LATE and bool(found.removal.step_ns) and found.removal.change_ratio is None


def _signed(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}".replace("-0.0%", "+0.0%")


def _table(explained: Explanation, words: PathWords) -> list[str]:
    rows = [("idle for", "mean", "most on", "", "step without", "")]
    for found in explained.causes:
        is_longer = found.removal.microbatches > explained.microbatches
        each = [format_duration(ns) for ns in found.rank_ns]
        alike = len(each) > 1 and len(set(each)) == 1
        change, step = _without(found, explained)
        rows.append(
            (
                found.cause.words.label,
                format_duration(found.mean_ns),
                "all ranks" if alike else f"rank {words.rank(found.worst_rank)}",
                "alike" if alike else each[found.worst_rank],
                step,
                change + ("*" if is_longer else " "),
            )
        )
    if explained.rest_ns:
        rows.append(("other causes", format_duration(explained.rest_ns), "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [aligned(row, widths) for row in rows]


def _without(found: CauseFound, explained: Explanation) -> tuple[str, str]:
    """The change without a cause, and the step then: of as many microbatches, and none where it would be longer."""
    removal = found.removal
    if removal.step_ns is None:
        return "", "-"
    if _is_base(found):
        return "base", format_duration(removal.step_ns)
    if removal.change_ratio is not None and removal.change_ratio >= _NO_GAIN_RATIO:
        return "", "no gain"
    same_work = removal.step_ns * explained.microbatches / (removal.microbatches or explained.microbatches)
    return _signed(removal.change_ratio), format_duration(same_work)


def _footnote(explained: Explanation) -> list[str]:
    """What the mark means, where a row has it."""
    longer = _longer(explained)
    if longer is None or longer.step_ns is None:
        return []
    return [f"  *: of every {explained.microbatches} microbatches, with {longer.microbatches} in a step"]


def _meanings(explained: Explanation) -> Iterator[str]:
    """What changes are of, what the causes mean, and what was replayed without them."""
    yield ""
    if explained.seen:
        recorded, base = explained.metrics.step_ns, explained.replayed_step_ns
        yield (
            f"  Changes are of the order replayed, whose host is never late: {format_duration(base)} "
            f"({_signed(base / recorded - 1)} of the {format_duration(recorded)} recorded)."
        )
    for found in explained.causes:
        yield f"  {found.cause.words.label}: {found.cause.words.meaning} Replayed: {found.removal.how}."
    longer = _longer(explained)
    if longer is not None and longer.step_ns is not None:
        each = format_duration(longer.step_ns / longer.microbatches)
        now = format_duration(explained.replayed_step_ns / explained.microbatches)
        yield (
            f"  a step of {longer.microbatches} microbatches, {each} for each instead of {now}: what more "
            "microbatches give; the change is per microbatch"
        )


def _path(explained: Explanation, words: PathWords, width: int) -> list[str]:
    lines = ["Critical path of the window: what each moment was spent with", "       from       took"]
    for part in explained.path[:_MOST_PARTS]:
        lines += _part(part, words, width)
    left = len(explained.path) - _MOST_PARTS
    if left > 0:
        rest = explained.path[-1].end_ns - explained.path[_MOST_PARTS].start_ns
        lines.append(f"  ... {left} more parts, {format_duration(rest)} ({Option.JSON} has all)")
    return lines


def _part(part: PathPart, words: PathWords, width: int) -> list[str]:
    """A line per step; of what repeats the first time, and how often."""
    indent = "  " if part.times > 1 else ""
    lines = []
    if part.times > 1:
        microbatches = sorted({m for step in part.steps for m in step.microbatches()})
        lines.append(
            _timed(part.start_ns, part.end_ns - part.start_ns)
            + f"{part.times} times, first microbatch {format_ranges(microbatches)}, at last "
            + f"{format_ranges(part.last_microbatches)}:"
        )
    lines += [_timed(step.start_ns, step.duration_ns) + indent + words.step(step) for step in part.steps]
    return [broken for line in lines for broken in wrap(line, width, " " * 24 + indent)]


def _timed(start_ns: int, duration_ns: int) -> str:
    return f"  {format_duration(start_ns):>9}  {format_duration(duration_ns):>9}  "


def _spent(explained: Explanation, words: PathWords) -> Iterator[str]:
    window = explained.metrics.window_ns
    told = []
    for what, duration in explained.spent_ns.items():
        name = what.words.label if isinstance(what, Cause) else f"computes of rank {words.rank(what)}"
        if duration >= 0.001 * window:
            told.append(f"{name} {duration / window:.1%}")
    yield f"In sums: {', '.join(told)}."


def _trust(explained: Explanation) -> Sequence[str]:
    check = explained.answer.fidelity
    lines = [
        f"fidelity: the observed order, replayed, takes a window of {format_duration(check.replayed_ns)} for the "
        f"observed {format_duration(check.observed_ns)}{check.held_up} ({check.error_ratio:+.2%}); changes are against "
        "the replay"
    ]
    if explained.remark:
        lines.append(f"{_name(explained)}: {explained.remark}")
    return [*lines, *map(Note, explained.answer.notes)]
