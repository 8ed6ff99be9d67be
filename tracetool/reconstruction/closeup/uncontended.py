"""Every action's time without what slowed it down, and with a communication kernel beside it all along."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.closeup.contention import Sample, learn_alone, pieces
from tracetool.reconstruction.closeup.slowdown import (
    SEPARATE,
    SOURCES,
    Slowed,
    is_wholly_beside,
    kernel_class,
    learn_factors,
    rank_load,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from tracetool.model.load import SustainedLoad
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.closeup.action_view import ActionView
    from tracetool.reconstruction.closeup.contention import Alone
    from tracetool.reconstruction.closeup.slowdown import Factors
    from tracetool.reconstruction.steps.reading import Device


class _KernelRun(NamedTuple):
    """One run of a kernel of the compute stream.

    Attributes:
        number: Of the kernel in its action.
        sample: The run.
        keys: What kernels of an equal factor share, from the narrowest group to the widest (the class).
        beside_messages_ns: For how much of it a send or receive was on the device.
        share: How much of it adds to its action's time: kernels of other streams may run at once.
    """

    number: int
    sample: Sample
    keys: tuple[Hashable, ...]
    beside_messages_ns: int
    share: float


def take_slowdown_out(
    views: Sequence[ActionView], devices: Mapping[int, Device], window_ns: int, account: Account, *, held: bool
) -> None:
    """Give every action its times alone and beside communication (``alone_ns`` and ``contended_ns`` of its view).

    What collectives slowed down stays in both: they belong to actions, in a replay as in the recording.

    Args:
        views: All actions of a step.
        devices: The device of each rank.
        window_ns: From the start of the first action to the end of the last one.
        account: Takes up how it was found.
        held: Whether messages are kernels on the devices, not work of the host (gloo).
    """
    runs = [list(_runs(view, devices[view.rank], held=held)) for view in views]
    alone = learn_alone(run.sample for of_view in runs for run in of_view)
    factors = learn_factors(
        Slowed(run.keys, run.sample.run_ns, alone.clean[run.sample.keys[-1]][0])
        for of_view in runs
        for run in of_view
        if is_wholly_beside(run.sample.run_ns, run.beside_messages_ns) and run.sample.keys[-1] in alone.clean
    )
    for view, of_view in zip(views, runs, strict=True):
        view.alone_ns = [time - late for time, late in zip(view.times_ns, view.late_ns, strict=True)]
        view.contended_ns = list(view.alone_ns)
        for run in of_view:
            factor, source = factors.of(run.keys)
            by_itself = alone.run_ns(run.sample, factor) if run.beside_messages_ns else run.sample.run_ns
            factors.applied_ns[source] += by_itself
            time = view.alone_ns[run.number] - round((run.sample.run_ns - by_itself) * run.share)
            view.alone_ns[run.number] = time
            view.contended_ns[run.number] = time + round(by_itself * (factor - 1) * run.share)
    for rank, device in devices.items():
        of_rank = [view for view in views if view.rank == rank]
        load = rank_load(device.name, [view.segment for view in of_rank])
        if load is not None:
            _take_load_out(of_rank, load, window_ns)
    of_all = [run for of_view in runs for run in of_view]
    _record_contention(alone, sum(run.beside_messages_ns > 0 for run in of_all), len(of_all), account)
    if any(run.keys[-1] != SEPARATE for run in of_all):
        _record_factors(factors, account)


def _take_load_out(views: Sequence[ActionView], load: SustainedLoad, window_ns: int) -> None:
    """Take out of one rank's times by how much sustained load had slowed them down."""
    step_load = sum(load.load_of(v.segment.kind) * sum(v.alone_ns) for v in views) / max(1, window_ns)
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


def _runs(view: ActionView, device: Device, *, held: bool) -> Iterator[_KernelRun]:
    """The runs of kernels of the compute stream."""
    s = view.segment
    counts: Counter[tuple[object, ...]] = Counter()
    for index, (kernel, piece) in enumerate(zip(s.kernels, pieces(s.kernels), strict=True)):
        if not kernel.is_compute or kernel.is_collective:
            continue
        name = kernel.kernel_class or kernel.name
        what = (s.kind, name, kernel.blocks, kernel.node_name)
        keys: tuple[tuple[object, ...], ...] = ((view.rank, s.stage, *what, counts[what]),)
        counts[what] += 1
        place = view.places[index] if view.places is not None and view.places[index].layer >= 0 else None
        if place is not None:
            slot = (*what, "slot", place.slot)
            keys += ((view.rank, *slot), slot)
        run_ns = kernel.end_ns - kernel.start_ns
        yield _KernelRun(
            index,
            Sample(keys, run_ns, view.beside_ns[index]),
            (
                (*what, None, index) if place is None else (*what, place.slot, None),
                (name, kernel.blocks),
                kernel_class(name, kernel.blocks, device.sm_count) if held else SEPARATE,
            ),
            view.beside_messages_ns[index],
            piece.run_ns / run_ns if run_ns else 0.0,
        )


def _record_factors(factors: Factors, account: Account) -> None:
    """Say where the slowdown beside communication comes from."""
    total = factors.applied_ns.total()
    if not total:
        return
    own, of_class, default = (factors.applied_ns[source] / total for source in SOURCES)
    account.find(
        "interference", "all",
        f"slowdown beside communication: kernels' own for {own:.0%} of compute, that of their class in this trace for "
        f"{of_class:.0%}, defaults for {default:.0%}",
        "kernels", own,
    )  # fmt: skip
    if default > 0.5:
        account.note(
            NoticeCode.SLOWDOWN_DEFAULT,
            "hardly any kernel ran beside communication, so by how much compute slows down there is the default of its "
            "kernels' class (H100), unless costs are taken from another recording",
        )


def _record_contention(alone: Alone, slowed: int, total: int, account: Account) -> None:
    if not slowed:
        return
    confidence = 1 - alone.never_alone / slowed
    account.find(
        "contention", "all", f"{slowed} of {total} kernels ran beside communication kernels", "kernels", confidence,
        f"{alone.never_alone} of them never ran alone: what they take then is told by their factor"
        if alone.never_alone
        else None,
    )  # fmt: skip
