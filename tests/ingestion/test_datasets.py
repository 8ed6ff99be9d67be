"""All shared datasets ingest, with the recorded counts.

Kineto traces are held to an independent parse file by file (``tests/readers/test_golden.py``). Of the others the
counts were checked once as the comments say.
"""

from __future__ import annotations

from typing import NamedTuple

from helpers.recorded import data, run_of
from helpers.thorough import spread


class Expected(NamedTuple):
    """What a dataset holds."""

    events: int
    kernels: int
    comms: int
    ranks: int
    steps: int
    span_ns: int
    vendor_figures: int = 0


MSINSIGHT = "ascend/Ascend+msinsight"
MINDINSIGHT = "ascend/mindspore-ai+mindinsight/tests/utils/resource"
STRAGGLERS = "torch/ByteDance-Seed+StragglerAnalysis"
H100 = "h100-pp4/traces"

DATASETS = {
    # 187 of 191 tasks per rank are kernels, 4 communication (csv module; SQL on the databases).
    f"{MSINSIGHT}/test/data/pytorch/text/level1": Expected(3509, 374, 8, 2, 1, 158_807_830),
    f"{MSINSIGHT}/test/data/pytorch/db/level1": Expected(3561, 374, 8, 2, 1, 154_645_420),
    # kernel_details.csv of ranks 0 and 2: 2,463 and 2,587 records, 15 and 23 of them communication (csv module).
    f"{MSINSIGHT}/test/st/level2": Expected(5012, 5012, 80, 4, 1, 810_251_160),
    f"{MSINSIGHT}/server": Expected(0, 0, 0, 0, 0, 0, 528),
    "ascend/Ascend+msprof-analyze": Expected(0, 0, 0, 0, 0, 0, 168),
    # 4 receives and 4 sends per rank and step, the rest collectives (the data's README; csv module).
    f"{MINDINSIGHT}/cluster_propose": Expected(0, 0, 4460, 4, 5, 0, 120),
    # 1,390 kernels among 4,900 tasks (json module and Decimal).
    f"{MINDINSIGHT}/profiler/PROF_000001_20230818142704322_COJGGGCANRMICFBC": Expected(
        1404, 1390, 10, 1, 10, 358_391_800
    ),
    # The table's optypes, counted by pyarrow: 2,304 computes; the timeline is drawn from the same operations.
    STRAGGLERS: Expected(2304, 2304, 4224, 8, 32, 70_813_385_724),
    f"{STRAGGLERS}/timeline-ST.json.gz": Expected(2304, 2304, 4224, 8, 32, 77_678_351_163),
    "torch/astra-sim+astra-sim/megatron-tp8": Expected(82_418, 5520, 672, 8, 1, 651_959_000),
    "torch/facebookresearch+param/et_replay/tests/inputs": Expected(19_781, 2104, 64, 8, 1, 20_866_000),
    "cpu-gloo-pp4/ScheduleInterleaved1F1B": Expected(27_502, 0, 448, 4, 2, 757_232_453),
    "cpu-gloo-pp4/ScheduleZBVZeroBubble": Expected(30_910, 0, 384, 4, 2, 1_169_385_228),
    f"{H100}/1f1b_m8": Expected(121_668, 12_080, 208, 4, 2, 528_908_603),
    f"{H100}/1f1b_m8_mem": Expected(121_527, 12_080, 208, 4, 2, 544_368_185),
    f"{H100}/gpipe_m8": Expected(121_668, 12_152, 208, 4, 2, 524_213_591),
    f"{H100}/interleaved_m8": Expected(132_419, 12_408, 464, 4, 2, 529_857_545),
    f"{H100}/rt1f1b_m8": Expected(124_827, 12_152, 208, 4, 2, 535_175_010),
    f"{H100}/tp2pp2_1f1b_m8": Expected(282_467, 25_688, 2192, 4, 2, 764_684_628),
    f"{H100}/zbh1_m8": Expected(129_811, 13_528, 208, 4, 2, 499_168_562),
}

DEFAULT = [
    f"{MSINSIGHT}/test/data/pytorch/text/level1", f"{MSINSIGHT}/test/data/pytorch/db/level1", f"{MSINSIGHT}/server",
    f"{MINDINSIGHT}/cluster_propose", "cpu-gloo-pp4/ScheduleZBVZeroBubble", f"{H100}/1f1b_m8",
]  # fmt: skip


# One of each format and machine; the others have other events, of which one that only they hold is lost in them alone.
@spread("name", DATASETS, DEFAULT)
def test_a_dataset_holds_what_was_recorded(name: str) -> None:
    run = run_of(data(*name.split("/")))
    ((events, kernels, span),) = run.rows(
        "SELECT count(*), count(*) FILTER (category = 'kernel'), "
        "coalesce(max(start_ns + duration_ns) - min(start_ns), 0) FROM events"
    )
    ((comms,), (ranks,), (steps,), (figures,)) = (
        run.rows(f"SELECT count({what}) FROM {table}")[0]
        for table, what in (("comms", "*"), ("ranks", "*"), ("steps", "DISTINCT step"), ("vendor_figures", "*"))
    )
    assert Expected(events, kernels, comms, ranks, steps, span, figures) == DATASETS[name]
    assert run.rows("SELECT * FROM problems") == []
    assert run.rows("SELECT DISTINCT status FROM sources WHERE status = 'failed'") == []
