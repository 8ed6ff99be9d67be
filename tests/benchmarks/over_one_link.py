"""What replay takes over paths of one link, in a commit before and in this tree, in turns.

    PYTHONPATH=tests:. python tests/benchmarks/over_one_link.py BEFORE_REV [ROUNDS]

The commit is checked out into a temporary worktree and built there. Figures are CPU time, the least of all rounds, of
1F1B, p=16 m=128 with a link of their own between all neighbours, and with links that several pairs share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import process_time_ns
from typing import TYPE_CHECKING

import numpy as np
from helpers.synthetic import pipeline, places, scenario

from tracetool.model.schedule import PipelineShape
from tracetool.model.topology import Topology
from tracetool.replays import replay
from tracetool.replays.compiled import Compiled
from tracetool.replays.engine import run
from tracetool.replays.scenarios import replay_many
from tracetool.replays.sweeping import Durations
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from tracetool.network.link import Link
except ModuleNotFoundError:  # a commit before there were networks
    from tracetool.model.topology import Link  # type: ignore[attr-defined]

MS = 10**6


def workloads(p: int, m: int, what_ifs: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    order = build_schedule("1f1b", PipelineShape(p, m))
    measured = pipeline(p, m, 10 * MS, 20 * MS, payload_bytes=16 << 20, transfer_ns=MS // 10)
    one_each = places([1] * p, latency_ns=5 * MS, bandwidth_bytes_per_s=10**10)
    shared = Topology(tuple("ab" * (p // 2)), tuple(Link(a, b, 10**10, 5 * MS) for a, b in ("ab", "ba")))
    compiled = Compiled(order, "in-order", one_each)
    durations = np.full(compiled.classes, 10 * MS, np.int64)
    durations[0] = 0
    per_task = durations[compiled.class_of]
    varying = np.arange(1, compiled.classes, dtype=np.int32)
    values = np.random.default_rng(1).integers(1, 10 * MS, (len(varying), what_ifs))
    over = [
        scenario(places([1] * p, latency_ns=n * MS, bandwidth_bytes_per_s=10**10), "in-order") for n in range(what_ifs)
    ]
    return {
        "build and compile": lambda: Compiled(order, "in-order", one_each).static_plan,
        "one replay by the sweep": lambda: compiled.times(durations),
        "event loop": lambda: run(compiled.graph, per_task, compiled.link_of, "1f1b"),
        f"{what_ifs} scenarios by the sweep": lambda: compiled.ends(Durations(durations, varying, values), varying),
        "replay, a link for each pair": lambda: replay(measured, order, scenario(one_each, "in-order")),
        "replay, links shared": lambda: replay(measured, order, scenario(shared, "in-order")),
        f"replay over {what_ifs} links": lambda: replay_many(measured, order, over),
    }


def cpu_ns(p: int, m: int, what_ifs: int, repeats: int) -> dict[str, int]:
    """The least CPU time of each."""
    least = {}
    for name, work in workloads(p, m, what_ifs).items():
        times = []
        for _ in range(repeats):
            begun = process_time_ns()
            work()
            times.append(process_time_ns() - begun)
        least[name] = min(times)
    return least


def measured_in(root: str, engine: str) -> dict[str, int]:
    """The same in a process of its own, with the product of another tree."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path[:2]]), "TRACETOOL_ENGINE": engine}
    done = subprocess.run([sys.executable, __file__], env=variables, capture_output=True, text=True, check=True)
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def beside(commit: str, rounds: int) -> None:
    """Print a line per engine and workload."""
    from same_answers import ROOT, build, checkout

    with checkout(commit) as before:
        for tree in (before, ROOT):
            build(tree)
        for engine in ("compiled", "plain"):
            found: dict[str, list[dict[str, int]]] = {str(before): [], str(ROOT): []}
            for number in range(rounds):
                for root in sorted(found, reverse=number % 2 == 0):
                    found[root].append(measured_in(root, engine))
            for name in found[str(ROOT)][0]:
                old, new = (min(each[name] for each in of_tree) / MS for of_tree in found.values())
                print(f"{engine:9} {name:32} before {old:9.3f} ms  now {new:9.3f} ms  {new / old:6.3f}", flush=True)  # noqa: T201 - a tool of its own


if __name__ == "__main__":
    if len(sys.argv) > 1:
        beside(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    else:
        slow = os.environ.get("TRACETOOL_ENGINE") == "plain"
        print(json.dumps(cpu_ns(16, 128, 4 if slow else 64, 5 if slow else 15)))  # noqa: T201 - read by the process that began this one
