"""Bandwidth and latency between ranks, as their messages show them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reconstruction.actions.transfers import median_transfer_ns, payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.timeline import Timeline, Transfer
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.capture.waits import Wait

_LEAST_OF_A_SIZE = 2


class LinkFit(NamedTuple):
    """A straight line through times of messages of several sizes.

    Attributes:
        bandwidth_bytes_per_s: One over its slope.
        latency_ns: Its value at no bytes.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int


def link_rows(observed: Timeline, survey: Survey) -> list[tuple[object, ...]]:
    """Rows of the ``links`` table: each pair of ranks and direction in the observed step.

    Where the capture holds messages of several sizes between two ranks, bandwidth and latency are fitted to all of
    them; else the bandwidth is the payload over its median time, and the latency unknown.
    """
    fits = {link: fit_link(samples) for link, samples in _samples(survey).items()}
    exposed = _exposed(survey)
    by_link: dict[tuple[int, int, str], list[Transfer]] = defaultdict(list)
    for transfer in observed.transfers:
        by_link[transfer.src_rank, transfer.dst_rank, transfer.kind.value].append(transfer)
    rows: list[tuple[object, ...]] = []
    for (src, dst, kind), transfers in sorted(by_link.items()):
        ends = observed.global_ranks[src], observed.global_ranks[dst]
        size, time = payload(transfers), median_transfer_ns(transfers)
        fit = fits.get(ends)
        plain = None if size is None or time == 0 else size * 10**9 // time
        rows.append(
            (
                *ends, kind, len(transfers), size, time, plain if fit is None else fit.bandwidth_bytes_per_s,
                None if fit is None else fit.latency_ns, exposed.get(ends),
            )
        )  # fmt: skip
    return rows


def fit_link(samples: Iterable[tuple[int, int]]) -> LinkFit | None:
    """Bandwidth and latency from (bytes, ns) of messages; None without two sizes seen at least twice each.

    The slope is the median of those between medians of all pairs of sizes (Theil-Sen), the latency the median of
    what is left: single slow messages move neither.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for size, time in samples:
        by_size[size].append(time)
    points = sorted((size, median(times)) for size, times in by_size.items() if len(times) >= _LEAST_OF_A_SIZE)
    slopes = [(t2 - t1) / (s2 - s1) for (s1, t1), (s2, t2) in itertools.combinations(points, 2)]
    if not slopes or (slope := median(slopes)) <= 0:
        return None
    latency = median(time - slope * size for size, time in points)
    return LinkFit(round(1e9 / slope), max(0, round(latency)))


def _samples(survey: Survey) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Per (source, destination), bytes and transfer time of the messages of the capture that met."""
    waits = _by_place(survey.waits)
    samples: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for message in survey.matched.messages:
        wait = waits.get((message.recv.rank, message.recv.position))
        if wait is not None and message.recv.payload_bytes is not None and wait.evidence == "messages":
            samples[message.send.rank, message.recv.rank].append((message.recv.payload_bytes, wait.transfer_ns))
    return samples


def _exposed(survey: Survey) -> dict[tuple[int, int], int]:
    """Per (source, destination), the time during which the receiver computed nothing while it received."""
    waits = _by_place(survey.waits)
    total: dict[tuple[int, int], int] = defaultdict(int)
    counted: set[tuple[int, int, int | None]] = set()
    for send, recv in survey.matched.messages:
        wait = waits.get((recv.rank, recv.position))
        kernel = (recv.rank, send.rank, recv.batch)
        if wait is None or wait.exposed_ns is None or (recv.batch is not None and kernel in counted):
            continue
        counted.add(kernel)
        total[send.rank, recv.rank] += wait.exposed_ns
    return dict(total)


def _by_place(waits: Sequence[Wait]) -> Mapping[tuple[int, int], Wait]:
    return {(wait.rank, wait.position): wait for wait in waits}
