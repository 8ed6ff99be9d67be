"""GeoPipe's setting, rebuilt and swept: everything that its report says."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tracetool.errors import Option
from tracetool.estimates.stages import analytical_pipeline, transports_of
from tracetool.estimates.training import Training
from tracetool.model.action import ActionKind
from tracetool.model.notice import Silent
from tracetool.studies.geopipe import STAGES, TENSOR, THROUGHPUT, Assumption
from tracetool.studies.geopipe.findings import FigureOrigin, both_findings, bubble_findings, iteration_findings
from tracetool.studies.geopipe.optimum import Need, Optimum, find_optimum, needs
from tracetool.studies.geopipe.sweep import PaperGrid, PaperSweep, Setting, cycle_ns, payload_bytes, sweep
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.transformer import Recompute, Transformer
    from tracetool.model.notice import Progress

_BATCHES = (1, 2, 4, 8)
_SHARING = (1, 8)
_DISTANCES_KM = (80, 400, 1500)
_MICROBATCHES = 32
"""What tables of one configuration take."""


@dataclass(frozen=True, slots=True)
class PaperChoice:
    """What the user chose of what is not published.

    Attributes:
        models: By name.
        device: The accelerator.
        hbm_bytes: Memory limit per device.
        batch: Sequences per microbatch.
        sequence: Tokens per sequence.
        recompute: What the backward computes anew.
        equal_stages: Whether the head is left out, so that all stages are equal.
        grid: What is swept.
    """

    models: Mapping[str, Transformer]
    device: Accelerator
    hbm_bytes: int
    batch: int
    sequence: int
    recompute: Recompute
    equal_stages: bool
    grid: PaperGrid

    @property
    def middle_ratio(self) -> float:
        """The efficiency of tables of one configuration."""
        return self.grid.efficiency_ratios[len(self.grid.efficiency_ratios) // 2]

    def setting(self, model: Transformer) -> Setting:
        """A model on the machines."""
        training = Training(
            tensor=TENSOR,
            stages=STAGES,
            microbatches=_MICROBATCHES,
            batch=self.batch,
            sequence=self.sequence,
            efficiency_ratio=self.middle_ratio,
            recompute=self.recompute,
            has_head=not self.equal_stages,
        )
        return Setting(model, self.device, training, self.hbm_bytes)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second and device of the model, where others have published a measurement.

    Attributes:
        published: The measurement, with its own schedule, and communication beside compute.
        predicted: At each efficiency of the grid: slowest stage, without fill and drain.
    """

    published: int
    predicted: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelStudy:
    """One model.

    Attributes:
        name: Its name on the command line.
        swept: All replays.
        throughput: Check of the costs; None if nothing comparable is published.
        bubbles: Where the published reduction of bubbles arises.
        iterations: Where that of the iteration arises.
        both: Where both do at once.
        optima: How much bandwidth is enough.
        needs: Memory by micro-batch size.
        cycles_ns: f + B of a middle stage and of the slowest one, at the middle efficiency.
    """

    name: str
    swept: PaperSweep
    throughput: Throughput | None
    bubbles: tuple[FigureOrigin, ...]
    iterations: tuple[FigureOrigin, ...]
    both: tuple[FigureOrigin, ...]
    optima: tuple[Optimum, ...]
    needs: tuple[Need, ...]
    cycles_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Study:
    """The whole report.

    Attributes:
        choice: What was assumed and swept.
        assumptions: The same in words.
        models: One study per model.
        split: Stages per region of the tables of one configuration.
        microbatches: Microbatches of those.
    """

    choice: PaperChoice
    assumptions: tuple[Assumption, ...]
    models: tuple[ModelStudy, ...]
    split: tuple[int, ...]
    microbatches: int


def study_geopipe(choice: PaperChoice, progress: Progress | None = None) -> Study:
    """Sweep the setting and find where the published figures arise.

    Args:
        choice: What is assumed and swept.
        progress: Told how many rows of the grid and best bandwidths there are to find, and how many are done.

    Raises:
        ScenarioError: If the model cannot be cut so.
    """
    split = choice.grid.splits[0]
    progress = progress or Silent()
    rows = prod(choice.grid.shape[:3])
    progress.start(len(choice.models) * (rows + len(_SHARING) * len(_DISTANCES_KM)))
    studies = [_study(name, choice, choice.setting(model), split, progress) for name, model in choice.models.items()]
    return Study(choice, _assumptions(choice), tuple(studies), split, _MICROBATCHES)


def _study(name: str, choice: PaperChoice, setting: Setting, split: tuple[int, ...], progress: Progress) -> ModelStudy:
    swept = sweep(setting, choice.grid, progress)
    pipeline = setting.pipeline(choice.middle_ratio, _MICROBATCHES)
    optima: list[Optimum] = []
    for sharing, distance in product(_SHARING, _DISTANCES_KM) if swept.feasible.all() else ():
        optima.append(find_optimum(setting, choice.middle_ratio, _MICROBATCHES, split, sharing, distance))
        progress.advance(1)
    middle = pipeline.stages[STAGES // 2]
    return ModelStudy(
        name=name,
        swept=swept,
        throughput=_throughput(name, choice),
        bubbles=bubble_findings(swept),
        iterations=iteration_findings(swept),
        both=both_findings(swept),
        optima=tuple(optima),
        needs=needs(setting, _MICROBATCHES, split, _BATCHES),
        cycles_ns=(sum(costs[0].duration_ns for costs in middle.costs.values()), cycle_ns(pipeline)),
    )


def _throughput(name: str, choice: PaperChoice) -> Throughput | None:
    known = THROUGHPUT.get(name)
    if known is None or not choice.device.name.startswith("Ascend 910B"):
        return None
    _nodes, stages, published = known
    predicted = []
    for ratio in choice.grid.efficiency_ratios:
        how = Training(TENSOR, stages, stages, batch=1, sequence=4096, efficiency_ratio=ratio)
        cycle = cycle_ns(analytical_pipeline(choice.models[name], choice.device, how))
        predicted.append(4096 / (cycle / 1e9) / (TENSOR * stages))
    return Throughput(published, tuple(predicted))


def _assumptions(choice: PaperChoice) -> tuple[Assumption, ...]:
    device, grid = choice.device, choice.grid
    settings = [choice.setting(model) for model in choice.models.values()]
    pipelines = [setting.pipeline(choice.middle_ratio, _MICROBATCHES) for setting in settings]
    times = [
        f"{setting.model.name} f {format_duration(pipeline.stages[1].median_ns(ActionKind.FORWARD) or 0)}, "
        f"B {format_duration(pipeline.stages[1].median_ns(ActionKind.BACKWARD) or 0)}"
        for setting, pipeline in zip(settings, pipelines, strict=True)
    ]
    exposed = []
    for setting, pipeline in zip(settings, pipelines, strict=True):
        (transport,) = transports_of(device, setting.training, None)
        one = transport.collective_ns("allgather", "tp", payload_bytes(pipeline))
        exposed.append(format_duration(8 * setting.model.layers // STAGES * one))
    payloads = [f"{payload_bytes(pipeline) / 1e6:.1f} MB" for pipeline in pipelines]
    efficiencies = ", ".join(f"{100 * ratio:g} %" for ratio in grid.efficiency_ratios)
    return (
        Assumption(
            "peak of the accelerator",
            f"{device.peak_flops / 1e12:.1f} TFLOPS (bf16), {device.name}",
            "uncertain: public figures for 910B go from 280 to 376" if "910B" in device.name else "as given",
        ),
        Assumption(
            "efficiency of matrix products",
            f"{efficiencies} of the peak",
            f"swept; at {100 * choice.middle_ratio:g} % a middle stage takes: {'; '.join(times)}",
        ),
        Assumption(
            "tensor-parallel collectives",
            f"{device.tensor_bandwidth_bytes_per_s / 1e9:.0f} GB/s per device and direction, not hidden",
            f"uncertain; {' and '.join(exposed)} of f + B",
        ),
        Assumption(
            "microbatch",
            f"{choice.batch} x {choice.sequence} tokens, recomputation {choice.recompute}",
            "the paper tunes both, its values are not published; 4096 is the models' context",
        ),
        Assumption(
            "message between regions",
            f"{' and '.join(payloads)} per microbatch and direction",
            f"the hidden state once; {'/'.join(map(str, grid.sharing))} of them at once are swept: other pipelines on "
            "the link, or tensor ranks that each send all of it (8)",
        ),
        Assumption("latency", "5 us per km, one way", "light in fibre; no switches, no retransmission"),
        Assumption("bandwidth", f"{_listed(grid.bandwidths_gbit_per_s)} Gbit/s per direction", "the published range"),
        Assumption("distances", f"{_listed(grid.distances_km)} km", "swept, equal between neighbouring regions"),
        Assumption("microbatches per step", _listed(grid.microbatches), "swept"),
        Assumption("stages per region", ", ".join("/".join(map(str, s)) for s in grid.splits), "swept"),
        Assumption(
            "head",
            "left out: all stages equal" if choice.equal_stages else "on the last stage, which is the slowest for it",
            f"its surplus hides as much delay per microbatch upstream; {Option.EQUAL_STAGES.on} leaves it out",
        ),
        Assumption(
            "1F1B",
            "as Megatron issues it (blocking batches), and with ideal non-blocking transfers",
            "which one the paper compares with is not published",
        ),
        Assumption(
            "extra forwards",
            "equally many per boundary, those with the shortest window within the HBM limit",
            "1F1B+N is this tool's reading of the paper's more forward passes; micro-batch size and sequence length "
            "are not tuned along",
        ),
        Assumption("HBM limit", f"{choice.hbm_bytes / 1e9:g} GB per device", "nothing set aside for the runtime"),
        Assumption(
            "left out",
            "optimizer, messages inside a region, slowdown of compute beside communication",
            "the optimizer is under 1 % of a step at 1.6 TB/s of HBM; the others are unknown",
        ),
    )


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
