"""The schedule to run, as JSON has it in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracetool.comparison.report import BestInfo, NearInfo

if TYPE_CHECKING:
    from tracetool.whatif.results import Answer, Result


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
