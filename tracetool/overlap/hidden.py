"""What hides products and collectives from pairing: CUDA graphs, compiled kernels, kernels that are fused already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.store.run import Run

_KERNELS = {
    False: "SELECT rank, name, correlation FROM events WHERE category = 'kernel'",
    True: "SELECT e.rank, e.name, e.correlation FROM kernel_actions a JOIN events e USING (rank, event) "
    "WHERE e.category = 'kernel' AND a.kind IN ('F', 'B', 'I', 'W')",
}
_HIDDEN = """
WITH kernels AS ({kernels}),
graphs AS (
    SELECT DISTINCT rank, correlation FROM events WHERE category = 'launch' AND contains(name, 'GraphLaunch')
)
SELECT
    k.name, count(*), count(*) FILTER (g.correlation IS NOT NULL), starts_with(k.name, 'triton_'),
    regexp_matches(lower(k.name), 'mat_?mul.*(all_?reduce|reduce_?scatter|all_?gather)')
        OR regexp_matches(lower(k.name), '(all_?reduce|reduce_?scatter|all_?gather).*mat_?mul')
FROM kernels k LEFT JOIN graphs g ON g.rank = k.rank AND g.correlation = k.correlation
GROUP BY k.name ORDER BY k.name
"""


@dataclass(frozen=True, slots=True)
class HiddenWork:
    """Kernels that tell no product by themselves.

    Attributes:
        graphs: Launched with a CUDA graph, which names no operator.
        compiled: Made by a compiler (triton_...), whatever they hold.
        fused: Product and communication in one, by name.
    """

    graphs: int
    compiled: int
    fused: Mapping[str, int]

    def __str__(self) -> str:
        """Which there are, in words; empty without any."""
        parts = []
        if self.graphs:
            parts.append(f"{format_count(self.graphs, 'kernel')} came from CUDA graphs, which name no operator")
        if self.compiled:
            parts.append(f"{format_count(self.compiled, 'compiled kernel')} (triton_...) may hold any")
        if self.fused:
            names = ", ".join(f"{name} ({count:,})" for name, count in self.fused.items())
            parts.append(f"already one kernel with their communication: {names}")
        return "; ".join(parts)


def hidden_work(run: Run, *, of_actions: bool) -> HiddenWork:
    """What hides products and collectives in a Run.

    Args:
        run: The Run.
        of_actions: Whether only the actions of the chosen step are asked about.
    """
    rows = run.rows(_HIDDEN.replace("{kernels}", _KERNELS[of_actions]))
    return HiddenWork(
        graphs=sum(graphs for _, _, graphs, *_ in rows),
        compiled=sum(count for _, count, _, is_compiled, _ in rows if is_compiled),
        fused={name: count for name, count, _, _, is_fused in rows if is_fused},
    )
