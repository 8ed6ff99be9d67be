"""Why a step takes as long as it does, for people: the answer first, then causes, then the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.causes.cause import LATE, Cause
from tracetool.errors import Option
from tracetool.reports.answer.notes import first_notes
from tracetool.reports.answer.text import aligned
from tracetool.reports.explanation import PathWords
from tracetool.reports.lines import Note, lines_left, wrap, wrapped
from tracetool.units import format_duration, format_ranges
from tracetool.whatif.job import setting_text
from tracetool.whatif.wording import links_text, sharing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.causes.removals import Removal
    from tracetool.explanation import CauseFound, Explanation
    from tracetool.explanation.path import PathPart
    from tracetool.reports import RunFacts

_MOST_PARTS = 24
"""So many parts of the critical path are printed; JSON has them all."""


_NO_GAIN_RATIO = 0.0005
"""A step that is not shorter by so much without a cause gains nothing by its removal: another wait takes its place."""
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
    words = PathWords(explained.global_ranks)
    warnings = [f"warning: {text}" for text in explained.answer.warnings]
    sentences, inside = [*warnings, *idle_sentences(explained)], [*_inside(explained)]
    if not verbose:
        asked = ["", *wrapped([*_asked(explained)], width), ""]
        return _screen(
            explained, words, width, [[*sentences, _shortest(explained), *inside], [*sentences, *inside]], asked
        )
    lines = [*wrapped([*sentences, _bound(explained, words), *inside], width), ""]
    lines += [*wrapped([*_asked(explained, facts)], width), ""]
    lines += [
        *_table(explained, words, width, len(explained.causes)),
        *wrapped([*_meanings(explained)], width),
        "",
        *_path(explained, words, width),
        "",
        *wrapped([*_spent(explained, words), *_trust(explained)], width),
    ]
    return ("\n".join(lines) + "\n").encode()


def _screen(
    explained: Explanation, words: PathWords, width: int, answers: Sequence[Sequence[str]], asked: Sequence[str]
) -> bytes:
    """The answer, as many causes as there is room for, and the notes of which it hangs.

    Args:
        explained: The explanation.
        words: Of its ranks.
        width: Columns.
        answers: The answer in full, and shorter.
        asked: What is explained.
    """
    all_notes = first_notes(explained.answer.notes, width)
    for sentences in answers:
        lines = [*wrapped(sentences, width), *asked]
        notes = first_notes(explained.answer.notes, width, [*lines, *[""] * (_BESIDE_CAUSES + _FEWEST_CAUSES)])
        room = lines_left(lines, width) - _BESIDE_CAUSES - len(notes)
        if room >= _ENOUGH_CAUSES and len(notes) >= min(2, len(all_notes)):
            break
    table = _table(explained, words, width, max(_FEWEST_CAUSES, room))
    return ("\n".join([*lines, *table, "", *notes]) + "\n").encode()


_FEWEST_CAUSES = 3
_ENOUGH_CAUSES = 5
"""Where there is no room for so many beside notes, the answer is told shorter."""
_BESIDE_CAUSES = 4
"""Lines besides rows of causes and notes: head, other causes, what a mark means, and an empty one."""


def _name(explained: Explanation) -> str:
    extra = explained.extra_forwards
    return explained.name + (f" +{','.join(map(str, extra))}" if extra is not None else "")


def _asked(explained: Explanation, facts: RunFacts | None = None) -> Iterator[str]:
    """What is explained; with facts, all of it."""
    metrics, links = explained.metrics, explained.answer.scenario.topology.links
    if facts is not None:
        yield facts.name
    what = "as recorded" if explained.is_recorded else "replayed"
    over = f" over {links_text(links)}" if links and not explained.is_recorded and facts is None else ""
    sentence = (
        f"  {_name(explained)}, {what}{over}: {explained.microbatches} microbatches, {explained.p2p} transfers; a step "
    )
    sentence += f"of {format_duration(metrics.step_ns)}"
    yield sentence if facts is None else f"{sentence}, its window {format_duration(metrics.window_ns)}"
    if not explained.is_recorded:
        told_apart = facts is not None or not links
        yield from (f"  {line}" for line in explained.answer.scenario.topology.lines() if told_apart)
        yield from (f"  {line}" for line in sharing_lines(explained.answer.scenario))
    setting = explained.answer.results[0].slowest
    if setting is not None:
        yield f"  {setting_text(setting)}"


def idle_sentences(explained: Explanation) -> Iterator[str]:
    """How much ranks idle and why, and what would shorten the step most."""
    metrics = explained.metrics
    beyond = metrics.step_ns - metrics.window_ns
    parts = [f"{format_duration(beyond)} of it after its last backward"] if beyond else []
    parts += [f"most for {explained.causes[0].cause.words.label}"] if explained.causes else []
    sentence = f"Ranks idle {format_duration(explained.idle_ns)} of the step on average"
    yield ", ".join([f"{sentence} ({explained.idle_ns / metrics.step_ns:.1%})", *parts]) + "."
    yield _advice(explained)
    if explained.tiers:
        yield f"Without {', '.join(f'tier {name}: {_change(gone)}' for name, gone in explained.tiers.items())}."


def _bound(explained: Explanation, words: PathWords) -> str:
    """What the step cannot be shorter than."""
    busiest, beyond = explained.busiest_rank, explained.metrics.step_ns > explained.metrics.window_ns
    compute = format_duration(explained.metrics.rank_compute_ns[busiest])
    bound = f"The busiest rank ({words.rank(busiest)}) computes {compute}."
    if explained.without_any.step_ns is not None:
        bound += (
            " With free links, free transfers that slow no compute, and stages "
            f"{'equally fast' if explained.without_any.stages_alike else 'as they are'} a step takes "
            f"{_change(explained.without_any)}: compute, fill and drain{', and what follows' * beyond}."
        )
    return bound


def _shortest(explained: Explanation) -> str:
    """The same, in short."""
    bound = explained.without_any
    if bound.step_ns is None:
        compute = format_duration(max(explained.metrics.rank_compute_ns))
        return f"No step of these computes is shorter than {compute}, what the busiest rank computes."
    alike = " and equally fast stages" if bound.stages_alike else ""
    return f"At best, with free links and transfers{alike}, a step takes {_change(bound)}."


def _inside(explained: Explanation) -> Iterator[str]:
    """What links make of collectives inside computes."""
    inside = explained.over_no_links
    if inside is not None and inside.step_ns is not None:
        yield (
            "Collectives inside computes cross links and make these longer, which is no idle time: inside one DC a "
            f"step takes {_change(inside)}."
        )


def _advice(explained: Explanation) -> str:
    """What would shorten the step most; where that is more microbatches, also what would with as many."""
    worth = [cause for cause in explained.causes if _gain(cause, explained) <= -_WORTH_RATIO]
    if not worth:
        return f"No single cause of idle time would give {_WORTH_RATIO:.0%} of the step if it were removed."
    best = min(worth, key=lambda cause: _gain(cause, explained))
    if not _is_longer(best, explained):
        return f"Most would come from {_offer(best, explained)}."
    sentence = f"Most would come from {best.removal.how}: {_signed(best.removal.change_ratio)} per microbatch"
    others = [cause for cause in worth if not _is_longer(cause, explained)]
    if not others:
        return f"{sentence}."
    return f"{sentence}; with as many as now, from {_offer(min(others, key=lambda c: _gain(c, explained)), explained)}."


def _offer(cause: CauseFound, explained: Explanation) -> str:
    change = _signed(_gain(cause, explained)) + (" of the recorded one" if _is_base(cause) else "")
    return f"{cause.removal.how}: a step of {format_duration(cause.removal.step_ns or 0)} ({change})"


def _is_longer(cause: CauseFound, explained: Explanation) -> bool:
    """Whether the step without a cause has more microbatches."""
    return cause.removal.microbatches > explained.microbatches


def _change(removal: Removal) -> str:
    return f"{format_duration(removal.step_ns or 0)} ({_signed(removal.change_ratio)})"


def _longer(explained: Explanation) -> Removal | None:
    """The step with more microbatches, if it was replayed."""
    longer = (cause.removal for cause in explained.causes if _is_longer(cause, explained))
    return next(longer, None)


def _gain(cause: CauseFound, explained: Explanation) -> float:
    """Change of the step without a cause: against the replay, and of the replay, which has no late host, itself."""
    if _is_base(cause):
        return (cause.removal.step_ns or 0) / explained.metrics.step_ns - 1
    return cause.removal.change_ratio or 0.0


def _is_base(cause: CauseFound) -> bool:
    """Whether the step without a cause is what others are compared with: of a recording, its replay."""
    return cause.cause in LATE and bool(cause.removal.step_ns) and cause.removal.change_ratio is None


def _signed(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}".replace("-0.0%", "+0.0%")


def _table(explained: Explanation, words: PathWords, width: int, most: int) -> list[str]:
    """So many causes, and the others in sum; where there is no room, without the rank that has most of each."""
    rows: list[tuple[str, ...]] = [("idle for", "mean", "most on", "", "step without", "")]
    for cause in explained.causes[:most]:
        each = [format_duration(ns) for ns in cause.rank_ns]
        alike = len(each) > 1 and len(set(each)) == 1
        change, step = _without(cause, explained)
        rows.append(
            (
                cause.cause.words.label,
                format_duration(cause.mean_ns),
                "all ranks" if alike else f"rank {words.rank(cause.worst_rank)}",
                "alike" if alike else each[cause.worst_rank],
                step,
                change + ("*" if _is_longer(cause, explained) else " "),
            )
        )
    rest_ns = explained.rest_ns + sum(cause.mean_ns for cause in explained.causes[most:])
    if rest_ns:
        rows.append(("other causes", format_duration(rest_ns), "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + 2 * len(widths) > width:
        rows, widths = [(*row[:2], *row[4:]) for row in rows], [*widths[:2], *widths[4:]]
    return [*(aligned(row, widths) for row in rows), *wrapped(_footnote(explained, most), width)]


def _without(cause: CauseFound, explained: Explanation) -> tuple[str, str]:
    """The change without a cause, and the step then: of as many microbatches, and none where it is not shorter."""
    removal = cause.removal
    if removal.step_ns is None:
        return "", "-"
    if _is_base(cause):
        return "base", format_duration(removal.step_ns)
    if removal.change_ratio is not None and removal.change_ratio > -_NO_GAIN_RATIO:
        return "", "no gain"
    same_work = removal.step_ns * explained.microbatches / (removal.microbatches or explained.microbatches)
    return _signed(removal.change_ratio), format_duration(same_work)


def _footnote(explained: Explanation, most: int) -> list[str]:
    """What marks mean, where a row of the first causes has them."""
    shown, longer, lines = explained.causes[:most], _longer(explained), []
    if longer is not None and longer.step_ns is not None and any(_is_longer(cause, explained) for cause in shown):
        lines.append(f"*: of every {explained.microbatches} microbatches, with {longer.microbatches} in a step")
    if any(_is_base(cause) for cause in shown):
        lines.append("base: what changes are of")
    return [f"  {'; '.join(lines)}"] if lines else []


def _meanings(explained: Explanation) -> Iterator[str]:
    """What changes are of, what the causes mean, and what was replayed without them."""
    yield ""
    if explained.is_recorded:
        recorded, base = explained.metrics.step_ns, explained.replayed_step_ns
        yield (
            f"  Changes are of the order replayed, whose host is never late: {format_duration(base)} "
            f"({_signed(base / recorded - 1)} of the {format_duration(recorded)} recorded)."
        )
    for cause in explained.causes:
        yield f"  {cause.cause.words.label}: {cause.cause.words.meaning} Replayed: {cause.removal.how}."
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
    parts = []
    for what, duration in explained.spent_ns.items():
        name = what.words.label if isinstance(what, Cause) else f"computes of rank {words.rank(what)}"
        if duration >= 0.001 * window:
            parts.append(f"{name} {duration / window:.1%}")
    yield f"In sums: {', '.join(parts)}."


def _trust(explained: Explanation) -> Sequence[str]:
    check = explained.answer.fidelity
    lines = [
        f"fidelity: the recorded order, replayed, takes a window of {format_duration(check.replayed_ns)} for the "
        f"recorded {format_duration(check.observed_ns)}{check.held_up} ({check.error_ratio:+.2%}); changes are against "
        "the replay"
    ]
    if explained.remark:
        lines.append(f"{_name(explained)}: {explained.remark}")
    return [*lines, *map(Note, explained.answer.notes)]
