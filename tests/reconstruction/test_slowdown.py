"""Slowdown beside communication: classes and factors by hand, and views made of kernels with known times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import Kernel, Segment
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.closeup import slowdown
from tracetool.reconstruction.closeup.action_view import ActionView
from tracetool.reconstruction.closeup.slowdown import SEPARATE, Slowed, is_wholly_beside, kernel_class, learn_factors
from tracetool.reconstruction.closeup.uncontended import take_slowdown_out
from tracetool.reconstruction.steps.reading import Device

if TYPE_CHECKING:
    from collections.abc import Iterator

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
SMS = 132


@pytest.fixture(autouse=True, scope="module")
def _round_defaults() -> Iterator[None]:
    """Round numbers that hands can work with; test_default_factors.py tests the real ones."""
    round_ones = {"full-grid matrix product": 1.5, "matrix product": 1.1, "attention": 1.05}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slowdown, "DEFAULT_FACTORS", round_ones)
        yield


@pytest.mark.parametrize(
    ("name", "blocks", "sms", "expected"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 132, 132, "full-grid matrix product"),
        ("nvjet_tst_128x256", 119, 132, "full-grid matrix product"),
        ("nvjet_tst_128x256", 118, 132, "matrix product"),
        ("sm90_xmma_gemm_bf16", 133, 132, "matrix product"),
        ("ampere_bf16_s16816gemm_128x256", 108, 108, "full-grid matrix product"),  # A100
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64", 304, 304, "full-grid matrix product"),  # MI300
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64", 1024, 304, "matrix product"),
        ("cutlass::Kernel2<cutlass_80_tensorop>", 64, None, "matrix product"),  # device unknown
        ("void flash_fwd_kernel<...>", 132, 132, "attention"),
        ("fmha_cutlassF_bf16_aligned", 64, 132, "attention"),  # attention though its name has cutlass
        ("void at::native::vectorized_elementwise_kernel", 132, 132, "other"),
        ("MatMulV2", None, None, SEPARATE),  # Ascend
        ("MatMulV2", None, 24, SEPARATE),
    ],
)
def test_classes(name: str, blocks: int | None, sms: int | None, expected: str) -> None:
    assert kernel_class(name, blocks, sms) == expected


def test_a_factor_is_the_median_of_the_narrowest_group_with_enough_runs() -> None:
    """Three ratios 1.2, 1.4, 1.3 of "a"; of "b" only two, so the class: (120 + 140 + 130 + 180 + 220) / 500."""
    runs = [Slowed(("a", "gemm"), run, 100) for run in (120, 140, 130)]
    runs += [Slowed(("b", "gemm"), run, 100) for run in (180, 220)]
    factors = learn_factors([*runs, Slowed(("c", "gemm"), 5, 0)])
    assert factors.of(("a", "gemm")) == (1.3, "own")
    factor, source = factors.of(("b", "gemm"))
    assert source == "class"
    assert factor == pytest.approx(790 / 500)
    assert factors.of(("x", "attention")) == (1.05, "default")
    assert factors.of(("x", "full-grid matrix product")) == (1.5, "default")
    assert factors.of(("x", SEPARATE)) == (1.0, "default")


def test_a_class_weighs_kernels_by_their_time() -> None:
    """A long kernel twice as slow and two short ones that do not notice: 2020 / 1020, not a mean of 1.33."""
    runs = [Slowed(("long", "c"), 2000, 1000), Slowed(("x", "c"), 10, 10), Slowed(("y", "c"), 10, 10)]
    factor, source = learn_factors(runs).of(("z", "c"))
    assert source == "class"
    assert factor == pytest.approx(2020 / 1020)


def test_no_kernel_is_faster_beside_communication() -> None:
    factors = learn_factors(Slowed(("a", "c"), 90, 100) for _ in range(3))
    assert factors.of(("a", "c")) == (1.0, "own")
    assert factors.of(("b", "c")) == (1.0, "class")


@pytest.mark.parametrize(("run", "beside", "wholly"), [(100, 95, True), (100, 94, False), (0, 0, False)])
def test_a_run_beside_communication_for_95_percent_was_there_all_along(run: int, beside: int, *, wholly: bool) -> None:
    assert is_wholly_beside(run, beside) is wholly


@dataclass(frozen=True)
class Run:
    """A kernel of an action: for how long it ran, and beside what (messages and collectives together, messages)."""

    name: str
    run_ns: int
    beside_ns: int = 0
    messages_ns: int = 0
    gap_ns: int = 0
    blocks: int | None = SMS


def views(*actions: list[Run]) -> list[ActionView]:
    """Forwards of one rank and stage, back to back."""
    found, at = [], 1000
    for m, runs in enumerate(actions):
        kernels, times, begin = [], [], at
        for number, run in enumerate(runs):
            at += run.gap_ns if number else 0
            kernels.append(Kernel(at, at + run.run_ns, at, name=run.name, blocks=run.blocks))
            times.append(run.run_ns + (run.gap_ns if number else 0))
            at += run.run_ns
        segment = Segment(
            kind=F,
            microbatch=m,
            stage=0,
            start_ns=begin,
            end_ns=at,
            issue_ns=begin,
            issued_ns=at,
            kernels=tuple(kernels),
        )
        beside = [run.beside_ns for run in runs], [run.messages_ns for run in runs]
        found.append(ActionView(0, segment, times, [], [], *beside, [0] * len(runs)))
    return found


def times(of: list[ActionView], *, held: bool = True, sms: int | None = SMS) -> list[tuple[int, int]]:
    """Per action, its time alone and beside."""
    take_slowdown_out(of, {0: Device(None, sms)}, 10**6, Account(), held=held)
    return [(sum(view.alone_ns), sum(view.contended_ns)) for view in of]


def test_a_kernel_takes_its_own_time_alone_and_its_own_factor() -> None:
    """100 alone three times; beside a message 130 three times, and half of it 115: gaps stay."""
    alone = [[Run("gemm", 100), Run("add", 10, gap_ns=5)]] * 3
    beside = [[Run("gemm", 130, 130, 130), Run("add", 10, gap_ns=5)]] * 3
    half = [[Run("gemm", 115, 65, 65), Run("add", 10, gap_ns=5)]]
    assert times(views(*alone, *beside, *half)) == [(115, 145)] * 7


def test_slowdown_beside_collectives_stays_in() -> None:
    """Sharded weights are gathered beside compute in a replay as well: nothing else would put that slowdown in."""
    gathered = [[Run("gemm", 120, 120, 0)]] * 3
    assert times(views(*[[Run("gemm", 100)]] * 3, *gathered))[3:] == [(120, 180)] * 3
    # Such runs do not tell what the kernel takes alone either.
    message = [[Run("gemm", 150, 150, 150)]] * 3
    assert times(views(*[[Run("gemm", 100)]] * 3, *gathered, *message))[6:] == [(100, 150)] * 3


def test_a_kernel_that_always_ran_beside_takes_that_beside_again() -> None:
    """No run alone: the class's default of 1.5 tells 100 alone; beside, it takes what was recorded."""
    assert times(views(*[[Run("gemm", 150, 150, 150)]] * 4)) == [(100, 150)] * 4


def test_a_factor_of_its_like_tells_what_a_kernel_takes_that_never_ran_alone() -> None:
    """The same kernel and grid at another place of the action: 100 alone, 120 beside, so 60 beside are 50 alone."""
    first = [[Run("gemm", 100), Run("gemm", 60, 60, 60)]] * 3
    slowed = [[Run("gemm", 120, 120, 120), Run("gemm", 60, 60, 60)]] * 3
    assert times(views(*first, *slowed)) == [(150, 180)] * 6


@pytest.mark.parametrize(
    ("blocks", "sms", "held", "beside"),
    [
        (SMS, SMS, True, 150),
        (SMS, None, True, 110),  # an unknown device: no grid is known to fill it
        (None, None, True, 100),  # Ascend
        (SMS, SMS, False, 100),  # gloo: the host sends
    ],
)
def test_defaults_are_for_devices_whose_cores_communication_holds(
    blocks: int | None, sms: int | None, *, held: bool, beside: int
) -> None:
    assert times(views([Run("gemm", 100, blocks=blocks)]), held=held, sms=sms) == [(100, beside)]


def test_kernels_of_two_streams_add_what_they_add_to_the_action() -> None:
    """Two kernels of 150 at once: together they take 150 beside and, by the default of 1.5, 100 alone."""
    kernels = tuple(Kernel(0, 150, 0, name=name, blocks=SMS, stream=n) for n, name in enumerate(("gemm", "gemm2")))
    view = ActionView(
        0,
        Segment(kind=F, microbatch=0, stage=0, start_ns=0, end_ns=150, issue_ns=0, issued_ns=0, kernels=kernels),
        [150, 0],
        [],
        [],
        [150, 150],
        [150, 150],
        [0, 0],
    )
    assert times([view]) == [(100, 150)]


def test_what_is_told_adds_up() -> None:
    """Of 1100 ns alone: a thousand by kernels' own factors, 100 by defaults; runs beside messages are counted once."""
    account = Account()
    learned = [[Run("gemm", 100)]] * 5 + [[Run("gemm", 150, 150, 150)]] * 5
    take_slowdown_out(views(*learned, [Run("flash", 105, 105, 105)]), {0: Device(None, SMS)}, 10**6, account, held=True)
    found = {f.fact: f for f in account.findings}
    assert found["contention"].value == "6 of 11 kernels ran beside communication kernels"
    assert found["contention"].confidence == pytest.approx(5 / 6)
    assert found["contention"].detail is not None
    assert found["contention"].detail.startswith("1 of them never ran alone")
    assert found["interference"].confidence == pytest.approx(1000 / 1100)
    assert "own for 91% of compute" in found["interference"].value
    assert "defaults for 9%" in found["interference"].value


@given(
    st.lists(
        st.lists(
            st.builds(
                lambda name, run, share, of_messages, gap: Run(
                    name, run, run * share // 100, run * share // 100 * of_messages // 100, gap
                ),
                st.sampled_from(["gemm", "flash", "add"]),
                st.integers(0, 300),
                st.integers(0, 100),
                st.integers(0, 100),
                st.integers(0, 9),
            ),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_time_alone_is_no_longer_than_recorded_nor_than_beside(actions: list[list[Run]]) -> None:
    of = views(*actions)
    recorded = [sum(view.times_ns) for view in of]
    for (alone, beside), total in zip(times(of), recorded, strict=True):
        assert 0 <= alone <= total
        assert alone <= beside
    for view in of:
        for index, messages in enumerate(view.beside_messages_ns):
            if not messages:
                assert view.alone_ns[index] == view.times_ns[index]
