"""What ways to overlap inside layers buy, of all scenarios of a sweep: where each pays, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.answer.text import fitted_table
from tracetool.units import format_bandwidth, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.sweeps import Sweep
    from tracetool.whatif.layers import LayersGain


def layers_sentences(swept: Sweep) -> list[str]:
    """Where overlap inside layers pays, in a sentence; none where no ways were swept."""
    ways = _by_way(swept)
    if not ways:
        return []
    paying = {way: sure for way, gains in ways.items() if (sure := [gain for gain in gains if gain.pays])}
    if not paying:
        is_open = any(gain.pays is None for gains in ways.values() for gain in gains)
        said = "is open everywhere or does not pay" if is_open else "pays nowhere"
        return [f"Overlap inside layers {said}: {', '.join(ways)}."]
    sentences = [f"by {way}{_over(sure, ways[way])} ({_gains(sure)})" for way, sure in paying.items()]
    return [f"Overlap inside layers pays {', '.join(sentences)}."]


def layers_table(swept: Sweep) -> list[str]:
    """A row for each way: in how many scenarios it pays, does not, or may; and how much shorter steps are."""
    rows = [
        {
            "layers overlap by": way,
            "pays": str(sum(gain.pays is True for gain in gains)),
            "does not": str(sum(gain.pays is False for gain in gains)),
            "open": str(sum(gain.pays is None for gain in gains)),
            "gain": _gains(gains),
        }
        for way, gains in _by_way(swept).items()
    ]
    return [*fitted_table(rows, ()), ""] if rows else []


def _by_way(swept: Sweep) -> dict[str, list[LayersGain]]:
    ways: dict[str, list[LayersGain]] = {}
    for each in swept.layers:
        ways.setdefault(each.gain.way, []).append(each.gain)
    return ways


def _over(sure: Sequence[LayersGain], every: Sequence[LayersGain]) -> str:
    """Over which of the links that were swept a way pays."""
    known = sorted({g.tensor_bandwidth_bytes_per_s for g in every if g.tensor_bandwidth_bytes_per_s is not None})
    if len(sure) == len(every) or not known:
        return "" if len(sure) == len(every) else f" in {len(sure)} of {format_count(len(every), 'scenario')}"
    there = {gain.tensor_bandwidth_bytes_per_s for gain in sure}
    paying = [bandwidth for bandwidth in known if bandwidth in there]
    slowest = paying == known[: len(paying)]
    return f" {'up to' if slowest else 'at most at'} {format_bandwidth(paying[-1])} between two ranks of a group"


def _gains(gains: Sequence[LayersGain]) -> str:
    """The least and the most that a step is shorter by, each with its error."""
    ends = [of(gains, key=lambda gain: gain.gain_ratio) for of in (min, max)]
    return " to ".join(dict.fromkeys(_gain(end) for end in ends))


def _gain(gain: LayersGain) -> str:
    by = f"{gain.gain_ratio:.1%}"
    if gain.is_bound:
        return f"at most {by}"
    return by if gain.error_ratio is None else f"{by} ±{gain.error_ratio:.1%}"
