"""The space of plans: axes, each fixed, listed, left as it is, or with its own choice, and the candidates they span.

Candidates have the devices and the sequences per step of the job that they are compared with. What comes out the same
is one candidate: placements of dimensions that are one wide, ways to share a link that nothing shares, extra forwards
where no stage crosses anything, what overlaps a reduction that there is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any, Literal, get_args

from tracetool.errors import ScenarioError, named
from tracetool.estimates.layer_overlap import parse_way
from tracetool.model.schedule import OBSERVED
from tracetool.network.collectives import ALGORITHMS
from tracetool.schedules import SCHEDULES, kind_of
from tracetool.tables.results import P2P_MODES
from tracetool.units import parse_share_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.network.tiers import Network

AxisName = Literal[
    "tp", "cp", "ep", "pp", "dp", "placement", "schedule", "depth", "chunks", "microbatch", "recompute", "overlap",
    "p2p", "collectives", "beside", "sharing", "routing", "compression",
]  # fmt: skip
AXES: tuple[AxisName, ...] = get_args(AxisName)
DEGREES: tuple[AxisName, ...] = ("tp", "cp", "ep", "pp", "dp")

Values = tuple[Any, ...]


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ScenarioError(f"{text!r} is no whole number from 1.", hint="as in tp=8")
    return int(text)


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise ScenarioError(f"{text!r} is no number of extra forwards.")
    return int(text)


def _word(what: str, words: Sequence[str]) -> Callable[[str], str]:
    return lambda text: named(what, text, words)


_RECOMPUTE = ("none", "selective", "full")
_BESIDE = ("off", "on")
_SHARINGS = ("spatial", "temporal")
_READ: Mapping[AxisName, Callable[[str], Any]] = {
    **dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "chunks", "microbatch"), _count),
    "placement": str,
    "schedule": lambda text: kind_of(text).name,
    "depth": _depth,
    "recompute": _word("recomputation", _RECOMPUTE),
    "overlap": parse_way,
    "p2p": _word("way to issue transfers", P2P_MODES),
    "collectives": _word("algorithm of collectives", ALGORITHMS),
    "beside": lambda text: named("answer", text, _BESIDE) == "on",
    "sharing": _word("way to share links", _SHARINGS),
    "routing": parse_share_ratio,
    "compression": parse_share_ratio,
}
_SEPARATOR: Mapping[str, str] = {"placement": ";"}
"""Between values; rules of placement have commas in them."""

_DEPTHS = (1, 2, 4)
_CHUNKS = (1, 2, 4)
_MICROBATCHES = (1, 2, 4, 8)
_CONTEXTS = (1, 2, 4, 8)
_LONG_SEQUENCE = 16_384
_TENSOR_GROUPS = 2
"""Tensor parallel groups of up to so many innermost groups are tried."""


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        workload: What is to be trained, and on what.
        base: The plan that candidates are compared with.
        given: Values of axes that were fixed or listed.
        left: Axes that stay as the base has them.
    """

    workload: Workload
    base: JobPlan
    given: Mapping[AxisName, Values] = field(default_factory=dict)
    left: frozenset[AxisName] = frozenset()

    def values(self, axis: AxisName) -> Values:
        """What is tried along an axis."""
        return self._axes[axis]

    @cached_property
    def _axes(self) -> dict[AxisName, Values]:
        return {axis: self._values(axis) for axis in AXES}

    def _values(self, axis: AxisName) -> Values:
        if axis in self.given:
            return self.given[axis]
        if axis in self.left:
            return (value_of(self.base, axis),)
        return self._own(axis)

    def only(self, *axes: AxisName) -> Space:
        """The same where all but some axes stay as the base has them, and what was left stays left."""
        kept = {axis: values for axis, values in self.given.items() if axis in axes}
        return replace(self, given=kept, left=self.left | frozenset(axis for axis in AXES if axis not in axes))

    def _own(self, axis: AxisName) -> Values:
        training, model = self.base.training, self.workload.model
        mine = value_of(self.base, axis)
        own: Mapping[AxisName, Callable[[], Values]] = {
            "tp": lambda: tuple(
                n for n in _divisors(model.heads) if n <= _TENSOR_GROUPS * self.workload.choice.network.tiers[0].size
            ),
            "cp": lambda: _CONTEXTS if training.sequence >= _LONG_SEQUENCE else (),
            "ep": lambda: _divisors(model.experts.count) if model.experts else (),
            "pp": lambda: _divisors(model.layers),
            "dp": lambda: _divisors(training.devices),
            "placement": lambda: placement_rules(self.workload.choice.network),
            "schedule": lambda: schedules(compared=True),
            "depth": lambda: _DEPTHS,
            "chunks": lambda: _CHUNKS,
            "microbatch": lambda: _MICROBATCHES,
            "recompute": lambda: ("none", "full") if model.fused_attention else _RECOMPUTE,
            "p2p": lambda: ("grouped", "in-order", "per-edge"),
            "collectives": lambda: ("auto",),
            "beside": lambda: (False, True),
            "sharing": lambda: _SHARINGS,
        }
        return tuple(dict.fromkeys((mine, *(own[axis]() if axis in own else ()))))


def value_of(plan: JobPlan, axis: AxisName) -> Any:
    """What a plan has along an axis."""
    training = plan.training
    if axis in DEGREES:
        return getattr(training.degrees, axis)
    extra = training.extra_forwards
    values = {
        "placement": plan.placement, "schedule": training.order_name,
        "depth": max((a - b for a, b in pairwise((*extra, 0))), default=0),
        "chunks": training.chunks, "microbatch": training.batch, "recompute": training.recompute,
        "overlap": training.overlap,
        "p2p": plan.p2p_text, "collectives": plan.collectives, "beside": training.overlap_reduction,
        "sharing": plan.sharing, "routing": plan.routing_ratio, "compression": plan.compression_ratio,
    }  # fmt: skip
    return values[axis]


def read_axes(fixed: Sequence[str], tried: Sequence[str]) -> dict[AxisName, Values]:
    """Values of axes as people write them: ``tp=8``, ``schedule=1f1b,zb-h1``.

    Args:
        fixed: Axes of one value.
        tried: Axes of several.

    Raises:
        ScenarioError: If there is no value, or an axis is given twice.
        UnknownName: If there is no such axis, or value.
    """
    axes: dict[AxisName, Values] = {}
    for text, single in [*((one, True) for one in fixed), *((one, False) for one in tried)]:
        name, equals, rest = text.partition("=")
        axis = parse_axis(name.strip())
        texts = [part.strip() for part in rest.split(_SEPARATOR.get(axis, ",")) if part.strip()]
        if axis == "placement" and equals and not texts:
            texts = [""]
        if not texts:
            raise ScenarioError(f"{text!r} gives no value of {axis}.", hint=f"as in {axis}=...")
        if single and len(texts) > 1:
            raise ScenarioError(f"{text!r} fixes {axis} at {len(texts)} values.", hint="try them, or give one")
        if axis in axes:
            raise ScenarioError(f"{axis} is given twice.", hint="fix it, or list all values once")
        axes[axis] = tuple(dict.fromkeys(map(_READ[axis], texts)))
    return axes


def parse_axis(text: str) -> AxisName:
    """An axis by its name.

    Raises:
        UnknownName: If there is none.
    """
    return named("axis", text, AXES)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def schedules(*, compared: bool) -> tuple[str, ...]:
    """Schedules that shapes can have: those that were compared with recorded steps, or the others."""
    kinds = map(SCHEDULES.get, SCHEDULES.names())
    return tuple(
        kind.name
        for kind in kinds
        if kind.is_compared == compared
        and not kind.needs_costs
        and kind.placement != "bidirectional"
        and kind.name != OBSERVED
    )


@lru_cache(maxsize=64)
def placement_rules(network: Network) -> Values:
    """Orders of dimensions by the two outermost, tensor parallel first or last; and what is spread over all places."""
    names = ("cp", "ep", "dp", "pp")
    outward = [(*(name for name in names if name not in two), *two) for two in permutations(names, 2)]
    orders = [",".join(("tp", *inner)) for inner in outward] + ["cp,ep,dp,pp,tp", "cp,ep,pp,dp,tp"]
    inner, outer = network.tiers[0].name, network.tiers[-1].name
    spread = [f"tp in {inner}, {name} across {outer}" for name in ("pp", "dp")] if inner != outer else []
    return (*orders, *spread)
