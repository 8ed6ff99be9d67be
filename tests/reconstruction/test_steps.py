"""Steps by marks, by the optimizer and by messages: with what tells them hidden, the same steps come out."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from helpers.message_run import Posted, gpipe, one_f_one_b, timed, write_messages
from helpers.notices import codes
from helpers.recorded import h100, rebuilt
from helpers.thorough import drawn, spread
from hypothesis import Phase, given
from hypothesis import strategies as st

from tracetool.errors import ReconstructError
from tracetool.model.notice import NoticeCode
from tracetool.model.timeline import measure
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import Clocks
from tracetool.reconstruction.steps import choose_step, steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.store.run import Run

NOTHING = "SELECT * FROM {recorded} WHERE false"
NO_ANNOTATIONS = "SELECT * FROM {recorded} WHERE category <> 'annotation'"
NO_OPTIMIZER = NO_ANNOTATIONS + " AND name NOT ILIKE '%adam%'"
HIDDEN = {
    "label": {"steps": NOTHING},
    "kernels": {"steps": NOTHING, "events": NO_ANNOTATIONS},
    "messages": {"steps": NOTHING, "events": NO_OPTIMIZER},
}


# Steps without marks are as many, of as many messages, by default (below), and made jobs without marks hold their
# pipelines (test_step_kinds).
@pytest.mark.thorough
# Of each evidence the messages of steps are counted by default (below); labels and kernels say more than messages.
@spread("evidence", HIDDEN, ["messages"])
# In GPipe all forwards come first and tensor parallel ranks meet within steps: other places where a cut could fall.
@spread("name", ["1f1b_m8", "gpipe_m8", "tp2pp2_1f1b_m8"], 1)
@pytest.mark.parametrize("number", [1])
def test_steps_without_marks_hold_the_same_pipeline(name: str, evidence: str, number: int) -> None:
    """The recordings mark steps 1 and 2: hiding the marks may change the tail of a step, not what it computes."""
    run = h100(name)
    marked = rebuilt(name, step=number + 1, use_labels=False)
    hidden = reconstruct(run.overlay(HIDDEN[evidence]), step=number, use_labels=False)
    assert hidden.observed.computes() == marked.observed.computes()
    assert hidden.observed.transfers == marked.observed.transfers
    assert [(s.number, s.status, s.evidence) for s in hidden.steps] == [
        (0, "complete", evidence), (1, "complete", evidence),
    ]  # fmt: skip
    if evidence != "messages":
        assert measure(hidden.observed).step_ns == measure(marked.observed).step_ns


@pytest.mark.parametrize("name", ["zbh1_m8", "interleaved_m8"])
@pytest.mark.parametrize("evidence", HIDDEN)
def test_steps_of_other_schedules_have_as_many_messages_as_the_marked_ones(name: str, evidence: str) -> None:
    run = h100(name)
    marked = [s.messages for s in steps_of(run, range(4), Account(), Clocks())]
    hidden = steps_of(run.overlay(HIDDEN[evidence]), range(4), Account(), Clocks())
    assert [s.messages for s in hidden] == marked
    assert {s.status for s in hidden} == {"complete"}


def _from(run: Run, share: float, **hidden: str) -> Run:
    """The Run as if recording had begun so far into its first step."""
    ((start, end),) = run.rows("SELECT min(start_ns), min(end_ns) FROM steps")
    at = round(start + share * (end - start))
    kept = {
        "events": f"SELECT * FROM {{recorded}} WHERE start_ns >= {at}",
        "comms": f"SELECT * FROM {{recorded}} WHERE posted_ns >= {at}",
    }
    return run.overlay(kept).overlay(hidden)


# A capture that begins early loses less of the step, and interleaved stages have more messages to cut between.
@spread("share", [0.05, 0.4], [0.4])
@spread("name", ["1f1b_m8", "interleaved_m8"], 1)
@pytest.mark.parametrize("evidence", ["marks", "label", "kernels", "messages"])
def test_a_capture_that_begins_inside_a_step_keeps_and_flags_it(name: str, share: float, evidence: str) -> None:
    account = Account()
    whole = {s.number: s for s in steps_of(h100(name), range(4), Account(), Clocks())}
    run = _from(h100(name), share, **HIDDEN.get(evidence, {}))
    first, second = steps_of(run, range(4), account, Clocks())
    assert (first.status, second.status) == ("first", "complete")
    assert 0 < first.messages < second.messages == whole[2].messages
    chosen = choose_step([first, second], range(4), None, account)
    assert chosen == second
    assert NoticeCode.STEPS_LEFT_OUT in codes(account.notes)
    (finding,) = account.findings
    assert finding.confidence == 0.5
    assert choose_step([first, second], range(4), first.number, account) == first


def _cut(orders: Sequence[Sequence[Posted]], times: Sequence[Sequence[int]], step: int) -> list[tuple[int, int]]:
    """When the step's first and last messages are posted on each rank."""
    spans = []
    for ops, posted in zip(orders, times, strict=True):
        mine = [at for op, at in zip(ops, posted, strict=True) if op.step == step]
        spans.append((mine[0], mine[-1]))
    return spans


@drawn(12, first=4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    schedule=st.sampled_from([one_f_one_b, gpipe]), p=st.integers(2, 5), m=st.integers(2, 9), steps=st.integers(2, 5),
    begin=st.floats(0, 0.9), end=st.floats(0, 0.9),
)  # fmt: skip
def test_messages_alone_cut_where_steps_were_made_to_end(
    schedule: object, p: int, m: int, steps: int, begin: float, end: float
) -> None:
    """Every rank's messages of one step lie in one found step, also where the capture begins and ends inside steps."""
    assert callable(schedule)
    orders = schedule(p, m, steps + 2)
    times = timed(orders)
    lost = _cut(orders, times, 0), _cut(orders, times, steps + 1)
    since = round(lost[0][0][0] + begin * (lost[0][0][1] - lost[0][0][0]))
    until = round(lost[1][0][1] - end * (lost[1][0][1] - lost[1][0][0]))
    with TemporaryDirectory() as folder:
        run = write_messages(Path(folder) / "x.run", orders, times, since_ns=since, until_ns=until)
        found = steps_of(run, range(p), Account(), Clocks())
    assert {s.evidence for s in found} == {"messages"}
    for step in range(1, steps + 1):
        holding = {
            tuple(s.number for s in found if rank in s.spans and s.spans[rank][0] <= first and last < s.spans[rank][1])
            for rank, (first, last) in enumerate(_cut(orders, times, step))
        }
        assert len(holding) == 1, "the ranks disagree about the step"
        ((number,),) = holding
        assert next(s for s in found if s.number == number).status == "complete"


def test_messages_that_do_not_repeat_are_one_step(tmp_path: Path) -> None:
    orders = one_f_one_b(3, 6, 1)
    account = Account()
    (step,) = steps_of(write_messages(tmp_path / "x.run", orders, timed(orders)), range(3), account, Clocks())
    assert (step.number, step.status, step.evidence) == (0, "complete", "assumed")
    assert codes(account.notes) == [NoticeCode.STEPS_CUT]


def test_optimizers_of_captures_that_begin_apart_are_paired_by_time() -> None:
    """Rank 2 was switched on inside the second step: its only optimizer is that of step 2, not the first one's."""
    run = h100("1f1b_m8")
    ((at,),) = run.rows("SELECT start_ns + 1000000 FROM steps WHERE rank = 2 AND step = 2")
    late = {
        table: f"SELECT * FROM {{recorded}} WHERE rank <> 2 OR {time} >= {at}"
        for table, time in (("events", "start_ns"), ("comms", "posted_ns"))
    }
    found = steps_of(run.overlay({**late, "steps": NOTHING}), range(4), Account(), Clocks())
    assert [s.number for s in found] == [0, 1]
    assert sorted(found[0].spans) == [0, 1, 3]
    assert sorted(found[1].spans) == [0, 1, 2, 3]


def test_a_step_that_one_rank_lacks_is_not_complete_and_cannot_be_asked_for() -> None:
    run = h100("1f1b_m8").overlay({"steps": "SELECT * FROM {recorded} WHERE rank <> 3 OR step <> 2"})
    steps = steps_of(run, range(4), Account(), Clocks())
    assert [(s.number, s.status) for s in steps] == [(1, "complete"), (2, "last")]
    with pytest.raises(ReconstructError, match=r"step 2 was not recorded on ranks \[3\]"):
        choose_step(steps, range(4), 2, Account())
    with pytest.raises(ReconstructError, match="there is no step 7; the traces hold steps 1-2"):
        choose_step(steps, range(4), 7, Account())


def test_a_step_whose_messages_have_no_kernels_is_not_complete() -> None:
    """Its records are there, its kernels are not (the end of a capture may lose them)."""
    run = h100("1f1b_m8")
    ((at,),) = run.rows("SELECT min(start_ns) FROM steps WHERE step = 2")
    lost = ", ".join(f"CASE WHEN posted_ns < {at} THEN {c} END AS {c}" for c in ("start_ns", "end_ns"))
    steps = steps_of(
        run.overlay({"comms": f"SELECT * REPLACE ({lost}) FROM {{recorded}}"}), range(4), Account(), Clocks()
    )
    assert [(s.number, s.status) for s in steps] == [(1, "complete"), (2, "last")]
