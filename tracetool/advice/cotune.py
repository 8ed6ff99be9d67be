"""The depth of a tuned schedule together with micro-batch size and sequence length, at equal tokens per step.

The objective is the replayed step within the memory limit, all combinations tried (derived model of this tool):
a larger microbatch hides a link with fewer extra forwards, but each holds more, and there are fewer
of them to fill the pipeline. Everything but the recorded sizes is extrapolated (``costs.rescaled``).

Of each action's time, the part that stays when its microbatch grows: as its kernels tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from tracetool.costs.rescaled import MicrobatchSize, fixed_by_fit, with_batch
from tracetool.errors import Option, ScenarioError
from tracetool.model.notice import Silent
from tracetool.reconstruction.actions import ACCUMULATE_NODE
from tracetool.reconstruction.closeup.slowdown import WORTH_TELLING, busy_ns, gaps_of
from tracetool.replays.evaluation import evaluate
from tracetool.schedules import build_schedule
from tracetool.schedules.names import takers_of
from tracetool.units import format_size
from tracetool.whatif.depth import choose_depth
from tracetool.whatif.memory_limit import all_fit
from tracetool.whatif.seen_errors import SEEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracetool.costs.rescaled import Place
    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics
    from tracetool.reconstruction import Reconstruction


class Fixed(NamedTuple):
    """What stays.

    Attributes:
        times_ns: Per action; empty if no kernels are known.
        sums_found: Whether sums of weight gradients were told apart.
    """

    times_ns: dict[Place, int]
    sums_found: bool


def fixed_parts(recording: Reconstruction) -> Fixed:
    """Gaps between kernels, and the sums of weight gradients, of every action of the step."""
    times: dict[Place, int] = {}
    sums_found = False
    for segment in chain.from_iterable(recording.segments.values()):
        sums = sum(k.end_ns - k.start_ns for k in segment.kernels if ACCUMULATE_NODE in (k.node_name or ""))
        sums_found = sums_found or sums > 0
        gaps = segment.end_ns - segment.start_ns - busy_ns(segment)
        times[segment.stage, segment.kind, segment.microbatch] = gaps + sums
    return Fixed(times, sums_found)


EXTRAPOLATION_ERROR_RATIO = SEEN.given_sizes_ratio
"""Error of a forward and backward that were extrapolated within the bounds below."""

MOST_TOKENS_RATIO = 4
_LENGTHS = (Fraction(1, 2), Fraction(1), Fraction(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesCandidate:
    """One choice of sizes, replayed.

    Attributes:
        batch: What a microbatch is made of.
        microbatches: Per step, for as many tokens as recorded.
        extra_forwards: The schedule's depth, per pipeline rank.
        p2p: How transfers are issued.
        metrics: Of the replay.
        feasible: Whether it fits the memory limit; None if memory is unknown.
        extrapolated: Whether its costs are; those of the recorded sizes are measured.
    """

    batch: MicrobatchSize
    microbatches: int
    extra_forwards: tuple[int, ...]
    p2p: P2PMode
    metrics: Metrics
    feasible: bool | None
    extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CoTuning:
    """All choices at equal tokens.

    Attributes:
        schedule: What was replayed.
        recorded: What the recorded microbatches are made of.
        hidden: Hidden size of the model.
        tokens: Of a step, in one pipeline.
        candidates: The shortest step first, those that do not fit the memory after the others.
        error_ratio: Largest error of a forward and backward that were extrapolated so; None where that was not tried.
        assumptions: What the extrapolation rests on, in words.
    """

    schedule: str
    recorded: MicrobatchSize
    hidden: int
    tokens: int
    candidates: tuple[SizesCandidate, ...]
    error_ratio: float | None
    assumptions: tuple[str, ...]

    @property
    def measured(self) -> SizesCandidate:
        """The recorded sizes."""
        return next(each for each in self.candidates if not each.extrapolated)


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """Another recording of the same stages, with microbatches of other sizes."""

    pipeline: Pipeline
    batch: MicrobatchSize


class SizesScaling(NamedTuple):
    """How costs of a recording follow the sizes of its microbatches.

    Attributes:
        pipeline: What was measured.
        recorded: What its microbatches are made of.
        hidden: Hidden size of the model.
        fixed_ns: Of each action's time, what stays.
    """

    pipeline: Pipeline
    recorded: MicrobatchSize
    hidden: int
    fixed_ns: Mapping[Place, int]

    def at(self, wanted: MicrobatchSize) -> Pipeline:
        """The pipeline with microbatches of other sizes, extrapolated; of the recorded ones as measured."""
        if wanted == self.recorded:
            return self.pipeline
        how = partial(with_batch, recorded=self.recorded, wanted=wanted, hidden=self.hidden, fixed_ns=self.fixed_ns)
        return self.pipeline.each(how)


def scaling_of(recording: Reconstruction, recorded: MicrobatchSize) -> SizesScaling:
    """How costs of a recording follow the sizes of its microbatches, as its messages and kernels tell.

    Raises:
        ScenarioError: If the hidden size does not follow from messages.
    """
    pipeline = recording.pipeline
    return SizesScaling(pipeline, recorded, _hidden(pipeline, recorded), fixed_parts(recording).times_ns)


def co_tune(
    recording: Reconstruction,
    scenario: Scenario,
    recorded: MicrobatchSize,
    *,
    schedule: str | None = None,
    hidden: int | None = None,
    also: OtherSizes | None = None,
    progress: Progress | None = None,
) -> CoTuning:
    """Replay a tuned schedule, at the depth that is worth it, with every choice of sizes.

    Micro-batch sizes are all that divide the sequences of a step; lengths are half, as, and twice the recorded one;
    microbatches of more than four times the recorded tokens or less than a quarter are left out.

    Args:
        recording: A reconstructed Run.
        scenario: Links and limits.
        recorded: What the recorded microbatches are made of.
        schedule: Which one; by default the first that there is.
        hidden: Hidden size of the model; by default what messages of two bytes per number tell.
        also: Another recording, to fit what of the times stays; by default kernels tell.
        progress: Told how many choices of sizes there are, and how many are done.

    Raises:
        ScenarioError: If the hidden size is unknown, or the other recording does not go with this one.
        UnsupportedShape: If the pipeline has several stages per rank.
    """
    pipeline = recording.pipeline
    schedule = schedule or takers_of("extra forwards")[0]
    assumptions: list[str] = []
    if hidden is None:
        hidden = _hidden(pipeline, recorded)
        assumptions.append(f"h = {hidden} follows from messages of mbs × seq × h numbers of 2 bytes ({Option.HIDDEN})")
    fixed = _fixed(recording, recorded, hidden, also, assumptions)
    scaling = SizesScaling(pipeline, recorded, hidden, fixed)
    tokens = recorded.tokens * (scenario.microbatches or pipeline.observed.shape.microbatches)
    progress, choices, candidates = progress or Silent(), list(equal_sizes(recorded, tokens)), []
    progress.start(len(choices))
    for wanted in choices:
        candidates.append(_candidate(schedule, scaling, scenario, wanted, tokens))
        progress.advance(1)
    candidates.sort(key=lambda c: (c.feasible is False, c.metrics.step_ns, c.batch.length, c.batch.sequences))
    assumptions += [
        "activations and messages grow with mbs × seq; weights, gradients and optimizer stay",
        "as many tokens are not the same work: a shorter sequence has less attention to compute, and less context",
    ]
    unlike = _unlike_what_was_measured(recording)
    if unlike is None:
        assumptions.append(
            f"such times were within {EXTRAPOLATION_ERROR_RATIO:.0%} of measured ones, forward and backward together "
            "(a Llama-like layer on one H200); below the recorded tokens a slow host, which is not modelled, may add "
            "to them"
        )
    else:
        assumptions.append(f"by how much such times are off is unknown: {unlike}")
    error = EXTRAPOLATION_ERROR_RATIO if unlike is None else None
    return CoTuning(
        schedule=schedule, recorded=recorded, hidden=hidden, tokens=tokens, candidates=tuple(candidates),
        error_ratio=error, assumptions=tuple(assumptions),
    )  # fmt: skip


def _unlike_what_was_measured(recording: Reconstruction) -> str | None:
    """Why the known error does not hold: it is of a device that is not kept waiting and computes by itself."""
    if any(rank.load is None for rank in recording.pipeline.ranks):
        return "it was measured on H200 only"
    if any(c.tp or c.cp or c.ep for c in recording.coordinates):
        return "it was measured without tensor, context and expert parallelism"
    shares = gaps_of(chain.from_iterable(recording.segments.values()))
    longest = max(shares.values(), default=1.0)
    if longest >= WORTH_TELLING:
        return f"gaps between kernels are up to {longest:.0%} of an action's time, and need not stay"
    return None


def _hidden(pipeline: Pipeline, recorded: MicrobatchSize) -> int:
    payload = next((s.forward_payload_bytes for s in pipeline.stages if s.forward_payload_bytes), None)
    if payload is None or payload % (2 * recorded.tokens):
        known = "is unknown" if payload is None else f"of {format_size(payload)}"
        raise ScenarioError(
            f"the model's hidden size does not follow from the size of a message ({known}) with "
            f"{Option.MBS(recorded.sequences)} and {Option.SEQ(recorded.length)}, at 2 bytes per number.",
            hint=f"check {Option.MBS} and {Option.SEQ}, or give {Option.HIDDEN}",
        )
    return payload // (2 * recorded.tokens)


def _fixed(
    recording: Reconstruction, recorded: MicrobatchSize, hidden: int, also: OtherSizes | None, assumptions: list[str]
) -> Mapping[Place, int]:
    growth = "the rest grows with FLOPs, mbs × seq × (1 + seq / 6h)"
    if also is None:
        parts = fixed_parts(recording)
        stays = "gaps between kernels and sums of weight gradients" if parts.sums_found else "gaps between kernels"
        assumptions.append(
            f"of an action's time {stays} stay as recorded, {growth}"
            if any(parts.times_ns.values())
            else "all of an action's time grows with FLOPs, mbs × seq × (1 + seq / 6h): its kernels are unknown"
        )
        return parts.times_ns
    if len(also.pipeline.stages) != len(recording.pipeline.stages):
        raise ScenarioError(
            f"{Option.ALSO}: that recording has {len(also.pipeline.stages)} stages, this one "
            f"{len(recording.pipeline.stages)}.",
            hint="take a recording of the same model, cut into the same stages",
        )
    if also.batch.flops(hidden) == recorded.flops(hidden):
        raise ScenarioError(
            f"{Option.ALSO}: its microbatches are as large as those of this recording, so nothing can be fitted.",
            hint=f"say what they are made of with {Option.ALSO_MBS} and {Option.ALSO_SEQ}",
        )
    assumptions.append(f"of an action's time what two recordings tell stays, {growth}")
    return fixed_by_fit(recording.pipeline, recorded, also.pipeline, also.batch, hidden=hidden)


def equal_sizes(recorded: MicrobatchSize, tokens: int) -> Iterator[MicrobatchSize]:
    """What microbatches can be made of at equal tokens per step: see ``co_tune``.

    Args:
        recorded: What the recorded ones are made of.
        tokens: Of a step, in one pipeline.
    """
    for ratio in _LENGTHS:
        length = recorded.length * ratio
        if length.denominator != 1 or tokens % length:
            continue
        sequences = tokens // int(length)
        for count in range(1, sequences + 1):
            batch = MicrobatchSize(count, int(length))
            within = recorded.tokens <= MOST_TOKENS_RATIO * batch.tokens <= MOST_TOKENS_RATIO**2 * recorded.tokens
            if sequences % count == 0 and within:
                yield batch


def _candidate(
    schedule: str, scaling: SizesScaling, scenario: Scenario, wanted: MicrobatchSize, tokens: int
) -> SizesCandidate:
    pipeline, recorded = scaling.pipeline, scaling.recorded
    measured = scaling.at(wanted)
    microbatches = tokens // wanted.tokens
    shape = replace(pipeline.observed.shape, microbatches=microbatches)
    here = replace(scenario, microbatches=microbatches)
    if scenario.activation_bytes is not None:
        here = replace(
            here, activation_bytes=round(Fraction(scenario.activation_bytes * wanted.tokens, recorded.tokens))
        )
    extra, _ = choose_depth(schedule, measured, shape, here)
    done = evaluate(measured, build_schedule(schedule, shape, extra_forwards=extra), here)
    is_feasible = all_fit((of for _, of in done.kinds), here)
    return SizesCandidate(
        batch=wanted, microbatches=microbatches, extra_forwards=extra, p2p=done.replayed.p2p, metrics=done.metrics,
        feasible=is_feasible, extrapolated=wanted != recorded,
    )  # fmt: skip
