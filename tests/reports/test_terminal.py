"""The schedule picture on the terminal: exact cells, shares kept, widths kept, and when it is shown at all."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from helpers.recorded import SAMPLES, derived
from helpers.synthetic import equal_stages, found, pipeline, places
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.causes.cause import Cause, Idle
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.topology import Topology
from tracetool.reports.gantt.terminal import (
    AFTER,
    BACKWARD,
    FORWARD,
    IDLE,
    IDLE_LINK,
    TAIL,
    Mark,
    panel_of,
    render,
    resample,
    spans_of,
)
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.whatif.results import Answer

MS = 10**6
BUSY = {FORWARD, BACKWARD, TAIL}


@cache
def asked(p: int, m: int, *, dcs: tuple[int, ...] = (), latency_ns: int = 0, schedule: str = "1f1b") -> Answer:
    measured = pipeline(p, m, 10 * MS, 20 * MS, payload_bytes=1, tail_ns=10 * MS)
    topology = places(dcs, latency_ns=latency_ns) if dcs else Topology()
    return answer(found(measured), [schedule], Scenario(topology=topology))


def test_every_cell_of_a_small_pipeline() -> None:
    # Worked out by hand. A forward of 10 and a backward of 20 ms per rank, one microbatch, 10 ms of optimizer: steps of
    # 70 ms, and of 110 ms over a link of 20 ms each way. Of 40 columns 12 are the margin: 28 cells for 110 ms, and
    # 28 x 70/110 = 18 for 70 ms. Observed, on rank 0 the forward takes 2.57 cells, shown as 3; the backward begins in
    # the last .71 of cell 10, of which .43 have been shown already, so that it stays idle. Over the link rank 0 waits
    # for it from 10 to 30 and from 60 to 80 ms, rank 1 from 10 to 30 and from 70 (its optimizer is through) to 80: 2.55
    # cells, shown as 3, as its 10 ms of fill have 3 cells for 2.55 too.
    assert render(asked(2, 1, dcs=(1, 1), latency_ns=20 * MS), 40, colour=False).splitlines() == [
        "recorded 1f1b: step 70.0 ms, bubble",
        "  50.0%",
        " dc0 rank 0 ███········▓▓▓▓▓▂▂",
        " dc1 rank 1 ···██▓▓▓▓▓▂▂▂··   ",
        "1f1b: step 110.0 ms, bubble 70.0%",
        " dc0 rank 0 ███×××××·······××××××▓▓▓▓▓▂▂",
        " dc1 rank 1 ···×××××██▓▓▓▓▓▂▂▂×××·····  ",
        "            ┴───────────┴────────────┴──",
        "            0           50 ms",
        "  █ forward  ▓ backward",
        "  ▂ gradients, optimizer  · idle",
        "  × idle for a link between DCs",
        "  a cell is 3.9 ms; busy cells of a row",
        "    add up to its busy time",
    ]


spans = st.lists(st.tuples(st.sampled_from([FORWARD, BACKWARD, TAIL, IDLE, IDLE_LINK, AFTER]), st.integers(1, 40)))


@given(spans.filter(bool), st.integers(1, 60))
def test_busy_cells_add_up_to_busy_time(drawn: list[tuple[Mark, int]], cells: int) -> None:
    row, at = [], 0
    for mark, length in drawn:
        row.append((at, at + length, mark))
        at += length
    shown = resample(row, at, cells)
    assert len(shown) == cells
    busy = Fraction(sum(end - start for start, end, mark in row if mark in BUSY) * cells, at)
    assert abs(sum(mark in BUSY for mark in shown) - busy) <= Fraction(1, 2)
    for cell, mark in enumerate(shown):
        inside = {m for start, end, m in row if start * cells < (cell + 1) * at and end * cells > cell * at}
        assert mark in inside


def test_what_no_cell_shows_is_carried_over() -> None:
    # Of every cell a fifth is a backward and the rest idle: every fifth cell is one.
    row = [(at * 10 + start, at * 10 + end, mark) for at in range(10) for start, end, mark in
           ((0, 2, BACKWARD), (2, 10, IDLE))]  # fmt: skip
    shown = resample(row, 100, 10)
    assert Counter(shown) == {BACKWARD: 2, IDLE: 8}


# Widths between behave as those beside them, and so do more ranks than are shown.
@spread("width", [10, 40, 57, 80, 200])
@spread("ranks", [4, 64], 1)
def test_keeps_to_the_width(ranks: int, width: int) -> None:
    half = ranks // 2
    drawn = asked(ranks, 8, dcs=(half, half), latency_ns=50 * MS, schedule="geopipe")
    topology = drawn.scenario.topology
    long_names = tuple(f"somewhere-far-away-{dc}" for dc in topology.dcs)
    drawn = replace(drawn, scenario=replace(drawn.scenario, topology=replace(topology, dcs=long_names)))
    lines = render(drawn, width, colour=False).splitlines()
    assert max(map(len, lines)) <= max(width, 40)
    assert sum("rank " in line for line in lines) == 3 * min(ranks, 8)


def test_ranks_beyond_a_screen_are_counted_and_those_at_boundaries_kept() -> None:
    lines = render(asked(64, 2, dcs=(20, 44), latency_ns=50 * MS, schedule="geopipe"), 80, colour=False).splitlines()
    ranks = [int(line.split("rank")[1].split()[0]) for line in lines if re.search(r"rank +\d", line)]
    assert ranks[:8] == ranks[8:16] == ranks[16:]
    assert {0, 19, 20, 63} < set(ranks)
    assert sum("… 56 more ranks" in line for line in lines) == 3


def test_more_boundaries_than_rows_are_shown_evenly() -> None:
    lines = render(asked(64, 2, dcs=(1,) * 64), 80, colour=False).splitlines()
    ranks = [int(line.split("rank")[1].split()[0]) for line in lines if re.search(r"rank +\d", line)]
    # Two timelines of twelve rows each: every 63/11th rank.
    assert ranks == 2 * [0, 5, 11, 17, 22, 28, 34, 40, 45, 51, 57, 63]


def test_one_rank_is_a_picture_too() -> None:
    # A forward of 10, a backward of 20 and an optimizer of 10 ms, twice: 70 ms in all, without a bubble.
    lines = render(asked(1, 2), 42, colour=False).splitlines()
    assert lines[:2] == [
        "recorded 1f1b: step 70.0 ms, bubble 0.0%",
        " rank 0 " + "█" * 5 + "▓" * 10 + "█" * 5 + "▓" * 9 + "▂" * 5,
    ]


def test_colours_change_nothing_else() -> None:
    schedule = build_schedule("zb-h1", PipelineShape(4, 6))
    costs = {ActionKind.FORWARD: 3 * MS, ActionKind.BACKWARD_INPUT: 3 * MS, ActionKind.BACKWARD_WEIGHT: 2 * MS}
    drawn = answer(found(equal_stages(schedule, costs)), ["zb-h1"], baseline="observed")
    plain, coloured = (render(drawn, 90, colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b[34m█" in coloured
    assert re.findall(r"(\S) (forward|input gradient|weight gradient|idle)", plain) == [
        ("█", "forward"), ("▒", "input gradient"), ("░", "weight gradient"), ("·", "idle"),
    ]  # fmt: skip


def test_waiting_for_a_link_is_marked_apart() -> None:
    timeline = asked(2, 1).observed
    # Rank 0 idles from the end of its forward (10 ms) to its backward (40 ms), as 1F1B on two ranks does.
    idles = [Idle(0, 10 * MS, 25 * MS, Cause.DEPENDENCY), Idle(0, 25 * MS, 40 * MS, Cause.CROSS_DC_BANDWIDTH)]
    first, second = spans_of(panel_of("x", timeline, idles, ()))
    assert first == [
        (0, 10 * MS, FORWARD), (10 * MS, 25 * MS, IDLE), (25 * MS, 40 * MS, IDLE_LINK), (40 * MS, 60 * MS, BACKWARD),
        (60 * MS, 70 * MS, TAIL),
    ]  # fmt: skip
    # Its neighbour is done at 40 ms; the window ends at 60 ms, and what comes after it is no bubble.
    assert second == [
        (0, 10 * MS, IDLE), (10 * MS, 20 * MS, FORWARD), (20 * MS, 40 * MS, BACKWARD), (40 * MS, 50 * MS, TAIL),
        (50 * MS, 60 * MS, IDLE), (60 * MS, 70 * MS, AFTER),
    ]  # fmt: skip


_DRIVER = """
import os, sys
import tracetool.reconstruction, tracetool.whatif.answer
from tracetool.cli import run

def once(ask):
    known = []
    def answered(*words, **more):
        known.extend([ask(*words, **more)] if not known else [])
        return known[0]
    return answered

# What is shown is of interest here, not the work behind it, which is always the same.
reconstruct_module, whatif_module = sys.modules["tracetool.reconstruction"], sys.modules["tracetool.whatif.answer"]
reconstruct_module.reconstruct = once(reconstruct_module.reconstruct)
whatif_module.answer = once(whatif_module.answer)
for case in sys.argv[2].split(";"):
    *words, option = case.split(",")
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        os.environ.pop(name, None)
    os.environ.update(word.split("=") for word in words)
    run(["replay", sys.argv[1], *option.split()])
    print(end="\\f", flush=True)
"""


def on_a_terminal(*cases: str) -> list[str]:
    """What replay prints on a terminal, per case of an environment and options."""
    ours, theirs = pty.openpty()
    run = derived(SAMPLES / "h100-1f1b")
    command = [sys.executable, "-c", _DRIVER, str(run.path), ";".join(cases)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as done:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # Linux, where the other side has closed
            while part := os.read(ours, 2**16):
                said += part
    os.close(ours)
    assert done.returncode == 0
    return said.decode().split("\f")[:-1]


def test_terminals_get_the_picture_that_they_can_show() -> None:
    dumb, bare, coloured, quiet, as_json, small = on_a_terminal(
        "TERM=dumb,COLUMNS=60,LINES=50,",
        "TERM=xterm-256color,NO_COLOR=1,",
        "TERM=xterm-256color,",
        "TERM=xterm-256color,-q",
        "TERM=xterm-256color,--json",
        "TERM=xterm-256color,LINES=16,",
    )
    assert "█" not in small, "a picture scrolls no answer away"
    assert "\x1b" not in dumb + bare + quiet + as_json
    assert ["█" in said for said in (dumb, bare, coloured, quiet, as_json)] == [True, True, True, False, False]
    assert "\x1b[34m█" in coloured
    picture = dumb[dumb.index("\r\nrecorded 1f1b: step") : dumb.index("\r\nNext:")].splitlines()
    assert 50 < max(map(len, picture)) <= 60
