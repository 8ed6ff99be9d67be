"""Which schedule to run: one set of candidates, one rule and one mark, for replay, advice, sweeps, reports and SQL.

The rule: of the candidates whose predictions rest on most, the shortest step that fits the memory; of steps within
``RELEVANT_RATIO`` of it the one that needs least memory; and the recorded order where the lead over it is no larger
than the error of the predictions. An order that nothing recorded was like is never named ahead of one whose error is
known, only marked beside it.

Scenarios that are compared take one order more: what is run in one of them is run in the others too where it is shorter
than the recorded order that would be kept. Else a faster link looked slower, as two orders were compared over it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.replays import p2p_of
from tracetool.schedules import REFERENCE, SCHEDULES, needs_costs
from tracetool.schedules.names import recognise
from tracetool.whatif.accuracy import format_error, is_within_error
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import Schedule
    from tracetool.whatif.accuracy import KnownError

Evidence = Literal["recorded", "measured", "unproven"]
"""What a prediction rests on.

- recorded: predictions like it were compared with recorded steps, so its error is known (``accuracy``).
- measured: all its costs are measured, in the stages and transfers of the trace, but nothing like it was compared.
- unproven: costs are derived (halves of backwards, stages cut anew or copied), the order is made to measure, or
  transfers are issued in a way that the trace does not show, and nothing like it was compared.
"""

TIERS: tuple[Evidence, ...] = ("recorded", "measured", "unproven")
"""Surest first."""

UNPROVEN_MARK = "?"
"""Stands where the error of an unproven prediction would."""

UNPROVEN_TEXT = "no recorded step was like it"
"""What the mark means."""

_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


class Candidate(Protocol):
    """A schedule that was replayed in a scenario."""

    @property
    def schedule(self) -> str:
        """Its name."""

    @property
    def extra_forwards(self) -> tuple[int, ...] | None:
        """Warm-up forwards per rank beyond 1F1B's; None for schedules without any."""

    @property
    def p2p(self) -> str:
        """How its transfers are issued."""

    @property
    def step_ns(self) -> int | None:
        """Its step; None if it could not be replayed."""

    @property
    def needed_bytes(self) -> int | None:
        """What the fullest rank needs; None if it is unknown of any."""

    @property
    def feasible(self) -> bool | None:
        """Whether it fits; None if that is unknown."""

    @property
    def unlimited_ns(self) -> int | None:
        """Step of the warm-up that it would have without the memory limit; None if that cuts nothing."""

    @property
    def known_error(self) -> KnownError | None:
        """How far off such predictions were; None if nothing was like it."""

    @property
    def rests_on(self) -> Sequence[str]:
        """Of an unproven one, what nothing recorded was like."""

    @property
    def order_digest(self) -> str | None:
        """What its order is, whatever its name; None if it was not built."""


_Candidate = TypeVar("_Candidate", bound=Candidate)
Way = tuple[str, str]
"""A schedule, and how its transfers are issued."""


@dataclass(frozen=True, slots=True)
class Chosen(Generic[_Candidate]):
    """What to run of the candidates of one scenario, and what comes near.

    Attributes:
        best: By the rule; None if none fits.
        as_good: As sure, and it cannot be told which is shorter; the shortest first.
        unproven: Shorter, but predictions rest on less; the shortest of each schedule.
    """

    best: _Candidate | None
    as_good: tuple[_Candidate, ...] = ()
    unproven: tuple[_Candidate, ...] = ()


def default_schedules(observed: Schedule) -> list[str]:
    """Those to choose among where none are named: all that need no search, placed as what was recorded.

    The recorded order is among them under its own name if it has one.
    """
    if not observed.has_backwards:
        return [OBSERVED]
    kinds = [SCHEDULES.get(name) for name in SCHEDULES.names() if name != OBSERVED]
    names = [kind.name for kind in kinds if not kind.needs_costs]
    if observed.shape.chunks > 1:
        alike = [k.name for k in kinds if k.least_chunks > 1 and k.placement == observed.shape.placement]
        return [OBSERVED, *(name for name in names if name in alike)]
    return names if recognise(observed) is not None else [OBSERVED, *names]


def recorded_schedule(observed: Schedule, microbatches: int | None) -> str:
    """The recorded order by the name that builds it, else as observed; of other microbatches what schedule it is."""
    if not observed.has_backwards:
        return OBSERVED
    known = recognise(observed)
    if microbatches not in {None, observed.shape.microbatches}:
        return known.name if known is not None else REFERENCE
    named = known is not None and known.extra_forwards is None and observed.shape.chunks == 1
    return known.name if known is not None and named else OBSERVED


def rests_on(pipeline: Pipeline, name: str, schedule: Schedule, p2p: P2PMode) -> tuple[str, ...]:
    """Why a prediction may be off by more than one whose costs are measured, in words; empty if they are.

    Args:
        pipeline: What was measured, in the recorded stages.
        name: What was asked for.
        schedule: The order.
        p2p: How its transfers are issued.
    """
    reasons = []
    overlap = pipeline.overlap
    if overlap.way != NO_OVERLAP:
        reasons.append(f"layers that overlap by {overlap.way}")
    if overlap.bandwidth_bytes_per_s is not None:
        reasons.append("other links inside layers")
    if needs_costs(name):
        reasons.append("order made to measure")
    recorded, shape = pipeline.observed.shape, schedule.shape
    if (shape.chunks, shape.placement) != (recorded.chunks, recorded.placement) and shape.chunks > 1:
        reasons.append("two copies of each stage" if shape.is_bidirectional else "stages cut anew")
    is_split = any(action.kind in _HALVES for order in schedule.orders for action in order)
    if is_split and not any(kind in stage.costs for stage in pipeline.stages for kind in _HALVES):
        reasons.append("halves of backwards")
    if p2p not in {pipeline.p2p, p2p_of(schedule, pipeline, Scenario())}:
        reasons.append("receives posted ahead" if p2p == "posted-ahead" else f"{p2p} transfers")
    return tuple(reasons)


def evidence_of(one: Candidate) -> Evidence:
    """What a prediction rests on."""
    if one.known_error is not None:
        return "recorded"
    return "unproven" if one.rests_on else "measured"


def depth_label(extra_forwards: Sequence[int]) -> str:
    """Extra forwards per rank in short: ``+2,2,0,0``, and of more ranks ``+2×8,0×8``."""
    if len(extra_forwards) <= 4:
        return f"+{','.join(map(str, extra_forwards))}"
    return "+" + ",".join(f"{n}×{len(list(ranks))}" for n, ranks in groupby(extra_forwards))


def plan_name(plan: Candidate) -> str:
    """Schedule and depth, as ``geopipe +2,2,0,0``."""
    extra = plan.extra_forwards
    return plan.schedule + ("" if extra is None else f" {depth_label(extra)}")


def error_text(one: Candidate) -> str:
    """The error of a prediction for people: the largest seen, the mark of unproven ones, or nothing."""
    if one.known_error is not None:
        return format_error(one.known_error.step_ratio)
    return UNPROVEN_MARK if one.rests_on else ""


def is_as_good(one: Candidate, other: Candidate) -> bool:
    """Whether it cannot be told which of two steps is shorter: they differ by no more than the error of that."""
    return is_within_error(one.known_error, other.known_error, _step(other) / _step(one) - 1)


def choose_each(
    scenarios: Sequence[tuple[Sequence[_Candidate], str]],
    recorded: Callable[[Candidate], bool],
    alike: Sequence[Hashable] | None = None,
) -> list[Chosen[_Candidate]]:
    """What to run in each of several scenarios that are compared; see ``choose``.

    Args:
        scenarios: The candidates of each, and what they are compared with.
        recorded: As ``choose_best`` has it.
        alike: Of each what it shares with those it is compared with; by default all are compared.
    """
    groups = [None] * len(scenarios) if alike is None else alike
    run: dict[Hashable, set[Way]] = defaultdict(set)
    for group, (candidates, _) in zip(groups, scenarios, strict=True):
        best = choose_best(candidates, recorded)
        if best is not None and not recorded(best):
            run[group].add((best.schedule, best.p2p))
    return [
        choose(candidates, recorded, baseline, run[group])
        for group, (candidates, baseline) in zip(groups, scenarios, strict=True)
    ]


def choose(
    candidates: Iterable[_Candidate],
    recorded: Callable[[Candidate], bool] | None,
    baseline: str,
    elsewhere: Collection[Way] = (),
) -> Chosen[_Candidate]:
    """The candidate to run, those as good and those that may be better, each order once.

    Args:
        candidates: Of one scenario.
        recorded: As ``choose_best`` has it.
        baseline: What others are compared with: of orders of several names, it keeps this one.
        elsewhere: As ``choose_best`` has it.
    """
    tried = list(candidates)
    best = choose_best(tried, recorded, elsewhere)
    if best is None:
        return Chosen(None)
    once = distinct(tried, baseline, recorded)
    # A warm-up that memory cuts to another's order still tells the rule what is held back: only now are names merged.
    best = next(one for one in once if _identity(one) == _identity(best))
    tier = TIERS.index(evidence_of(best))
    near = [
        one
        for one in once
        if one is not best
        and one.step_ns is not None
        and one.feasible is not False
        and TIERS.index(evidence_of(one)) <= tier
        and is_as_good(best, one)
    ]
    return Chosen(best, tuple(sorted(near, key=_step)), tuple(_may_be_better(once, best)))


def distinct(
    candidates: Iterable[_Candidate], baseline: str, recorded: Callable[[Candidate], bool] | None = None
) -> list[_Candidate]:
    """One candidate for each order and way to issue transfers: the baseline, the recorded or the surest name of it.

    Args:
        candidates: Of one scenario.
        baseline: What others are compared with.
        recorded: Tells the recorded order.
    """

    def rank(one: Candidate) -> tuple[bool, ...]:
        unlike = recorded is not None and not recorded(one)
        return one.schedule != baseline, unlike, one.known_error is None, one.extra_forwards is not None

    tried = list(candidates)
    kept: dict[Hashable, _Candidate] = {}
    for one in tried:
        other = kept.setdefault(_identity(one), one)
        if rank(one) < rank(other):
            kept[_identity(one)] = one
    ids = {id(one) for one in kept.values()}
    return [one for one in tried if id(one) in ids]


def rows_of(
    candidates: Iterable[_Candidate], baseline: str, recorded: Callable[[Candidate], bool] | None = None
) -> list[_Candidate]:
    """What tables list: no order twice, but tuned ones: their depth is an answer of its own; see ``distinct``."""
    tried = list(candidates)
    ids = {id(one) for one in distinct(tried, baseline, recorded)}
    return [one for one in tried if id(one) in ids or one.extra_forwards is not None]


def _identity(one: Candidate) -> Hashable:
    # Stages cut anew, or memory taken otherwise, are another thing in the same order.
    is_known = one.order_digest is not None and one.step_ns is not None
    return (one.order_digest, one.p2p, one.step_ns, one.needed_bytes) if is_known else id(one)


def choose_best(
    candidates: Iterable[_Candidate],
    recorded: Callable[[Candidate], bool] | None,
    elsewhere: Collection[Way] = (),
) -> _Candidate | None:
    """The candidate to run, by the rule; None if none fits.

    As short as the shortest is what comes within ``RELEVANT_RATIO`` of it whether that fits or not; where nothing so
    short fits, memory holds the step back, and the shortest that fits is taken. More memory then never means a longer
    step. Where memory is known of none, those are taken of which it is unknown; where it is known of some and none of
    these fits, nothing is named: unknown is not "fits".

    Args:
        candidates: Of one scenario.
        recorded: Tells the recorded order (``recorded_test``); None where it is not among them.
        elsewhere: What is run in scenarios that this one is compared with: where the recorded order would be kept, the
            shorter ones of these are taken instead.
    """
    run = [one for one in candidates if one.step_ns is not None]
    fitting = [one for one in run if one.feasible]
    if not fitting and all(one.needed_bytes is None for one in run):
        fitting = [one for one in run if one.feasible is None]
    tier = next((tier for tier in TIERS if any(evidence_of(one) == tier for one in fitting)), None)
    fitting = [one for one in fitting if evidence_of(one) == tier]
    if not fitting:
        return None
    alike = [one for one in run if evidence_of(one) == tier]
    least = min(ns for one in alike for ns in (one.step_ns, one.unlimited_ns) if ns is not None)
    shortest = min(fitting, key=lambda one: (_step(one), one.needed_bytes or 0))
    near = [one for one in fitting if _step(one) - least <= RELEVANT_RATIO * _step(one)] or [shortest]
    if all(one.needed_bytes is not None for one in near):
        chosen = min(near, key=lambda one: (one.needed_bytes or 0, _step(one)))
    else:
        # Fewer extra forwards need less memory, whatever an activation takes.
        same = [one for one in near if (one.schedule, one.p2p) == (shortest.schedule, shortest.p2p)]
        chosen = min(same, key=lambda one: (sum(one.extra_forwards or ()), _step(one)))
    kept = next((one for one in fitting if recorded(one)), None) if recorded is not None else None
    if kept is None or not is_as_good(chosen, kept):
        return chosen
    shorter = [one for one in fitting if (one.schedule, one.p2p) in elsewhere and _step(one) < _step(kept)]
    return choose_best(shorter, None) or kept


def unchecked(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Names of the schedules of which it is unknown whether they fit the memory, each once.

    Args:
        candidates: Of one scenario.
    """
    return tuple(dict.fromkeys(one.schedule for one in candidates if one.step_ns is not None and one.feasible is None))


def nothing_fits(names: Sequence[str], limit: str = "the memory") -> str:
    """That nothing is to be named, in words.

    Args:
        names: Of which it is unknown whether they fit.
        limit: What they were to fit.
    """
    return f"nothing is known to fit {limit} (unknown of {', '.join(names)})" if names else f"nothing fits {limit}"


def recorded_test(pipeline: Pipeline) -> Callable[[Candidate], bool]:
    """Tells whether a candidate is the recorded order, with transfers as they were issued."""
    known = recognise(pipeline.observed)
    orders = {(OBSERVED, None)} | ({(known.name, known.extra_forwards)} if known is not None else set())
    return lambda one: one.p2p == pipeline.p2p and (one.schedule, one.extra_forwards) in orders


def _may_be_better(candidates: Iterable[_Candidate], best: _Candidate) -> list[_Candidate]:
    """Candidates that are shorter but whose predictions rest on less: the shortest of each schedule, in order."""
    tier = TIERS.index(evidence_of(best))
    by_name: dict[str, _Candidate] = {}
    for one in sorted((one for one in candidates if one.step_ns is not None), key=_step):
        if TIERS.index(evidence_of(one)) > tier and one.feasible is not False and _step(one) < _step(best):
            by_name.setdefault(one.schedule, one)
    return list(by_name.values())


def _step(one: Candidate) -> int:
    return one.step_ns or 0
