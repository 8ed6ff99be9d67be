"""Every action's time without what slowed it down, and with a communication kernel beside it all along."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.model.load import known_load
from tracetool.reconstruct.contention import Sample, learn_alone
from tracetool.reconstruct.slowdown import Slowed, is_wholly_beside, kernel_class, learn_factors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from tracetool.model.load import SustainedLoad
    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.action_view import ActionView
    from tracetool.reconstruct.contention import Alone, Device
    from tracetool.reconstruct.slowdown import Factors


def take_slowdown_out(views: Sequence[ActionView], devices: Mapping[int, Device], account: Account) -> None:
    """Give every action its times alone and beside communication (``alone_ns`` and ``contended_ns`` of its view)."""
    samples = [list(_samples(view)) for view in views]
    alone = learn_alone(sample for of_view in samples for _, sample in of_view)
    slowed = 0
    for view, of_view in zip(views, samples, strict=True):
        view.alone_ns = list(view.times_ns)
        for index, sample in of_view:
            if sample.beside_ns:
                slowed += 1
                view.alone_ns[index] -= sample.run_ns - alone.run_ns(sample)
    factors = _put_slowdown_in(views, samples, alone, {rank: d.sm_count for rank, d in devices.items()})
    window_ns = max(v.segment.end_ns for v in views) - min(v.segment.start_ns for v in views)
    for rank, device in devices.items():
        load = known_load(device.name)
        if load is not None:
            _take_load_out([view for view in views if view.rank == rank], load, window_ns)
    total = sum(len(of_view) for of_view in samples)
    _tell_contention(alone, slowed, total, account)
    if any(device.sm_count is not None for device in devices.values()):
        _tell_factors(factors, account)


def _take_load_out(views: Sequence[ActionView], load: SustainedLoad, window_ns: int) -> None:
    """Take out of one rank's times by how much sustained load had slowed them down."""
    step_load = sum(load.load_of(v.segment.kind) * sum(v.alone_ns) for v in views) / window_ns
    average, now = load.start_load, None
    for view in sorted(views, key=lambda v: v.segment.start_ns):
        s = view.segment
        if now is not None:
            average = load.after(average, s.start_ns - now, 0.0)
        duration, alone = s.end_ns - s.start_ns, sum(view.alone_ns)
        brought = load.load_of(s.kind) * min(1.0, alone / max(1, duration))
        factor = load.factor(average, duration, brought, step_load)
        view.alone_ns = [round(time / factor) for time in view.alone_ns]
        view.contended_ns = [round(time / factor) for time in view.contended_ns]
        average, now = load.after(average, duration, brought), s.end_ns


def _put_slowdown_in(
    views: Sequence[ActionView],
    samples: Sequence[Sequence[tuple[int, Sample]]],
    alone: Alone,
    sm_counts: Mapping[int, int | None],
) -> Factors:
    """Find what every action takes with a communication kernel beside it from start to end."""

    def keys(view: ActionView, index: int) -> tuple[Hashable, ...]:
        kernel = view.segment.kernels[index]
        name = kernel.kernel_class or kernel.name
        slot = view.places[index].slot if view.places is not None and view.places[index].layer >= 0 else None
        return (
            (view.segment.kind, name, kernel.blocks, kernel.node_name, slot, index if slot is None else None),
            (name, kernel.blocks),
            kernel_class(name, kernel.blocks, sm_counts.get(view.rank)),
        )

    factors = learn_factors(
        Slowed(keys(view, index), sample.run_ns, alone.clean[sample.keys[-1]][0])
        for view, of_view in zip(views, samples, strict=True)
        for index, sample in of_view
        if is_wholly_beside(sample.run_ns, sample.beside_ns) and sample.keys[-1] in alone.clean
    )
    for view, of_view in zip(views, samples, strict=True):
        view.contended_ns = list(view.alone_ns)
        for index, sample in of_view:
            by_itself = alone.run_ns(sample)
            view.contended_ns[index] += round(by_itself * (factors.of(keys(view, index), by_itself) - 1))
    return factors


def _samples(view: ActionView) -> Iterator[tuple[int, Sample]]:
    """A sample per kernel of the compute stream, by its index."""
    s = view.segment
    seen: Counter[tuple[object, ...]] = Counter()
    for index, kernel in enumerate(s.kernels):
        if not kernel.is_compute or kernel.is_collective:
            continue
        what = (s.kind, kernel.kernel_class or kernel.name, kernel.blocks, kernel.node_name)
        keys: tuple[tuple[object, ...], ...] = ((view.rank, s.stage, *what, seen[what]),)
        seen[what] += 1
        if view.places is not None and view.places[index].layer >= 0:
            slot = (*what, "slot", view.places[index].slot)
            keys += ((view.rank, *slot), slot)
        yield index, Sample(keys, kernel.end_ns - kernel.start_ns, view.beside_ns[index])


def _tell_factors(factors: Factors, account: Account) -> None:
    """Say where the slowdown beside communication comes from."""
    total = factors.own + factors.pooled + factors.defaulted
    if not total:
        return
    account.find(
        "interference", "all",
        f"slowdown beside communication: kernels' own for {factors.own / total:.0%} of compute, that of their class in "
        f"this trace for {factors.pooled / total:.0%}, defaults for {factors.defaulted / total:.0%}",
        "kernels", factors.own / total,
    )  # fmt: skip
    if factors.defaulted > total / 2:
        account.note(
            "hardly any kernel ran beside communication, so by how much compute slows down there is the default of its "
            "kernels' class (H100): --costs-from takes it from another recording"
        )


def _tell_contention(alone: Alone, slowed: int, total: int, account: Account) -> None:
    if not slowed:
        return
    told = 1 - alone.never_alone / slowed
    account.find(
        "contention", "all", f"{slowed} of {total} kernels ran beside communication kernels", "kernels", told,
        f"{alone.never_alone} of them never ran alone: a low quantile of their times stands for that"
        if alone.never_alone
        else None,
    )  # fmt: skip
