"""The schedule to run, as JSON has it in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.model.pipeline import P2P_MODE_NAMES
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from tracetool.whatif.results import Answer, Result


class NearInfo(msgspec.Struct, kw_only=True):
    """A schedule that comes near the one to run."""

    schedule: Annotated[str, doc("Name of the schedule.")]
    extra_forwards: Annotated[list[int] | None, doc("Warm-up forwards per rank beyond 1F1B's; null if n/a.")]
    p2p: Annotated[str, doc(f"How its transfers were issued: {P2P_MODE_NAMES}.")]
    feasible: Annotated[bool | None, doc("Fits the memory limit; null if memory is unknown.")]
    step_ns: Annotated[int, doc("First forward to the end of gradient reduction and optimizer.")]
    change_ratio: Annotated[float, doc("Its step over the baseline's, minus one.")]
    change_error_ratio: Annotated[
        float | None, doc("Error of that change, as far as recorded runs tell; null if none was like both.")
    ]
    seen_error_ratio: Annotated[
        float | None, doc("Largest step time error of such predictions on recorded runs; null if none was like it.")
    ]
    evidence: Annotated[str, doc("What the prediction rests on: recorded, measured or unproven.")]
    rests_on: Annotated[list[str], doc("Of an unproven one, what nothing recorded was like.")]


class BestInfo(NearInfo, kw_only=True):
    """The schedule to run, by the rule that advise and sweep have; where none fits, the one that lacks least."""

    as_good: Annotated[list[NearInfo], doc("As sure, with steps that differ by no more than the error.")]
    unproven: Annotated[list[NearInfo], doc("Shorter, but predictions rest on less; the shortest of each schedule.")]


def best_info(answer: Answer, best: Result) -> BestInfo:
    """The schedule to run as the struct of the schema."""
    chosen = answer.chosen
    return BestInfo(
        **msgspec.structs.asdict(_near(answer, best)),
        as_good=[_near(answer, result) for result in chosen.as_good],
        unproven=[_near(answer, result) for result in chosen.unproven],
    )


def _near(answer: Answer, best: Result) -> NearInfo:
    return NearInfo(
        schedule=best.schedule,
        extra_forwards=None if best.extra_forwards is None else list(best.extra_forwards),
        p2p=best.p2p,
        feasible=best.feasible,
        step_ns=best.step_ns,
        change_ratio=answer.step_change(best),
        change_error_ratio=answer.step_change_error(best),
        seen_error_ratio=best.seen_error_ratio,
        evidence=best.evidence,
        rests_on=list(best.rests_on),
    )
