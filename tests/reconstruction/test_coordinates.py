"""Stage order, coordinates and copies on recordings whose ranks are renamed, hidden or lost.

The recordings' own layout (README of the shared data): tp2pp2_1f1b_m8 has global rank = pp * 2 + tp.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.message_run import gpipe, one_f_one_b, timed, write_messages
from helpers.notices import codes, texts
from helpers.recorded import data, h100, looked_at, rebuilt, run_of
from helpers.thorough import drawn, spread
from hypothesis import Phase, given
from hypothesis import strategies as st

from tracetool.errors import MissingRank, NoPipeline
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import UNCHECKED, Account
from tracetool.reconstruction.capture.coordinates import find_coordinates
from tracetool.reconstruction.capture.groups import find_pipelines
from tracetool.reconstruction.capture.process_groups import dimension_of, read_groups, spans_context
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.replays import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.store.run import Run

TABLES = ("events", "comms", "groups", "steps", "memory", "ranks")
NAMELESS = {"groups": "SELECT * REPLACE ('' AS description) FROM {recorded}"}


def _renamed(run: Run, names: tuple[int, ...]) -> Run:
    """The recording as if stage s had been held by rank names[s]; its groups list the ranks as before."""
    listed = f"CAST({list(names)} AS INTEGER[])"
    seen = dict.fromkeys(TABLES, f"SELECT * REPLACE ({listed}[rank + 1] AS rank) FROM {{recorded}}")
    seen["comms"] = f"SELECT * REPLACE ({listed}[rank + 1] AS rank, {listed}[peer + 1] AS peer) FROM {{recorded}}"
    return run.overlay(seen)


def _only(run: Run, *ranks: int) -> Run:
    return run.overlay(dict.fromkeys(TABLES, f"SELECT * FROM {{recorded}} WHERE rank IN {(*ranks, -1)}"))


# The messages of GPipe tell the order too, or not; of permutations the mixed one is taken.
@spread("name", ["1f1b_m8", "gpipe_m8"], 1)
@spread("names", [(2, 0, 3, 1), (3, 2, 1, 0), (1, 2, 3, 0)], 1)
def test_stages_in_any_order_inside_an_ascending_group(name: str, names: tuple[int, ...]) -> None:
    """The pp group lists 0, 1, 2, 3; what is computed is what the ranks computed under their own names."""
    plain, found = rebuilt(name), reconstruct(_renamed(h100(name), names))
    assert found.observed.global_ranks == names
    assert found.observed.ops == plain.observed.ops
    assert set(found.observed.transfers) == set(plain.observed.transfers)
    (finding,) = (f for f in found.findings if f.fact == "pipeline")
    assert (finding.evidence, finding.confidence) == ("messages", 1.0)
    assert "lists [0, 1, 2, 3]" in (finding.detail or "")
    assert any("lists [0, 1, 2, 3]" in note for note in texts(found.notes, NoticeCode.STAGE_ORDER))
    assert {c.rank: c.pp for c in found.coordinates} == {rank: stage for stage, rank in enumerate(names)}


# Turned and mixed, of a ring and of what has ends.
@spread("names", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 2, 3, 0)], [(2, 0, 3, 1)])
@spread(("name", "use_labels"), [("interleaved_m8", False), ("zbh1_m8", False), ("interleaved_m8", True)], 1)
def test_other_schedules_show_their_order_too(name: str, use_labels: bool, names: tuple[int, ...]) -> None:
    """Interleaved stages send from the last rank to the first one: a ring has no ends."""
    (found,) = find_pipelines(_renamed(h100(name), names), use_labels=use_labels)
    assert found.ranks == names
    assert found.confidence == 1.0
    assert (found.evidence == "label") == use_labels


@drawn(15, first=4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(schedule=st.sampled_from([one_f_one_b, gpipe]), m=st.integers(1, 6), names=st.permutations(range(5)))
def test_messages_alone_tell_the_order(schedule: object, m: int, names: list[int]) -> None:
    assert callable(schedule)
    orders = schedule(5, m, 2)
    with TemporaryDirectory() as folder:
        run = write_messages(Path(folder) / "x.run", orders, timed(orders), names=names)
        (found,) = find_pipelines(run)
    assert found.ranks == tuple(names)
    assert found.inferred
    assert found.evidence == "messages"


def test_a_group_whose_ranks_are_missing_lists_the_rest(tmp_path: Path) -> None:
    """Ranks 1 and 2 of four were not recorded: two ends that exchange nothing are still one pipeline."""
    orders = one_f_one_b(4, 4, 2)
    whole = write_messages(tmp_path / "x.run", orders, timed(orders), groups={"pp": range(4)})
    (found,) = find_pipelines(_only(whole, 0, 3))
    assert found.ranks == (0, 1, 2, 3)
    backwards = write_messages(tmp_path / "y.run", orders, timed(orders), names=(3, 2, 1, 0), groups={"pp": range(4)})
    (found,) = find_pipelines(_only(backwards, 0, 3))
    assert found.ranks == (3, 2, 1, 0)
    shuffled = write_messages(tmp_path / "z.run", orders, timed(orders), names=(2, 0, 3, 1), groups={"pp": range(4)})
    with pytest.raises(MissingRank, match=r"order of the stages cannot be told without ranks 1, 3"):
        find_pipelines(_only(shuffled, 0, 2))


PLACES = [(0, 0, 0, 0), (1, 1, 0, 1), (2, 0, 1, 0), (3, 1, 1, 1)]
"""Rank, pipeline, pp and tp of either job of two tensor parallel pipelines."""


@cache
def _made() -> Run:
    folder = Path(mkdtemp(prefix="tracetool-test-"))
    write_job(folder, MadeJob(pp=2, tp=2, microbatches=8, steps=1))
    return run_of(folder)


TP2PP2: dict[str, Callable[[], Run]] = {"made": _made, "recorded": lambda: h100("tp2pp2_1f1b_m8")}
# What is recorded has kernels of other times on every rank, and other groups besides.
BY_JOB = spread("job", TP2PP2, ["made"])


@BY_JOB
def test_tensor_parallel_pipelines_are_told_apart(job: str) -> None:
    found = looked_at(TP2PP2[job]())
    assert found.observed.global_ranks == (0, 2)
    assert any("left out: [1, 3]" in note for note in texts(found.notes, NoticeCode.PIPELINES_LEFT_OUT))
    assert [(c.rank, c.pipeline, c.pp, c.tp) for c in found.coordinates] == PLACES
    assert {(c.dp, c.ep, c.evidence, c.confidence) for c in found.coordinates} == {(0, None, "metadata", 1)}
    # The made job lists groups of one context parallel rank.
    assert {c.cp for c in found.coordinates} == {0 if job == "made" else None}


@BY_JOB
def test_without_descriptions_groups_are_known_by_when_they_are_used(job: str) -> None:
    """All-reduces inside every action are tensor parallel, those around the step's messages data parallel."""
    found = survey_run(TP2PP2[job]().overlay(NAMELESS), Account()).coordinates
    assert [(c.rank, c.pipeline, c.pp, c.tp) for c in found] == PLACES
    assert {c.dp for c in found} == {0}
    level2 = run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    account = Account()
    found = survey_run(level2.overlay(NAMELESS), account).coordinates
    assert [(c.rank, c.pipeline, c.pp, c.dp) for c in found] == PLACES
    assert {c.tp for c in found} == {0}
    assert {f.evidence for f in account.findings if (f.fact, f.subject) == ("coordinates", "dp")} == {"order"}


def test_coordinates_of_an_ascend_capture() -> None:
    """By its parallel_group_info: PP2 DP2 TP1; ranks 0 and 1 list no dp group, but a dp_cp one."""
    account = Account()
    level2 = run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    found = survey_run(level2, account).coordinates
    assert [(c.rank, c.pipeline, c.pp, c.dp) for c in found] == PLACES
    assert {(c.tp, c.evidence) for c in found} == {(0, "metadata")}
    (dp,) = (f for f in account.findings if (f.fact, f.subject) == ("coordinates", "dp"))
    assert dp.detail == "of ranks 0-1 from the group over the data and context parallel ranks"


@BY_JOB
@pytest.mark.parametrize("recorded", [(0,), (0, 3), (1, 2)])
def test_ranks_that_were_not_recorded_have_coordinates_too(recorded: tuple[int, ...], job: str) -> None:
    """From the groups of recorded ranks; rank 3, that no group of rank 0 lists, from the grid."""
    found = survey_run(_only(TP2PP2[job](), *recorded), Account()).coordinates
    assert [(c.rank, c.pp, c.tp) for c in found] == [(rank, pp, tp) for rank, _, pp, tp in PLACES]
    assert [c.rank for c in found if c.recorded] == list(recorded)
    assert {c.evidence for c in found if c.rank == 3} == ({"inferred"} if recorded == (0,) else {"metadata"})


def test_a_job_without_groups_and_messages_has_no_coordinates() -> None:
    account = Account()
    found = survey_run(run_of(data("torch", "astra-sim+astra-sim", "megatron-tp8")), account).coordinates
    assert {c[1:7] for c in found} == {(None,) * 6}
    assert {c.confidence for c in found} == {0}
    assert NoticeCode.COORDINATES_UNKNOWN in codes(account.notes)


def test_a_tensor_parallel_job_of_mindspore() -> None:
    """Ranks 0 and 1 all-reduce 11 times inside each of the 4 forwards of a step: that is no data parallelism."""
    folder = data("ascend", "mindspore-ai+mindinsight", "tests", "utils", "resource", "cluster_propose")
    found = survey_run(run_of(folder), Account()).coordinates
    assert [(c.rank, c.pipeline, c.pp, c.tp) for c in found] == PLACES


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("pp", "pp"), ("mesh_pp", "pp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("pp_new_stream", "pp"),
        ("tp", "tp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("mesh_tp", "tp"), ("dp", "dp"), ("mesh_dp_shard", "dp"),
        ("DATA_PARALLEL_GROUP", "dp"), ("cp", "cp"), ("CONTEXT_PARALLEL_GROUP", "cp"), ("exp", "ep"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("dp_cp", None), ("DATA_PARALLEL_GROUP_WITH_CP", None),
        ("default_pg", None), ("undefined", None), ("mp", None), ("embd", None), ("", None), ("tp_dp", None),
    ],
)  # fmt: skip
def test_what_descriptions_name(description: str, dimension: str | None) -> None:
    assert dimension_of(description) == dimension
    assert spans_context(description) == (description in {"dp_cp", "DATA_PARALLEL_GROUP_WITH_CP"})


def test_lists_that_were_cut_are_completed_from_other_ranks(tmp_path: Path) -> None:
    """c10d cuts lists to 30 ranks. Rank 39 has the list whole; of a group that nobody has whole, its users count."""
    orders = one_f_one_b(2, 2, 1)
    run = write_messages(tmp_path / "x.run", orders, timed(orders))
    cut, other = list(range(30)), list(range(40, 70))
    seen = run.overlay(
        {
            "groups": f"SELECT 0::INTEGER AS rank, '7' AS name, 'tp' AS description, {cut}::INTEGER[] AS ranks "
            f"UNION ALL SELECT 39::INTEGER, '7', 'tp', {list(range(40))}::INTEGER[]",
            "comms": f"SELECT * REPLACE ('8' AS \"group\", {other}::INTEGER[] AS group_ranks, "
            "(40 + 35 * rank)::INTEGER AS rank) FROM {recorded}",
        }
    )
    account = Account()
    groups = {g.name: g.ranks for g in read_groups(seen, account)}
    assert groups == {"7": tuple(range(40)), "8": (*range(40, 70), 75)}
    assert texts(account.notes, NoticeCode.GROUPS_MENDED) == [
        "2 lists of ranks of process groups were cut, and completed from other ranks"
    ]


def test_a_communicator_that_is_not_listed_has_the_ranks_that_use_it(tmp_path: Path) -> None:
    orders = one_f_one_b(3, 2, 1)
    run = write_messages(tmp_path / "x.run", orders, timed(orders))
    hashed = run.overlay({"comms": "SELECT * REPLACE ('3985310405473756128' AS \"group\") FROM {recorded}"})
    assert [(g.name, g.ranks) for g in read_groups(hashed)] == [("3985310405473756128", (0, 1, 2))]
    assert read_groups(run) == [], "a short name may be that of several groups"


# The pipeline of the other ranks, and of other two recorded ones, is the same by symmetry unless ranks are mixed up.
@spread(("recorded", "number", "copied"), [((0, 3), 0, {2: 3}), ((0, 3), 1, {1: 0}), ((1, 2), 0, {0: 1})], 1)
@BY_JOB
def test_missing_ranks_are_copied_only_when_asked(
    recorded: tuple[int, ...], number: int, copied: dict[int, int], job: str
) -> None:
    """Half of the ranks give the pipeline: both of its stages are those of ranks that were recorded."""
    run = _only(TP2PP2[job](), *recorded)
    with pytest.raises(MissingRank, match="1 of 2 pipeline ranks were recorded") as caught:
        reconstruct(run, pipeline=number)
    assert "copy_missing" in (caught.value.hint or "")
    found = reconstruct(run, pipeline=number, copy_missing=True)
    whole = {n: looked_at(TP2PP2[job](), pipeline=n) for n in (0, 1)}
    ((rank, source),) = copied.items()
    for stage, own in enumerate(found.observed.global_ranks):
        of = copied.get(own, own)
        measured = whole[of % 2].pipeline.stages[stage].costs
        assert {k: [c.duration_ns for c in v] for k, v in found.pipeline.stages[stage].costs.items()} == {
            k: [c.duration_ns for c in v] for k, v in measured.items()
        }
    assert len(found.observed.transfers) == 16
    assert {c.rank: c.copied_from for c in found.coordinates if c.copied_from is not None} == copied
    assert [c.rank for c in found.coordinates if c.recorded] == list(recorded)
    (note,) = texts(found.notes, NoticeCode.RANKS_COPIED)
    assert f"rank {rank} from {source}" in note
    assert "whether it is slower than its source is unknown" in note
    assert [(f.subject, f.confidence) for f in found.findings if f.evidence == "copied"] == [
        (f"rank {rank}", UNCHECKED)
    ]
    done = replay(found.pipeline, found.pipeline.observed, Scenario())
    assert measure(done.timeline).window_ns == pytest.approx(measure(found.observed).window_ns, rel=0.02)


# Ranks are copied only when asked by default (above).
@pytest.mark.thorough
def test_nothing_is_copied_where_nothing_is_missing_or_no_rank_holds_the_stage() -> None:
    run = h100("tp2pp2_1f1b_m8")
    assert reconstruct(run, copy_missing=True).observed == looked_at(run).observed
    with pytest.raises(MissingRank, match="rank 2 was not recorded, nor any other rank of stage 1"):
        reconstruct(_only(run, 0, 1), copy_missing=True)
    with pytest.raises(NoPipeline, match=r"there is no pipeline 2; the traces hold 0: \[0, 2\]; 1: \[1, 3\]"):
        reconstruct(run, pipeline=2)


@BY_JOB
def test_coordinates_need_no_pipeline(job: str) -> None:
    run = TP2PP2[job]()
    found = find_coordinates(run, [], read_groups(run), Account())
    assert [(c.rank, c.pp, c.tp) for c in found] == [(rank, pp, tp) for rank, _, pp, tp in PLACES]
    assert {c.pipeline for c in found} == {None}


@pytest.mark.parametrize("name", ["ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"])
def test_labels_tell_the_order(name: str) -> None:
    """gloo: rank r holds stages r and r + 4 of the interleaved schedule, r and 7 - r of the V-shaped one."""
    run = run_of(data("cpu-gloo-pp4", name))
    labelled = survey_run(run, Account()).coordinates
    assert [(c.rank, c.pp, c.evidence) for c in labelled] == [(rank, rank, "label") for rank in range(4)]
    hidden = survey_run(run, Account(), use_labels=False).coordinates
    assert [c.pp for c in hidden] == [0, 1, 2, 3]
    assert "label" not in {c.evidence for c in hidden}
