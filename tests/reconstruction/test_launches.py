"""What launching takes, from hosts and devices that a small simulation runs: a kernel starts when it was launched and
the one before is over, a host that waits goes on when the device is through."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from helpers.notices import texts
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.readers import SYNCHRONISATIONS
from tracetool.reconstruction.actions import Kernel, Segment
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.messages import P2POp
from tracetool.reconstruction.closeup.launches import Waits, find_launches, mostly_waits, turns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
LATENCY = 1
"""From a launch to the kernel's start on an idle device."""


@dataclass
class Machine:
    """One rank: when its host and its device are free."""

    host: int = 0
    device: int = 0
    posts: list[P2POp] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def action(self, kind: ActionKind, launches: Sequence[int], runs: Sequence[int], held: int | None = None) -> None:
        kernels = []
        for at, (launch, run) in enumerate(zip(launches, runs, strict=True)):
            if at == held:
                self.wait()
            self.host += launch
            start = max(self.host + LATENCY, self.device)
            self.device = start + run
            kernels.append(Kernel(start, self.device, self.host, op_name=f"{kind.value}{at}", stream=7, event=at))
        first, last = kernels[0], kernels[-1]
        self.segments.append(
            Segment(
                kind=kind, microbatch=len(self.segments), stage=0, start_ns=first.start_ns, end_ns=last.end_ns,
                issue_ns=first.launch_ns, issued_ns=last.launch_ns, kernels=tuple(kernels),
            )
        )  # fmt: skip

    def batch(self, *, waits: bool = True) -> None:
        self.host += 1
        end = max(self.host, self.device) + 3
        place = len(self.posts)
        self.posts.append(P2POp(0, place, 1, True, 8, "g", place, 9, 1, self.host, end - 3, end, None))
        if waits:
            self.device = end
            self.wait()

    def wait(self) -> None:
        start = self.host + 1
        self.host = max(start, self.device)
        self.waits.append((start, self.host))

    def turns(self) -> dict[int, list[object]]:
        waits = Waits([start for start, _ in self.waits], [end for _, end in self.waits])
        return {0: turns_of(self.segments, self.posts, waits)}  # type: ignore[dict-item]


TIMES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=8)


@given(TIMES, st.integers(1, 4))
def test_an_action_costs_its_kernels_and_lags_by_how_far_launches_fall_behind(
    times: list[tuple[int, int]], runs: int
) -> None:
    launches, kernels = [launch for launch, _ in times], [run for _, run in times]
    machine = Machine()
    for _ in range(runs):
        machine.batch()
        machine.action(F, launches, kernels)
    turns = machine.turns()
    found = find_launches([turns], Account())  # type: ignore[list-item]
    # From a standstill kernel i starts after sum(launches[1..i]), if the kernels ahead of it are over by then.
    behind = [sum(launches[1 : at + 1]) - sum(kernels[:at]) for at in range(len(times))]
    launch = found.of[0, F]
    assert launch.lag_ns == max(0, *behind)
    assert launch.issue_ns == sum(launches[1:])
    assert launch.sync_ns == launches[0] + LATENCY
    for segment in machine.segments:
        assert segment.end_ns - segment.start_ns - sum(found.gaps_of(segment)) == sum(kernels)


def test_launches_that_took_more_than_twice_the_least_were_disturbed() -> None:
    machine = Machine()
    for slow in (10, 10, 10, 300, 90):
        machine.batch()
        machine.action(F, [5, slow, 4], [2, 2, 2])
    account = Account()
    launch = find_launches([machine.turns()], account).of[0, F]  # type: ignore[list-item]
    assert launch.issue_ns == 10 + 4
    assert any("2 of 5 actions" in note for note in texts(account.notes, NoticeCode.HOSTS_LATE))


def test_what_follows_a_wait_inside_an_action_stays_the_actions_own() -> None:
    """A host that reads a number back (tokens per expert) must wait each time: no order of actions changes that."""
    machine = Machine()
    for _ in range(3):
        machine.batch()
        machine.action(F, [5, 4, 9, 1], [20, 30, 10, 10], held=2)
    found = find_launches([machine.turns()], Account())  # type: ignore[list-item]
    assert found.of[0, F].lag_ns == 0
    for segment in machine.segments:
        assert sum(found.gaps_of(segment)) == 0
        assert segment.end_ns - segment.start_ns == 20 + 30 + 9 + LATENCY + 10 + 10


def test_hosts_that_run_ahead_are_left_alone() -> None:
    machine = Machine()
    for _ in range(3):
        machine.batch(waits=False)
        machine.action(F, [5, 40, 4], [2, 2, 2])
    turns = machine.turns()
    assert not mostly_waits(turns)  # type: ignore[arg-type]
    found = find_launches([turns], Account())  # type: ignore[list-item]
    assert not found.of
    assert not any(map(sum, map(found.gaps_of, machine.segments)))


def test_what_stands_between_two_actions_without_a_batch_is_the_hosts_turn() -> None:
    machine = Machine()
    for _ in range(2):
        machine.batch()
        machine.action(F, [5, 4], [20, 20])
        machine.action(B, [7, 3], [30, 30])
    found = find_launches([machine.turns()], Account())  # type: ignore[list-item]
    assert found.of[0, B].turn_ns == 7
    assert (
        found.of[0, B].sync_ns == found.of[0, F].sync_ns == 5 + LATENCY
    )  # never seen ahead of a backward: as of others


@pytest.mark.parametrize(
    ("name", "is_wait"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaStreamSynchronize", True),
        ("cudaEventSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("hipStreamSynchronize", True),
        ("cuStreamSynchronize", True),
        ("aclrtSynchronizeDevice", True),
        ("aclrtSynchronizeStreamWithTimeout", True),
        ("cudaLaunchKernel", False),
        ("aten::synchronize", False),
        ("cudaDeviceSynchronizeNothing", False),
    ],
)
def test_calls_that_wait_for_a_device_are_known_by_name(name: str, is_wait: bool) -> None:
    """Names of the CUDA runtime and driver, HIP and CANN."""
    assert (re.search(SYNCHRONISATIONS, name) is not None) is is_wait


def test_a_host_that_was_held_up_but_could_keep_ahead_costs_nothing() -> None:
    """Launches of 4 against kernels of 20; once the host does something else for 300, and the device waits."""
    machine = Machine()
    for slow in (4, 4, 300, 4):
        machine.batch(waits=False)
        machine.action(F, [4, slow, 4], [20, 20, 20])
    account = Account()
    found = find_launches([machine.turns()], account)  # type: ignore[list-item]
    assert found.ranks == {0}
    assert not found.of  # hosts that do not wait are ahead again in any order
    for segment in machine.segments:
        assert segment.end_ns - segment.start_ns - sum(found.gaps_of(segment)) == 60
    assert [f.subject for f in account.findings if f.fact == "launches"] == ["rank 0"]
