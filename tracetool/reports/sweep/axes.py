"""What points of a sweep differ in, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tracetool.reports.sweep import map_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tracetool.reports.answer.text import Cells

_T = TypeVar("_T")


class PointAxis(NamedTuple):
    """A figure that points differ in: the field, what it is, and the two lines above its column."""

    name: str
    word: str
    head: str
    unit: str = ""


AXES = (
    PointAxis("scenario", "scenarios", "scenario"),
    PointAxis("dcs", "DCs by pipeline rank", "DCs"),
    PointAxis("microbatches", "microbatches", "m"),
    PointAxis("hbm_bytes", "HBM limit per rank", "HBM", "GiB"),
    PointAxis("overlap", "layers overlap by", "layers"),
    PointAxis("tensor_bandwidth_bytes_per_s", "bandwidth between ranks of a group", "inside", "GB/s"),
    PointAxis("latency_ns", "latency, one way", "latency", "ms"),
    PointAxis("bandwidth_bytes_per_s", "bandwidth of links", "link", "Gbit/s"),
)


def axis_value(name: str, value: object) -> str:
    """A figure in the unit of its axis."""
    if value is None or value == ():
        return "-"
    if name == "dcs" and isinstance(value, tuple):
        return map_of(value)
    if isinstance(value, int):
        factor = _FACTORS.get(name)
        return str(value) if factor is None else f"{value * factor:.4g}"
    return str(value)


_FACTORS = {
    "hbm_bytes": 1 / 2**30, "latency_ns": 1e-6, "at_latency_ns": 1e-6, "bandwidth_bytes_per_s": 8e-9,
    "tensor_bandwidth_bytes_per_s": 1e-9,
}  # fmt: skip


FIGURES = ("latency_ns", "bandwidth_bytes_per_s")


def has_several_links(row: object, name: str) -> bool:
    """Whether a point has links that differ in a figure of theirs."""
    return name in FIGURES and getattr(row, name) is None and len(set(getattr(row, "dcs", ()))) > 1


def varying(rows: Sequence[object], axes: Iterable[PointAxis]) -> list[PointAxis]:
    """Axes on which some differ."""
    return [axis for axis in axes if len({getattr(row, axis.name) for row in rows}) > 1]


def key_of(row: object, axes: Iterable[PointAxis]) -> tuple[Hashable, ...]:
    """Where something stands on each axis."""
    return tuple(getattr(row, axis.name) for axis in axes)


def shown_keys(keys: Sequence[tuple[Hashable, ...]], most: int) -> set[tuple[Hashable, ...]]:
    """Some of the keys: on each axis values spread from end to end, so that not too many rows are left."""
    values = [list(dict.fromkeys(key[place] for key in keys)) for place in range(len(keys[0]))]
    counts = [len(of_axis) for of_axis in values]
    while True:
        kept = [set(spread(of_axis, count)) for of_axis, count in zip(values, counts, strict=True)]
        left = {key for key in keys if all(part in kept[place] for place, part in enumerate(key))}
        if len(left) <= most or max(counts, default=1) == 1:
            return left
        counts[counts.index(max(counts))] -= 1


def spread(values: list[_T], count: int) -> list[_T]:
    """So many of the values, from end to end."""
    if count == 1:
        return values[:1]
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def cells_along(row: object, axes: Iterable[PointAxis]) -> Cells:
    """A cell for each axis."""
    return {
        head_of(a): "differ" if has_several_links(row, a.name) else axis_value(a.name, getattr(row, a.name))
        for a in axes
    }


def head_of(axis: PointAxis) -> str:
    """The lines above its column."""
    return f"{axis.head}\n{axis.unit}" if axis.unit else axis.head
