"""What a Run keeps beside its tables: what would be worked out anew, of this very code and tables, and no program."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq
import pytest
from helpers.recorded import SAMPLES, data, derived, small
from helpers.thorough import spread

from tracetool.model.action import Action, ActionKind
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import ActionCost
from tracetool.reconstruction import KEPT, Reconstruction, reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.messages import P2POp, PairedMessage
from tracetool.reconstruction.capture.survey import KEPT as SURVEY
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.store import run as store_run
from tracetool.store.kept import from_bytes, to_bytes
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable


RECORDINGS = {
    "several steps, labelled": lambda: derived(data("h100-pp4", "traces", "rt1f1b_m8")),
    "memory": lambda: derived(data("h100-pp4", "traces", "1f1b_m8_mem")),
    "two pipelines": lambda: derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8")),
    "no device": lambda: derived(data("cpu-gloo-pp4", "ScheduleZBVZeroBubble")),
    "rings": lambda: derived(data("cases", "ring-attention-pp2-cp2")),
    "ascend": lambda: derived(SAMPLES / "ascend-1f1b"),
}


@pytest.fixture
def copied(tmp_path: Path) -> Run:
    """A Run of a test's own."""
    return Run(Path(copytree(derived(SAMPLES / "h100-1f1b").path, tmp_path / "x.run")))


# What a recording has besides, a memory, a second pipeline or rings, is kept in parts of their own.
@spread("name", RECORDINGS, ["rings", "ascend"])
def test_what_is_kept_is_what_would_be_found_again(name: str) -> None:
    run = RECORDINGS[name]()
    kept = run.kept(KEPT)
    assert isinstance(kept, Reconstruction)
    found = reconstruct(run, account=Account())
    assert kept == found
    assert repr([getattr(kept, field) for field in kept.__slots__]) == repr(
        [getattr(found, field) for field in found.__slots__]
    )


@spread("name", RECORDINGS, ["rings", "ascend"])
def test_a_survey_that_is_kept_is_the_one_that_would_be_made_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RECORDINGS[name]()
    assert run.kept(SURVEY) is not None
    kept_account, account = Account(), Account()
    kept = survey_run(run, kept_account)
    monkeypatch.setattr(Run, "kept", lambda _run, _name: None)
    made = survey_run(run, account)
    assert (kept_account.notes, kept_account.findings) == (account.notes, account.findings)
    assert kept.run.sources == made.run.sources
    assert repr(replace(kept, run=run)) == repr(replace(made, run=run))


def test_a_plain_question_asks_no_table(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a table was asked")

    monkeypatch.setattr(store_run, "connect", refuse)
    assert reconstruct(copied).pipeline.observed.shape.ranks == 4
    with pytest.raises(AssertionError, match="a table was asked"):
        reconstruct(copied, use_labels=False)


def _sent(position: int, parts: tuple[P2POp, ...] = ()) -> P2POp:
    return P2POp(
        rank=0, position=position, peer=1, is_send=True, payload_bytes=None, group="pp", batch=None, stream=7, thread=1,
        posted_ns=position, start_ns=position + 1, end_ns=position + 2, label=None, parts=parts,
    )  # fmt: skip


def _other_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del run
    monkeypatch.setattr(store_run, "code_digest", lambda: "another")


def _other_tables(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (file,) = (run.path / "memory").iterdir()
    pq.write_table(pq.read_table(file).slice(1), file)


def _damage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    file = run.path / f"{KEPT}.kept"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("change", [_other_code, _other_tables, _damage])
def test_what_may_not_hold_any_more_is_not_taken(
    copied: Run, monkeypatch: pytest.MonkeyPatch, change: Callable[[Run, pytest.MonkeyPatch], None]
) -> None:
    change(copied, monkeypatch)
    assert Run(copied.path).kept(KEPT) is None


def test_tables_seen_otherwise_are_looked_at_anew(copied: Run) -> None:
    assert copied.overlay({"events": "SELECT * FROM {recorded} WHERE rank < 4"}).kept(KEPT) is None


class _Program:
    """Pickled as a call of something else."""

    def __init__(self, call: Callable[[str], object], argument: str) -> None:
        self._call = call, (argument,)

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return self._call


def test_a_kept_value_runs_nothing(copied: Run, tmp_path: Path) -> None:
    """A Run may come from anywhere: neither the standard library nor a function of the product is called."""
    target = tmp_path / "called"
    for value in (
        _Program(eval, f"open({str(target)!r}, 'w')"),
        _Program(small, "x"),
        _Program(Path, "x"),
    ):
        copied.keep(KEPT, None)
        file = copied.path / f"{KEPT}.kept"
        file.write_bytes(file.read_bytes()[:32] + zlib.compress(pickle.dumps(value)))
        assert copied.kept(KEPT) is None
    assert not target.exists()
    assert reconstruct(copied).pipeline.observed.shape.ranks == 4


@pytest.mark.parametrize(
    "values",
    [
        [Action(number % 3, ActionKind.FORWARD, number) for number in range(5)],
        [ActionCost(1 << 70, None), ActionCost(True, 2), ActionCost(-3)],
        [Notice(NoticeCode.FIDELITY, "a"), Notice(NoticeCode.FIDELITY, "a", hint="b")],
        [PairedMessage(_sent(0), _sent(1, parts=(_sent(2),))), PairedMessage(_sent(3), _sent(0))],
        [],
    ],
)
def test_values_written_field_by_field_are_the_same(values: list[object]) -> None:
    """Equal, and of the same types down to True and 1, ints beyond 64 bits among them."""
    back = from_bytes(to_bytes(values))
    assert back == values
    assert repr(back) == repr(values)


def test_what_comes_twice_is_one_value() -> None:
    one, other = _sent(0), _sent(0)
    written = to_bytes((one, other, one, PairedMessage(other, one)))
    first, second, third, message = cast("tuple[P2POp, P2POp, P2POp, PairedMessage]", from_bytes(written))
    assert first is third is message.recv
    assert second is message.send
    assert first is not second
    assert message == PairedMessage(other, one)


def test_rows_of_other_types_are_no_value() -> None:
    for of in (Path, small):
        text = pickle.dumps([(of, [("x",)])]) + pickle.dumps(None)
        with pytest.raises((pickle.UnpicklingError, TypeError)):
            from_bytes(zlib.compress(text))


def test_own_values_come_back(copied: Run) -> None:
    copied.keep("actions", [Action(2, ActionKind.FORWARD, 0)])
    assert copied.kept("actions") == [Action(2, ActionKind.FORWARD, 0)]
    assert copied.kept("nothing") is None
