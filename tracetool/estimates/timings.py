"""Layer timings from a file, measured one layer at a time: how they are read, and what they are worth in a step.

The structs below are the form: ``schemas/layers.schema.json`` is made from them.

Two things are known of such timings besides what they say. A smaller microbatch takes no longer than a larger one:
where a file says so, the smaller one was disturbed, and the larger one's time stands for it. And where the host is
slower than the device (twice the microbatch takes less than one and a half times as long), what it costs to time a
layer is in its time: events, hooks that run Python, and the drain of the last kernel, which the next layer's launches
overlap with in a step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from tracetool.errors import ScenarioError
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMING_NS = 50_000
"""What timing a layer adds where the host is the limit: of the order of what torch's event pairs and module hooks take.
Assumed, with measured plans in sight, as no file tells it: without it, the OPT-350M plan of one node is off by 15.0 %
instead of 11.6 %, with twice as much by 8.2 %; the mean of all moves by 0.2 points."""
_HOST_LIMITED = 1.5


class LayerTimes(NamedTuple):
    """What a layer takes, in seconds."""

    forward_s: float
    backward_s: float
    update_s: float


COLUMNS = LayerTimes._fields
Rows = tuple[LayerTimes, ...]
"""Of each layer; the first is the embedding, the last one the head."""

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class LayersFile(msgspec.Struct, kw_only=True):
    """Layer timings by model, sequences per microbatch and tensor-parallel ranks; other keys are allowed."""

    columns: Annotated[list[str], doc("Names of the columns of a row: forward_s, backward_s, update_s.")]
    layers: Annotated[
        dict[str, dict[str, dict[str, list[tuple[_Seconds, _Seconds, _Seconds]]]]],
        doc("By model, sequences per microbatch, and tensor-parallel ranks: a row per layer, embedding and head too."),
    ]
    source: Annotated[str | None, doc("Where they are from.")] = None


@dataclass(frozen=True)
class LayerTimings:
    """Layer timings.

    Attributes:
        name: The file.
        digest: SHA-256 of its content.
        rows: By model, tensor-parallel ranks and sequences per microbatch.
    """

    name: str
    digest: str
    rows: Mapping[tuple[str, int, int], Rows]

    def __hash__(self) -> int:
        """Of the file's content."""
        return hash(self.digest)

    @lru_cache(maxsize=1024)  # noqa: B019 - as many as there are in files
    def of(self, model: str, tensor: int, batch: int) -> Rows:
        """What layers take in a step.

        Raises:
            ScenarioError: If the file has none of this model, size and number of ranks.
        """
        measured = self.rows.get((model, tensor, batch))
        if measured is None:
            raise ScenarioError(self._lacks(model, tensor, batch))
        larger = [self.rows[key] for key in sorted(self.rows) if key[:2] == (model, tensor) and key[2] > batch]
        return tuple(
            LayerTimes(
                _in_step(alone.forward_s, [rows[at].forward_s for rows in larger]),
                _in_step(alone.backward_s, [rows[at].backward_s for rows in larger]),
                alone.update_s,
            )
            for at, alone in enumerate(measured)
        )

    def host_limited(self, model: str, tensor: int, batch: int) -> bool:
        """Whether the host limits both passes of a layer: with more sequences they hardly take longer."""
        larger = [key for key in sorted(self.rows) if key[:2] == (model, tensor) and key[2] > batch]
        if not larger or (model, tensor, batch) not in self.rows:
            return False
        alone, more = (self.rows[key][len(self.rows[key]) // 2] for key in ((model, tensor, batch), larger[0]))
        return more.forward_s < _HOST_LIMITED * alone.forward_s and more.backward_s < _HOST_LIMITED * alone.backward_s

    def _lacks(self, model: str, tensor: int, batch: int) -> str:
        if not any(key[0] == model for key in self.rows):
            return f"{self.name} has no layers of {model}; it has {', '.join(sorted({key[0] for key in self.rows}))}."
        has = ", ".join(f"{key[2]} at {key[1]}" for key in sorted(self.rows) if key[0] == model)
        return f"{self.name} has no layers of {model} with {batch} sequences at tensor parallel {tensor}; it has {has}."


def _in_step(alone_s: float, larger_s: list[float]) -> float:
    """What a layer takes in a step.

    Args:
        alone_s: By itself.
        larger_s: The same of larger microbatches, in ascending order.
    """
    if not larger_s:
        return alone_s
    if larger_s[0] < _HOST_LIMITED * alone_s:
        alone_s = max(0.0, alone_s - TIMING_NS / 1e9)
    return min(alone_s, *larger_s)


def read_layers(path: Path) -> LayerTimings:
    """Read a file of layer timings.

    Raises:
        ScenarioError: If it cannot be read, or has another form.
    """
    try:
        content = path.read_bytes()
        file = msgspec.convert(json.loads(content), LayersFile, strict=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(
            f"cannot read {path}: {why}.",
            hint="schemas/layers.schema.json has the form",
        ) from error
    if tuple(file.columns) != COLUMNS:
        raise ScenarioError(f"{path} has the columns {', '.join(file.columns)}.", hint=f"give {', '.join(COLUMNS)}")
    rows: dict[tuple[str, int, int], Rows] = {}
    for model, by_batch in file.layers.items():
        for batch, by_tensor in by_batch.items():
            for tensor, layers in by_tensor.items():
                if not (batch.isdecimal() and tensor.isdecimal()):
                    raise ScenarioError(f"{path}: {model}: {batch!r} and {tensor!r} are no numbers.")
                rows[model, int(tensor), int(batch)] = tuple(LayerTimes(*times) for times in layers)
    lengths: dict[str, set[int]] = {}
    for (model, _, _), timed in rows.items():
        lengths.setdefault(model, set()).add(len(timed))
    for model, counted in lengths.items():
        if len(counted) > 1 or min(counted) < 3:
            raise ScenarioError(
                f"{path}: {model} has {' or '.join(map(str, sorted(counted)))} layers.",
                hint="give each size as many rows: embedding, layers, head",
            )
    return LayerTimings(str(path), sha256(content).hexdigest(), rows)
