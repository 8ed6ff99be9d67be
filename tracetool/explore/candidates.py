"""The candidates of a space: bases with costs of their own, each with its orders and uses of the network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import BadTopology, UnknownName
from tracetool.estimates.seats import seats
from tracetool.estimates.training import default_order, holds_up, traits_of
from tracetool.explore.plan import JobPlan, overlap_refusal, pipelines_sharing
from tracetool.network.placement import DIMENSIONS, Degrees, offsets
from tracetool.schedules import REFERENCE_OF_CHUNKS, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.seats import Seats
    from tracetool.estimates.training import Training
    from tracetool.explore.space import Space
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.scenario import LinkSharing
    from tracetool.model.schedule import Placement
    from tracetool.network.collectives import Algorithm
    from tracetool.network.tiers import Network

_SIDE_BY_SIDE = 60_000
"""Actions of pipelines side by side that are replayed at most."""


class PlanOrder(NamedTuple):
    """A schedule of a base: see ``Training``."""

    schedule: str
    chunks: int
    extra_forwards: tuple[int, ...]
    p2p: P2PMode | None

    @property
    def placement(self) -> Placement:
        """Which rank has which stage."""
        return kind_of(self.schedule).placement if self.schedule else "loop"

    def of(self, training: Training) -> Training:
        """Training in this order."""
        return replace(
            training, schedule=self.schedule, chunks=self.chunks, extra_forwards=self.extra_forwards, p2p=self.p2p
        )


class Use(NamedTuple):
    """How a base uses the network."""

    collectives: Algorithm
    beside: bool
    sharing: LinkSharing


@dataclass(frozen=True, slots=True)
class Base:
    """Plans that differ in order and use of the network alone.

    Attributes:
        plan: One of them.
        orders: Their schedules.
        uses: Their uses of the network.
    """

    plan: JobPlan
    orders: tuple[PlanOrder, ...]
    uses: tuple[Use, ...]

    @property
    def size(self) -> int:
        """How many plans they are."""
        return len(self.orders) * len(self.uses)

    def at(self, number: int) -> JobPlan:
        """One of the plans."""
        order, use = self.orders[number // len(self.uses)], self.uses[number % len(self.uses)]
        training = replace(order.of(self.plan.training), overlap_reduction=use.beside)
        return replace(self.plan, training=training, collectives=use.collectives, sharing=use.sharing)


@dataclass
class Candidates:
    """All candidates of a space.

    Attributes:
        bases: Theirs.
        left_out: What was not taken up, by reason, in bases or plans.
    """

    bases: list[Base] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """How many plans they are."""
        return sum(base.size for base in self.bases)


def candidates(space: Space) -> Candidates:
    """Everything that a space holds, in a fixed order.

    Args:
        space: The space.
    """
    listed = Candidates()
    for degrees in degrees_of(space):
        for rule in _placements(space, degrees, listed.left_out):
            seated = seats(space.workload.choice.network, rule, degrees)
            for plan in _plans(space, degrees, rule, listed.left_out):
                orders = _orders(space, plan.training, seated, listed.left_out)
                uses = tuple(_uses(space, plan.training, seated, listed.left_out))
                if orders and uses:
                    listed.bases.append(Base(plan, orders, uses))
    return listed


def degrees_of(space: Space) -> Iterator[Degrees]:
    """Degrees of as many devices as the base has that model and axes allow."""
    model, devices = space.workload.model, space.base.training.devices
    for tp, cp, pp in product(*(space.values(axis) for axis in ("tp", "cp", "pp"))):
        if devices % (tp * cp * pp) or model.heads % tp or model.layers % pp or space.base.training.sequence % cp:
            continue
        dp = devices // (tp * cp * pp)
        if dp not in space.values("dp"):
            continue
        for ep in space.values("ep"):
            if dp % ep == 0 and (ep == 1 or (model.experts and model.experts.count % ep == 0)):
                yield Degrees(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)


def _placements(space: Space, degrees: Degrees, left_out: Counter[str]) -> Iterator[str]:
    """Rules by which ranks sit on other devices each time."""
    network = space.workload.choice.network
    known = set()
    for rule in space.values("placement"):
        short = _short(rule, degrees)
        if short in known:
            continue
        known.add(short)
        try:
            where = tuple(map(tuple, offsets(degrees, network, rule).values()))
        except (BadTopology, UnknownName):
            left_out["placements that do not fit"] += 1
            continue
        if where not in known:
            known.add(where)
            yield rule


def _short(rule: str, degrees: Degrees) -> object:
    """An order without the dimensions that are one wide."""
    names = [part.strip() for part in rule.split(",") if part.strip()]
    if not all(name in DIMENSIONS for name in names):
        return rule, None
    names += [name for name in DIMENSIONS if name not in names]
    return tuple(name for name in names if degrees.wide(name) > 1)  # type: ignore[arg-type]


def _plans(space: Space, degrees: Degrees, rule: str, left_out: Counter[str]) -> Iterator[JobPlan]:
    base = space.base
    axes = (space.values(axis) for axis in ("microbatch", "recompute", "overlap", "routing", "compression"))
    for batch, recompute, overlap, routing, compression in product(*axes):
        microbatches, rest = divmod(base.training.sequences, degrees.dp * batch)
        if rest or not microbatches:
            left_out["sequences that do not divide"] += 1
            continue
        training = replace(
            base.training, tensor=degrees.tp, context=degrees.cp, expert=degrees.ep, stages=degrees.pp,
            data=degrees.dp, batch=batch, microbatches=microbatches, recompute=recompute, schedule="", chunks=1,
            extra_forwards=(), p2p=None, overlap_reduction=False, overlap=overlap,
        )  # fmt: skip
        plan = JobPlan(training, rule, routing_ratio=routing, compression_ratio=compression)
        why_not = overlap_refusal(space.workload, plan)
        if why_not is None:
            yield plan
        else:
            left_out[why_not] += 1


def boundaries_of(seated: Seats, network: Network) -> tuple[int, ...]:
    """Pipeline ranks whose message to the next one crosses the outermost tier, of any pipeline."""
    outer = len(network.tiers) - 1
    hops = (number for line in seated.lines for number, hop in enumerate(line.hops[:-1]) if hop.crossed == outer)
    return tuple(sorted(set(hops))) if outer else ()


def _orders(space: Space, training: Training, seated: Seats, left_out: Counter[str]) -> tuple[PlanOrder, ...]:
    layers = space.workload.model.layers // training.stages
    asked = (
        space.values("schedule"), tuple(v for v in space.values("chunks") if layers % v == 0), space.values("depth"),
        space.values("p2p"),
    )  # fmt: skip
    orders, absent = _orders_of(*asked, training.stages, training.microbatches, boundaries_of(seated, seated.network))
    if absent:
        left_out["orders that do not exist for their shape"] += absent
    return orders


@lru_cache(maxsize=4096)
def _orders_of(
    schedules: tuple[str, ...],
    chunks: tuple[int, ...],
    depths: tuple[int, ...],
    modes: tuple[P2PMode, ...],
    ranks: int,
    microbatches: int,
    boundaries: tuple[int, ...],
) -> tuple[tuple[PlanOrder, ...], int]:
    orders: list[PlanOrder] = []
    absent = 0
    for name in schedules:
        kind = kind_of(name)
        if kind.needs_costs or kind.placement == "bidirectional":
            absent += 1
            continue
        for wide in chunks:
            fits = wide == 1 if kind.least_chunks == 1 else wide >= 2 and (kind.placement == "loop" or wide == 2)
            if not fits or (ranks == 1 and (wide > 1 or orders)):
                continue
            if not _exists(name, ranks, microbatches):
                absent += 1
                continue
            extras = _extras(name, depths, ranks, microbatches, boundaries)
            orders += (
                PlanOrder("" if name == default_order(wide) else name, wide, extra, mode)
                for extra, mode in product(extras, _modes(name, wide, modes if ranks > 1 else modes[:1]))
            )
    return tuple(dict.fromkeys(orders)), absent


def _exists(name: str, ranks: int, microbatches: int) -> bool:
    """Whether microbatches go round in whole groups, as far as that is known ahead of the order."""
    if name in (REFERENCE_OF_CHUNKS, "looped-bfs", "interleaved-zero-bubble"):
        return microbatches % max(1, microbatches // ranks) == 0
    return name != "dualpipev" or microbatches >= 2 * ranks


def _extras(
    name: str, depths: Sequence[int], ranks: int, microbatches: int, boundaries: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    tuning = kind_of(name).tuning
    if tuning is None:
        yield ()
        return
    for depth in depths if boundaries else ():
        extra = tuning.per_rank(ranks, dict.fromkeys(boundaries, depth))
        if depth and max(extra) <= microbatches:
            yield extra


def _modes(name: str, chunks: int, modes: Sequence[P2PMode]) -> Iterator[P2PMode | None]:
    """Ways to issue messages that an order can have; None is its own."""
    blocking = traits_of(name, chunks).blocks or holds_up(name, None)
    for mode in modes:
        if mode in ("grouped", "blocking") and not blocking:
            continue
        yield None if mode == ("grouped" if blocking else "in-order") else mode


def _uses(space: Space, training: Training, seated: Seats, left_out: Counter[str]) -> Iterator[Use]:
    reduces = training.data * training.context > 1
    turns = max(map(pipelines_sharing, seated.lines))
    for sharing in space.values("sharing") if turns > 1 else ("spatial",):
        if sharing == "temporal" and turns * 2 * training.stages * training.microbatches > _SIDE_BY_SIDE:
            left_out["turns on a link of pipelines too many to replay side by side"] += 1
            continue
        for collectives in space.values("collectives") if reduces else space.values("collectives")[:1]:
            for beside in space.values("beside") if reduces else (False,):
                yield Use(collectives, beside, sharing)
