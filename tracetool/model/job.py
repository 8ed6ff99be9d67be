"""Which pipelines of a job are alike, by their costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIKE_RATIO = 0.02
"""Costs of ranks that are nearer to each other, as a share of what they compute, are alike: what comparisons of
recordings take for no change as well."""
AS_LONG_RATIO = 0.005
"""Pipelines whose windows are nearer to the longest one's, as a share of that, set the step together with it."""


@dataclass(frozen=True, slots=True)
class AlikePipelines:
    """Pipelines whose ranks take as long as those of the first of them.

    Attributes:
        numbers: Theirs: pipelines are counted by their lowest rank.
        apart_ratio: How far the costs of a rank are from those of the first one's rank of the same stage, at most, as
            a share of what that one is busy.
    """

    numbers: tuple[int, ...]
    apart_ratio: float

    @property
    def first(self) -> int:
        """The one whose costs stand for all."""
        return self.numbers[0]


@dataclass(frozen=True, slots=True)
class SortedPipelines:
    """The pipelines of a Run by their costs.

    Attributes:
        alike: Those that are alike, by the number of the first.
        left_out: Numbers of those that were not recorded whole.
        slower: By global rank, how much longer its kernels took than those of the other ranks of its stage on average,
            as a share of that; of ranks of pipelines that were recorded whole, and of several.
        kernel_ns: By global rank, the mean time of its compute kernels; of all that were recorded with some.
    """

    alike: tuple[AlikePipelines, ...]
    left_out: tuple[int, ...] = ()
    slower: Mapping[int, float] = field(default_factory=dict)
    kernel_ns: Mapping[int, float] = field(default_factory=dict)

    @property
    def slow_ranks(self) -> dict[int, float]:
        """Ranks that stand out, and by how much."""
        return {rank: ratio for rank, ratio in self.slower.items() if ratio > ALIKE_RATIO}

    @property
    def differ(self) -> bool:
        """Whether pipelines differ by more than what counts as a change."""
        return len(self.alike) > 1
