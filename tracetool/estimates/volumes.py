"""What a job from shapes hands from rank to rank in a step: the bytes of what its costs charge time for.

Per microbatch: tensor parallelism moves the hidden state of a layer in two all-gathers and two reduce-scatters forward,
as much backward, and the forward again where all of it is recomputed (all-reduces without sequence parallelism;
arXiv 2205.05198, section 4.2.2). Context parallelism moves keys and values round its ring, forward, twice backward, and
where attention is recomputed. Experts have two all-to-alls in either direction. Neighbouring stages exchange the hidden
state, each tensor-parallel rank its share. Once per step data-parallel ranks reduce gradients, and the first and last
stage those of an embedding that both hold; the time of the latter is not estimated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.estimates.layer_costs import BYTES
from tracetool.estimates.memory import GRADIENT_BYTES, WEIGHT_BYTES, held
from tracetool.estimates.training import fitting
from tracetool.network.traffic import EMBEDDING, MESSAGES, Volume, of_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.estimates.training import Training
    from tracetool.estimates.transformer import Transformer
    from tracetool.network.file import NetworkChoice
    from tracetool.network.placement import Dimension, Placement
    from tracetool.network.tiers import Network
    from tracetool.network.traffic import Traffic


def job_traffic(model: Transformer, training: Training, choice: NetworkChoice) -> tuple[Traffic, Network, Placement]:
    """Who sends how many bytes to whom in a step, the tiers that the job reaches over, and where its ranks are.

    Args:
        model: The model.
        training: How it is trained.
        choice: The network.

    Raises:
        BadTopology: If the job does not fit on the network.
    """
    used = fitting(choice, training.degrees)
    placement = used.place(training.degrees)
    return of_job(placement, volumes(model, training)), used.network, placement


def volumes(model: Transformer, training: Training) -> Mapping[str, Sequence[Volume]]:
    """What the groups of a job move in a step, by what makes the bytes."""
    tokens = training.batch * training.sequence // training.context
    hidden = BYTES * tokens * model.hidden
    rounds = training.microbatches * model.layers // training.stages  # of a layer, on each pipeline rank
    is_full = training.recompute == "full"
    by_group: dict[str, list[Volume]] = defaultdict(list)
    times = 2 * rounds * (3 if is_full else 2)
    kinds = ("allgather", "reducescatter") if training.sequence_parallel else ("allreduce",)
    by_group["tp"] += [Volume(kind, times * hidden) for kind in kinds]
    is_anew = is_full or (training.recompute == "selective" and not model.fused_attention)
    around = BYTES * 2 * tokens * model.kv_width // training.tensor * training.context
    by_group["cp"].append(Volume("allgather", rounds * (4 if is_anew else 3) * around))
    if model.experts is not None and training.expert > 1:
        routed = BYTES * tokens * model.experts.top * model.hidden // training.tensor
        by_group["ep"].append(Volume("alltoall", times * routed))
    share = hidden // training.tensor * training.microbatches
    hops = (tuple(map(training.shape.rank_of, pair)) for pair in pairwise(range(training.shape.stages)))
    by_group["pp"] += [
        Volume(MESSAGES, share * often, members=hop) for hop, often in Counter(hops).items() if len({*hop}) > 1
    ]
    for stage in range(training.stages):
        by_group["dp"] += _reduced(model, training, stage)
    if model.tied and training.stages > 1:
        entries = model.vocabulary * model.hidden // training.tensor
        by_group[EMBEDDING].append(
            Volume("allreduce", GRADIENT_BYTES * entries, ("pp",), members=(0, training.stages - 1))
        )
    return by_group


def _reduced(model: Transformer, training: Training, rank: int) -> list[Volume]:
    """Gradients of a pipeline rank, and its weights where data-parallel ranks share the optimizer."""
    parts = [held(model, training, stage) for stage in range(rank, training.stages * training.chunks, training.stages)]
    over: tuple[tuple[int, tuple[Dimension, ...]], ...] = (
        (sum(part.shared for part in parts), ("cp", "ep", "dp")),
        (sum(part.experts for part in parts), ("cp", "dp")),
    )
    moved: list[Volume] = []
    for parameters, along in over:
        if not training.sharded_optimizer:
            moved.append(Volume("allreduce", GRADIENT_BYTES * parameters, along, rank))
            continue
        moved.append(Volume("reducescatter", GRADIENT_BYTES * parameters, along, rank))
        moved.append(Volume("allgather", WEIGHT_BYTES * parameters, along, rank))
    return moved
