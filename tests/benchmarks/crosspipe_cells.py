"""CrossPipe's published cells (arXiv 2507.00217, Tables 5 and 6) beside this tool's replays and searches.

    PYTHONPATH=tests python tests/benchmarks/crosspipe_cells.py [SECONDS PER SEARCH]

f = 38 ms is the paper's. B = 67 ms is fitted to 1F1B's cell without delays of case 1, its halves i = 46.5 ms and
w = 20.6 ms to ZB-H1's; everything else is predicted. Sizes: M70's activations as in the authors' simulator, a sixth
of them free after the input gradient; 1x memory holds 8 microbatches of a stage on every rank, 2x 16; recompute
(case 2) adds f to the input gradient and its memory is not limited.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from helpers.crosspipe import CASES, CELLS, DELAYS, of_static, problem

from tracetool.schedules.library.optimal import solve
from tracetool.schedules.list_scheduling import best_listed
from tracetool.schedules.problem import window_ns

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(time_limit_s: float) -> Iterator[str]:
    """A line per cell: published, replayed or searched, error."""
    for system in ("1F1B", "ZBH1", "ZBV"):
        for (case, dcs), cells in CELLS[system].items():
            for delay, seconds in zip(DELAYS, cells, strict=True):
                ours = of_static(system, case, dcs, delay)
                shown = "  ".join(f"{mode} {s:.4f} {s / seconds - 1:+6.1%}" for mode, s in ours.items())
                yield f"{system:5} case {case} {dcs} DCs {delay!s:14} paper {seconds:.3f}  {shown}"
    for system, chunks in (("UD", 1), ("Wave", 2)):
        for (case, dcs), cells in CELLS[system].items():
            for place, (delay, seconds) in enumerate(zip(DELAYS, cells, strict=True)):
                posed = problem(case, dcs, delay, chunks)
                per_microbatch = CASES[case].microbatches * 1e9
                greedy = window_ns(posed, best_listed(posed)) / per_microbatch
                line = f"{system:5} case {case} {dcs} DCs {delay!s:14} paper {seconds:.3f}"
                if system == "UD" and (case, dcs) in CELLS["UDSub"]:
                    line += f" sub {CELLS['UDSub'][case, dcs][place]:.3f}"
                line += f"  greedy {greedy:.4f} {greedy / seconds - 1:+6.1%}"
                if time_limit_s:
                    solved = solve(posed, time_limit_s)
                    best, bound = solved.window_ns / per_microbatch, solved.bound_ns / per_microbatch
                    line += f"  optimal {best:.4f} {best / seconds - 1:+6.1%} bound {bound:.4f}"
                yield line


if __name__ == "__main__":
    for text in lines(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
