"""Traffic of jobs: counted by hand, of a generated GPT-1T on 16,384 devices, and drawn."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tracetool.network.placement import Degrees, place
from tracetool.network.tiers import Network, Tier
from tracetool.network.traffic import MESSAGES, OTHER, Volume, edges, of_job, of_rows
from tracetool.reports.network.picture import MOST_CELLS, draw_heat

if TYPE_CHECKING:
    from tracetool.network.placement import Dimension

GB = 10**9


def test_what_groups_hand_each_other() -> None:
    """Rings carry 2 (n - 1)/n of an all-reduce, half of that of an all-gather; an all-to-all V/n to every other one."""
    assert edges("allreduce", (0, 1, 2, 3), 800) == [(0, 1, 1200.0), (1, 2, 1200.0), (2, 3, 1200.0), (3, 0, 1200.0)]
    assert edges("allgather", (4, 6), 800) == [(4, 6, 400.0), (6, 4, 400.0)]
    assert sum(size for *_, size in edges("alltoall", (0, 1, 2, 3), 800)) == 4 * 3 / 4 * 800
    assert edges(MESSAGES, (0, 1, 2), 5) == [(0, 1, 5), (1, 2, 5), (1, 0, 5), (2, 1, 5)]
    assert edges("broadcast", (0, 1, 2), 5) == [(0, 1, 5), (1, 2, 5)]
    assert edges("allreduce", (3,), 800) == []


def test_pairs_tiers_and_resources() -> None:
    """Two HB domains of two: one pair inside each, one message between them."""
    network = Network("n", (Tier("hb", 2, 100 * GB), Tier("rail", 4, 10 * GB)))
    found = of_rows(
        4, [(0, 1, "tp", 600.0), (1, 0, "tp", 600.0), (0, 2, "pp", 300.0), (0, 2, "pp", 100.0), (3, 2, "x", 9.0)]
    )
    assert found.silent_ratio == 1 - 4 / 12
    assert found.by_dimension() == {"tp": 1200, "pp": 400, OTHER: 9}
    assert dict(zip(found.payload_bytes.tolist(), found.tiers(network, range(4)).tolist(), strict=True))[400] == 1
    used = found.busiest(network, range(4))
    assert (used[0].link.name, used[0].tier, used[0].busy_ns, used[0].mostly) == ("device0-rail0", "rail", 40, "pp")
    assert {each.link.name: each.payload_bytes for each in used}["device0-hb0"] == 600
    assert of_rows(4, []).silent_ratio == 1


def gpt_1t(microbatches: int = 64) -> dict[Dimension, list[Volume]]:
    """GPT-1T of Korthikanti et al. (h 25,600, 128 layers, s 2,048; TP 8, PP 64), a sequence a microbatch, bf16.

    Per layer and microbatch four all-reduces of s h (two forward, two backward); between stages s h either way, each
    tensor parallel rank its eighth; gradients of 1e12 / (8 · 64) parameters once.
    """
    activation = 2_048 * 25_600 * 2
    return {
        "tp": [Volume("allreduce", 2 * 4 * activation * microbatches)],
        "pp": [Volume(MESSAGES, activation / 8 * microbatches)],
        "dp": [Volume("allreduce", 2 * 1e12 / (8 * 64))],
    }


def test_over_99_percent_of_pairs_of_a_gpt_1t_exchange_nothing() -> None:
    degrees = Degrees(tp=8, dp=32, pp=64)
    assert degrees.ranks == 16_384
    network = Network("n", (Tier("hb", 8, 450 * GB), Tier("rail", 16_384, 50 * GB)))
    placement = place(degrees, network, "tp in hb")
    found = of_job(placement, gpt_1t())
    # A ring neighbour each along tp and dp, and one or two stages: at most four of 16,383 others.
    assert found.silent_ratio > 0.999
    assert found.silent_ratio == pytest.approx(1 - (16_384 * 2 + 256 * 2 * 63) / (16_384 * 16_383), abs=1e-9)
    shares = found.by_dimension()
    total = sum(shares.values())
    assert shares["tp"] == pytest.approx(16_384 * 2 * 7 / 8 * 8 * 2_048 * 25_600 * 2 * 64, rel=1e-9)
    assert list(shares) == ["tp", "dp", "pp"]
    assert shares["tp"] / total > 0.9
    inside = found.payload_bytes[found.tiers(network, placement.devices) == 0].sum()
    assert inside == shares["tp"]


def test_a_heat_map_of_4096_ranks_is_drawn_in_under_five_seconds() -> None:
    from matplotlib.figure import Figure

    placement = place(Degrees(tp=8, dp=16, pp=32), Network("n", (Tier("hb", 8, 1), Tier("rail", 4096, 1))))
    began = time.perf_counter()
    found = of_job(placement, gpt_1t())
    figure = Figure()
    draw_heat(figure.subplots(), found)
    figure.savefig(io.BytesIO(), format="png")
    assert time.perf_counter() - began < 5
    cells = figure.axes[0].images[0].get_array()
    assert cells is not None
    assert cells.shape == (MOST_CELLS, MOST_CELLS)
    assert np.ma.sum(cells) == found.payload_bytes.sum()


@pytest.mark.parametrize(("sizes", "scale"), [((600, 600), ["600.00 B"]), ((600, 9_600), ["600.00 B", "9.38 KiB"])])
def test_ranks_and_sizes_are_named_as_they_are(sizes: tuple[int, int], scale: list[str]) -> None:
    """Whole ranks, and a scale from the least to the most in units that people read."""
    from matplotlib.figure import Figure

    figure = Figure()
    draw_heat(figure.subplots(), of_rows(3, [(0, 1, "pp", sizes[0]), (1, 2, "pp", sizes[1])]))
    figure.savefig(io.BytesIO(), format="png")
    heat, bar = figure.axes
    for axis in (heat.xaxis, heat.yaxis):
        shown = [label.get_text() for label in axis.get_ticklabels()]
        assert [text for text in shown if text in {"0", "1", "2"}] == ["0", "1", "2"]
        assert not any("." in text for text in shown)
    named = [label.get_text() for label in bar.yaxis.get_ticklabels()]
    assert [named[0], named[-1]] == [scale[0], scale[-1]]
    assert len(named) == len(set(named)) == (1 if len(scale) == 1 else 5)
    assert not bar.yaxis.get_minorticklocs().size
