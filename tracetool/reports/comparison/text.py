"""A comparison for people: on a terminal, and as Markdown for a job summary or a comment."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.comparison.limits import format_value
from tracetool.comparison.summary import chosen_lines, percent, signed, summary
from tracetool.errors import Option
from tracetool.model.notice import NoticeCode
from tracetool.reports.answer.text import table
from tracetool.reports.lines import Note, terminal_width, wrap, wrapped
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.comparison import Comparison
    from tracetool.comparison.sides import Side
    from tracetool.comparison.verdict import Line
    from tracetool.reports import CallFacts

MOST_CAUSES = 6
_SCREEN_LINES = 6
_SCREEN_CAUSES = 3


def render_text(done: Comparison, _facts: CallFacts, width: int | None = None, *, verbose: bool = True) -> bytes:
    """The comparison as text: summary, table, causes, limits.

    Args:
        done: The comparison.
        width: Columns; by default the terminal's.
        verbose: Also what is compared, more causes, and all notes; else one screen.
    """
    lines = [*wrapped([summary(done)], width), ""]
    sides = [*_side("base", done.base), *_side("new ", done.new)] if verbose else []
    gate = [f"  {gate_words(done)}"] if verbose or done.gate == "tool" else []
    lines += [*wrapped([*sides, *gate], width), ""] if gate else []
    limited = [check.line for check in done.checks]
    first = done.shown[:_SCREEN_LINES]
    shown = [line for line in done.shown if verbose or line in first or line in limited]
    rows = [("", "base", "new", "change", ""), *(line_cells(done, line) for line in shown)]
    room = width or terminal_width()
    if sum(2 + max(map(len, column)) for column in zip(*rows, strict=True)) > room:
        rows = [*rows[:1], *((*line_cells(done, line)[:-1], line.verdict) for line in shown)]
    lines += table(rows, room)
    lines += wrapped([f"  {words}" for words in (*_doubts(shown), *_hidden(done, shown))], width)
    for metric, title in explained_metrics(done)[: None if verbose else 1]:
        lines += ["", title]
        causes = _cause_rows(done, metric, MOST_CAUSES if verbose else _SCREEN_CAUSES)
        amounts = max(len(amount) for amount, _ in causes)
        for amount, words in causes:
            lines += wrap(f"  {amount:>{amounts}}  {words}", width or terminal_width(), " " * (amounts + 6))
    checks = [f"  {check.limit.text}: {check.outcome}: {check.detail}" for check in done.checks]
    # The first line says why the sides are not held against each other.
    failures = [failure for failure in done.failures if not done.checks and failure not in done.apart[:1]]
    tail = [
        *checks,
        *(f"  {failure}" for failure in failures),
        *(["  informational: this would fail"] if done.level == "would fail" else []),
    ]
    notes = [note for note in done.notes if str(note) not in failures]
    notes.sort(key=lambda note: note.code not in (NoticeCode.RANK_SLOW_ELSEWHERE, NoticeCode.RANK_SLOW_MOVED))
    tail += map(Note, notes if verbose else notes[:1])
    if not verbose:
        rest = f"{format_count(len(notes) - 1, 'note')} more, " if notes[1:] else ""
        tail.append(f"{rest}both sides and all causes: -v")
    lines += ["", *wrapped(tail, width)] if tail else []
    return ("\n".join(lines) + "\n").encode()


def _doubts(shown: Sequence[Line]) -> list[str]:
    """Why lines are inconclusive, or do not count, each reason once."""
    reasons: dict[str, list[Line]] = {}
    for line in shown:
        if line.why:
            reasons.setdefault(line.why, []).append(line)
    doubts = []
    for why, lines in reasons.items():
        all_of_them = lines == [line for line in shown if line.verdict == "inconclusive"]
        names = "inconclusive" if all_of_them else ", ".join(line.key.text for line in lines)
        doubts.append(f"{names}: {why}")
    return doubts


def _hidden(done: Comparison, shown: Sequence[Line]) -> list[str]:
    """How many lines are not shown, by verdict."""
    rest = [line for line in done.lines if line not in shown]
    single = [line for line in rest if line.base is None or line.new is None]
    both = Counter(line.verdict for line in rest if line not in single)
    counts = [f"{count} {verdict}" for verdict, count in sorted(both.items(), reverse=True)]
    counts += [f"{len(single)} of one side only"] if single else []
    return [f"{format_count(len(rest), 'other value')}: {', '.join(counts)} ({Option.JSON} has all)"] if rest else []


def _cause_rows(done: Comparison, metric: str, most: int) -> list[tuple[str, str]]:
    """Contribution and words of the largest causes, of the others together, and of what replay does not give."""
    unit = _unit(done, metric)
    *causes, rest = done.causes[metric]
    causes = [cause for cause in causes if cause.value]
    # A single other one takes no more room than that there is one.
    most += len(causes) == most + 1
    # Another order is something to know of, however little it gives.
    shown = [cause for at, cause in enumerate(causes) if at < most or cause.kind == "order"]
    rows = [(signed(unit, cause.value), f"{cause.name}: {cause.detail}") for cause in shown]
    if len(causes) > len(shown):
        others = sum((cause.value for cause in causes if cause not in shown), Fraction(0))
        rows.append((signed(unit, others), format_count(len(causes) - len(shown), "smaller cause")))
    return [*rows, (signed(unit, rest.value), f"{rest.name}: {rest.detail}")]


def _side(label: str, side: Side) -> list[str]:
    return [
        f"  {label} {source.name}: {format_count(len(source.steps), 'step')} ({format_ranges(source.steps)}), "
        f"traces {source.digest[:12]}, tracetool {source.tool_version}"
        for source in side.sources
    ]


def gate_words(done: Comparison) -> str:
    """Which gate it is, and what opens it."""
    if done.gate == "tool":
        return "same traces: every value must be the same" + (" (accepted)" if done.accepted else "")
    rules = done.rules
    return (
        f"other traces: a change counts with a rank test's p up to {rules.alpha:g} and of at least "
        f"{100 * rules.least_ratio:g} %"
    )


def line_cells(done: Comparison, line: Line) -> tuple[str, str, str, str, str]:
    """Its name, base, new, change and verdict."""
    before, after = ("none" if v is None else format_value(line.metric.unit, v) for v in (line.base, line.new))
    change = "" if line.change_ratio is None else percent(line.change_ratio)
    return _named(done, line), before, after, change, verdict_words(line)


def _named(done: Comparison, line: Line) -> str:
    subject = done.subjects.get(line.key.text, "")
    return f"{line.key.text} ({subject})" if subject and line.key.rank is None else line.key.text


def verdict_words(line: Line) -> str:
    """The verdict, with what it rests on."""
    return line.verdict if line.p is None else f"{line.verdict} (p {line.p:.2g})"


def explained_metrics(done: Comparison) -> list[tuple[str, str]]:
    """Keys, as text, whose causes are worth telling, with a title: of step and memory, as far as they changed."""
    step = [line for line in done.lines if line.key.text == "step_ns" and line.change]
    changed = [line for line in done.lines if line.verdict in ("regressed", "improved") and line.change]
    chosen = [line for line in chosen_lines(done) if line in changed]
    peaks = [line for line in changed if line.key.metric == "peak_hbm_bytes"]
    lines = {line.key.text: line for line in (*chosen, *step, *peaks) if line.key.text in done.causes}
    return [
        (name, f"{name} {signed(line.metric.unit, Fraction(line.change or 0))}, of it") for name, line in lines.items()
    ]


def _unit(done: Comparison, metric: str) -> str:
    return next(line.metric.unit for line in done.lines if line.key.text == metric)


MARKER = "<!-- tracetool-compare -->"
_SIGNS = {"improved": "🟢", "unchanged": "⚪", "regressed": "🔴", "inconclusive": "🟡"}


_OUTCOMES = {
    "passes": "🟢 passes", "unsure": "🟡 passes, as it cannot be told", "would fail": "🟡 would fail (informational)",
    "fails": "🔴 fails",
}  # fmt: skip


def render_markdown(done: Comparison, facts: CallFacts, max_bytes: int = 64_000) -> bytes:
    """The comparison as Markdown; what does not fit is left out from the end, and said.

    Args:
        done: The comparison.
        facts: The call.
        max_bytes: Its greatest size: a comment of GitHub takes 64 kB, a job summary 1 MiB.
    """
    head = [
        MARKER,
        f"**{_escaped(summary(done))}**",
        "",
        f"{_OUTCOMES[done.level]}: {_why(done)}",
        "",
    ]
    blocks = [_table(done, done.shown)]
    for metric, title in explained_metrics(done):
        unit = _unit(done, metric)
        rows = [
            f"| {signed(unit, c.value)} | {_escaped(c.name)} | {_escaped(c.detail)} |"
            for c in done.causes[metric]
            if c.value
        ]
        blocks.append([f"**{title}**", "", "| | cause | |", "|--:|---|---|", *rows])
    if done.checks:
        rows = [f"| {_code(c.limit.text)} | {c.outcome} | {_escaped(c.detail)} |" for c in done.checks]
        blocks.append(["| limit | | |", "|---|---|---|", *rows])
    if done.notes:
        blocks.append([f"- {_escaped(str(note))}" for note in done.notes])
    rest = [line for line in done.lines if line not in done.shown]
    blocks.append(["<details><summary>everything else</summary>", "", *_table(done, rest), "", "</details>"])
    sources = [line.strip() for side, of in (("base", done.base), ("new", done.new)) for line in _side(side, of)]
    blocks.append(
        [*(f"- {_escaped(line)}" for line in sources), f"- {gate_words(done)}", "", f"Again: {_code(facts.command)}"]
    )
    text = "\n".join(head)
    cut = "\n\nLeft out, for the size: see the JSON form.\n"
    for block in blocks:
        more = "\n" + "\n".join(block) + "\n"
        if len((text + more + cut).encode()) > max_bytes:
            return _fitting(text, cut, max_bytes)
        text += more
    return text.encode()


def _fitting(text: str, cut: str, max_bytes: int) -> bytes:
    room = max(0, max_bytes - len(cut.encode()))
    return text.encode()[:room].decode(errors="ignore").encode() + cut.encode()[: max(0, max_bytes)]


def _why(done: Comparison) -> str:
    if done.failures:
        return _escaped("; ".join(done.failures))
    return f"{gate_words(done)}; only the limits below can close the gate" if done.checks else gate_words(done)


def _table(done: Comparison, lines: Sequence[Line]) -> list[str]:
    rows = ["| | base | new | change | |", "|---|--:|--:|--:|---|"]
    for line in lines:
        name, before, after, change, verdict = line_cells(done, line)
        rows.append(f"| {_code(name)} | {before} | {after} | {change} | {_SIGNS[line.verdict]} {_escaped(verdict)} |")
    return rows


def _code(text: str) -> str:
    """Text as code: nothing in it is markup but the backtick, and the bar in a table."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`".replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text that Markdown takes as it is, also in a table."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    # Nobody is called, and no issue linked, by a name of a file.
    text = text.replace("#", "&#35;").replace("@", "&#64;")
    return " ".join(text.split())
