"""What a trace says as often of one thing as of another: the same is told in whichever order a scanner met them."""

from __future__ import annotations

from collections import Counter

from helpers.notices import texts

from tracetool.readers import SourceReport
from tracetool.readers.kineto import record_unread
from tracetool.readers.kineto.census import most_frequent


def test_kinds_met_equally_often_are_named_by_the_alphabet() -> None:
    notes = []
    for order in (("b_op", "a_op", "c_op"), ("c_op", "a_op", "b_op")):
        report = SourceReport(skipped=Counter({kind: 2 if kind == "c_op" else 1 for kind in order}))
        record_unread(report)
        notes.append(texts(report.notes))
    assert notes[0] == notes[1] == ["4 events of kinds that are not read (c_op, a_op, b_op)"]


def test_of_devices_met_equally_often_the_lowest_is_the_ranks() -> None:
    assert most_frequent(Counter({7: 2, 3: 2, 1: 1})) == most_frequent(Counter({3: 2, 7: 2, 1: 1})) == 3
    assert most_frequent(Counter()) is None
