"""A recording whose runtime has a process group for each pair of ranks and direction.

Made of one in order: each send and receive gets the group, and its kernel the stream, that it would have there.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import SAMPLES, run_of
from helpers.thorough import spread
from msgspec.json import decode, encode

from tracetool.causes import idle_intervals
from tracetool.causes.cause import Cause
from tracetool.model.topology import Topology
from tracetool.reconstruction import reconstruct
from tracetool.replays import replay

if TYPE_CHECKING:
    from pathlib import Path


def _with_a_group_per_edge(document: dict[str, Any]) -> None:
    events, rank = document["traceEvents"], document["distributedInfo"]["rank"]
    posts = [e for e in events if e.get("args", {}).get("Collective name") in {"send", "recv"}]
    posts = [e for e in posts if e["name"] == "record_param_comms"]
    kernels = [e for e in events if e.get("cat") == "kernel" and "SendRecv" in e["name"]]
    assert len(posts) == len(kernels) > 0
    groups = document["distributedInfo"]["pg_config"]
    by_time = (sorted(of_kind, key=lambda e: float(e["ts"])) for of_kind in (posts, kernels))
    for post, kernel in zip(*by_time, strict=True):
        told = post["args"]
        peer = told["Dst Rank"] if told["Collective name"] == "send" else told["Src Rank"]
        low, is_forward = min(rank, peer), (told["Collective name"] == "send") == (rank < peer)
        name, ranks = f"{9 + 2 * low + is_forward}", [low, low + 1]
        description = f"pp_{low}_{low + 1}_{'fwd' if is_forward else 'bwd'}"
        if all(group["pg_name"] != name for group in groups):
            groups.append({"pg_name": name, "pg_desc": description, "pg_size": 2, "ranks": ranks})
        told |= {"Process Group Name": name, "Process Group Description": description, "Group size": 2}
        told |= {"Process Group Ranks": str(ranks), "Global rank start": low, "Rank": peer - low}
        kernel["tid"] = kernel["args"]["stream"] = 100 + int(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("edges")
    for path in sorted((SAMPLES / "h100-1f1b-annotated").glob("*.json.gz")):
        document = decode(gzip.decompress(path.read_bytes()))
        _with_a_group_per_edge(document)
        (made / path.name.removesuffix(".gz")).write_bytes(encode(document))
    return made


# With labels less is to be told from messages.
@spread("use_labels", [True, False], [False])
def test_it_is_replayed_per_edge(folder: Path, *, use_labels: bool) -> None:
    """The step is that of the recording, as the messages are: only who waits for whom is another question."""
    found = reconstruct(run_of(folder), use_labels=use_labels)
    assert found.pipeline.p2p == "per-edge"
    assert len(found.observed.transfers) == 48
    done = replay(found.pipeline, found.pipeline.observed)
    assert done.p2p == "per-edge"
    window = max(op.end_ns for op in found.observed.computes())
    assert max(op.end_ns for op in done.timeline.computes()) == pytest.approx(window, rel=0.005)
    idles = idle_intervals(found.observed, Topology(), blocking=False, by_edge=True)
    channel_ns = sum(idle.duration_ns for idle in idles if idle.cause is Cause.CHANNEL)
    assert channel_ns < 0.1 * sum(idle.duration_ns for idle in idles)
