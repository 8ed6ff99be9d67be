"""What ``tracetool estimate`` prints for people: the answer first, one screen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.pipeline import NO_OVERLAP
from tracetool.reports.answer.text import table
from tracetool.reports.lines import Note, lines_left, wrapped
from tracetool.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from tracetool.estimates.asked import Estimated
    from tracetool.estimates.estimating import Estimate
    from tracetool.estimates.plans import PredictedPlan, PredictedPlans
    from tracetool.estimates.training import Training
    from tracetool.reports.estimate.json import EstimateFacts

_MOST_ROWS = 14
_LEAST_ROWS, _AROUND_ROWS = 3, 3
"""Measured runs that are shown at least, and lines around them: two blank ones and the head."""
_SHARED = "devices share {tiers}: all pipelines are taken to send at once, and each has its part"
_MODEL = "a derived model of this tool: tracetool help estimate"
_SEEN_RANKS = 4
_SEEN = "pairs of 0.6 ms and more were 5 % off on average, 17 % at most, shorter ones may wait for hosts"


def overlap_text(training: Training) -> str:
    """How layers overlap, and how sure what they take is."""
    way, ranks = training.overlap, training.tensor
    beyond = ""
    if way.startswith("p2p") and ranks > _SEEN_RANKS:
        beyond = f"; how {ranks} ranks share NCCL's blocks for sends was seen of two and four alone"
    return f"layers overlap by {way}, an estimate: {_SEEN}{beyond} (tracetool help overlap)"


def headline(done: Estimate) -> str:
    """What a job takes, in a sentence."""
    job, peak = done.job, max(done.peak_hbm_bytes)
    room = "" if peak <= job.device.hbm_bytes else f", more than the device's {format_size(job.device.hbm_bytes)}"
    return (
        f"Step {format_duration(done.step_ns)}, {done.mfu_ratio:.1%} MFU ({done.hfu_ratio:.1%} HFU), "
        f"{format_size(peak)} of HBM on the fullest rank{room}."
    )


def render_estimate(estimated: Estimated, facts: EstimateFacts, *, verbose: bool) -> bytes:
    """The answer, what it is made of, and how measured runs compare; as wide as the terminal at most."""
    done, job = estimated.job, estimated.job.job
    lines = [
        headline(done),
        "",
        f"  {job.model.name}, {job.model.parameters / 1e9:.1f} billion parameters, on "
        f"{format_count(job.training.devices, 'device')} ({job.device.name}): {_degrees(done)}",
        f"  {_basis(estimated, facts)}",
        *([f"  {overlap_text(job.training)}"] if job.training.overlap != NO_OVERLAP else []),
        f"  of the step: {_computing(job.training)} {_share(done.compute_ns, done)}, pipeline idle "
        f"{_share(done.window_ns - done.compute_ns, done)}, gradient reduction {_share(done.reduction_ns, done)}, "
        f"optimizer {_share(done.optimizer_ns, done)}; {done.tokens_per_s:,.0f} tokens/s",
    ]
    after = []
    if estimated.errors:
        runs = format_count(len(estimated.errors), "run")
        after.append(f"  {runs} that nothing was fitted on: off by {max(estimated.errors):.1%} at most")
    if estimated.shared_tiers:
        after.append(Note(_SHARED.format(tiers=" and ".join(estimated.shared_tiers))))
    after.append(Note(_MODEL))
    if verbose:
        after.append(Note("HBM by pipeline rank: " + ", ".join(map(format_size, done.peak_hbm_bytes))))
    head, below, cells = wrapped(lines), wrapped(after), measured_cells(estimated)
    room = max(_LEAST_ROWS, lines_left([*head, *below]) - _AROUND_ROWS)
    shown = cells if verbose or len(cells) <= room else cells[: room - 1]
    rows = table([MEASURED_HEAD, *shown]) if cells else []
    rows += [f"  {format_count(len(cells) - len(shown), 'run')} more: -v"] if len(shown) < len(cells) else []
    return ("\n".join([*head, "", *rows, *([""] if cells else []), *below]) + "\n").encode()


def _computing(training: Training) -> str:
    """What actions do: collectives within layers are in their time."""
    alone = training.tensor == training.context == training.expert == 1
    return "compute" if alone else "compute with collectives within layers"


def _degrees(done: Estimate) -> str:
    training = done.job.training
    named = (
        ("tensor", training.tensor), ("context", training.context), ("pipeline", training.stages),
        ("chunks", training.chunks), ("data", training.data), ("expert", training.expert),
    )  # fmt: skip
    wide = " · ".join(f"{name} {degree}" for name, degree in named if degree > 1) or "one of each"
    return f"{wide}, {training.microbatches} microbatches of {training.batch} x {training.sequence:,} tokens"


def _basis(estimated: Estimated, facts: EstimateFacts) -> str:
    done, fitted = estimated.job, estimated.fitted
    over = f"over {facts.network}" if facts.network else "messages take no time"
    if facts.layers:
        return f"layers as timed in {facts.layers}; {over}"
    origin = f"fitted on {', '.join(fitted)}" if fitted else "as given"
    return f"matrix products at {done.job.training.efficiency_ratio:.1%} of the peak, {origin}; {over}"


def _share(took_ns: int, done: Estimate) -> str:
    return f"{took_ns / done.step_ns:.1%}"


MEASURED_HEAD = ("run", "measured", "estimated", "error", "MFU", "HFU", "HBM")


def measured_cells(estimated: Estimated) -> list[tuple[str, ...]]:
    """Measured runs against their estimates, row by row."""
    return [
        (
            row.name if row.job.network is None else f"{row.name} (own network)",
            f"{row.measured_s:.2f} s", f"{row.predicted_s:.2f} s",
            "fitted" if estimated.is_fitted(row) else f"{row.error_ratio:+.1%}", f"{row.mfu_ratio:.1%}",
            f"{row.hfu_ratio:.1%}", format_size(max(row.peak_hbm_bytes)),
        )
        for row in estimated.measured
    ]  # fmt: skip


_PLANS_HEAD = ("plan", "measured", "predicted", "error", "GiB", "predicted", "error", "")


def render_plans(done: PredictedPlans, facts: EstimateFacts, *, verbose: bool) -> bytes:
    """The errors, each plan, and what is said of it; as wide as the terminal at most."""
    shown = done.rows if verbose else done.rows[:_MOST_ROWS]
    said = {text: number for number, text in enumerate(dict.fromkeys(t for row in shown for t in row.reasons), 1)}
    lines = [_headline(done), ""]
    rows = table([_PLANS_HEAD, *(_plan_cells(row, said) for row in shown)])
    after = [f"  {number}  {text}" for text, number in said.items()] if verbose else []
    if len(shown) < len(done.rows):
        after.append(f"  {len(done.rows) - len(shown)} plans more: -v")
    if said and not verbose:
        after.append("  ? doubtful figures, (n) something that weighs is left out: -v says what")
    after.append(
        Note(
            f"layers as timed in {facts.layers}, over {facts.network}; no plan is fitted on, two constants "
            "are assumed: tracetool help estimate"
        )
    )
    return ("\n".join([*wrapped(lines), *rows, "", *wrapped(after)]) + "\n").encode()


def _headline(done: PredictedPlans) -> str:
    plans = format_count(len(done.rows), "plan")
    absent = sum(row.step_ns is None for row in done.rows)
    compared = len(done.errors())
    without = f", {absent} not predicted" if absent else ""
    if done.mape_ratio is None:
        return f"{plans}{without}: no measured step to compare with."
    worst = max(done.rows, key=lambda row: abs(row.error_ratio or 0))
    doubtful = sum(row.doubtful for row in done.rows)
    sound = f" ({done.mape_sound_ratio:.1%} without {doubtful} doubtful)" if doubtful and done.mape_sound_ratio else ""
    peak = "" if done.max_peak_error_ratio is None else f"; memory off by {done.max_peak_error_ratio:.1%} at most"
    return (
        f"{compared} of {plans} compared{without}: steps off by {done.mape_ratio:.1%} on average{sound}, "
        f"{worst.error_ratio:+.1%} at worst ({worst.name}){peak}."
    )


def _plan_cells(row: PredictedPlan, said: dict[str, int]) -> tuple[str, ...]:
    marks = " ".join(f"({said[text]})" for text in row.reasons)
    return (
        row.name,
        "" if row.plan.step_s is None else f"{row.plan.step_s:.3f} s",
        "-" if row.step_ns is None else f"{row.step_ns / 1e9:.3f} s",
        "" if row.error_ratio is None else f"{row.error_ratio:+.1%}",
        _gib(row.plan.max_allocated_bytes),
        _gib(row.peak_predicted_bytes),
        "" if row.peak_error_ratio is None else f"{row.peak_error_ratio:+.1%}",
        f"{'? ' if row.doubtful else ''}{marks}".strip(),
    )


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.2f}"
