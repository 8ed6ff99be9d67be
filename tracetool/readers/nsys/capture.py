"""What an export of Nsight Systems says about itself: its processes, ranks, devices, clock and communicators.

Such files hold whole environments, command lines and the program's output. Of those only the few variables that name
a rank are looked at, and none is kept: not as text, not in an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from tracetool.readers import ABSOLUTE_NS, Source
from tracetool.readers.cann.db import known, whole
from tracetool.readers.nsys.forms import opened
from tracetool.readers.nsys.nvtx import NO_DOMAINS, EventType, Payload, Payloads, ProcessDomains
from tracetool.readers.nsys.stored import TEXTS, Texts, process_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tracetool.readers.nsys.stored import Stored

KERNELS, COPIES, FILLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS, GRAPHS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NVTX, MEMORY_USAGE, DIAGNOSTICS = "NVTX_EVENTS", "CUDA_GPU_MEMORY_USAGE_EVENTS", "DIAGNOSTIC_EVENT"
_TIMED = (KERNELS, CALLS, NVTX, COPIES, FILLS, GRAPHS)
_METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_OWN = frozenset((*_TIMED, *_METADATA, "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"))

# Of the environment of the launched process; without a prefix those of torchrun. Within an allocation of Slurm that
# mpirun starts ranks in, all of them have Slurm's number of the shell.
_SIZE_OF = {
    "RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}  # fmt: skip
_VARIABLE = re.compile(rf'^({"|".join((*_SIZE_OF, *_SIZE_OF.values()))})="?(\d{{1,9}})"?$')
_LAUNCHER = (
    r"torchrun|mpirun|mpiexec|torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|"
    r"deepspeed\.launcher\.(?:runner|launch)"
)
_LAUNCHES = re.compile(rf"^(?:{_LAUNCHER}|deepspeed|srun|accelerate|horovodrun)$")
# Behind an interpreter or a wrapper; the other names are those of backends too.
_LAUNCHES_AS_ARGUMENT = re.compile(rf"^(?:{_LAUNCHER})$")
_RANK_OF_MARK = re.compile(r"^iter_(\d{1,9})_\d{1,9}$")
_RANK_OF_THREAD = re.compile(r"^MPI Rank (\d{1,9})$")
_INIT = re.compile(r"^ncclComm(InitRank|Split)")
_NAMING = frozenset((EventType.THREAD, EventType.CREATED))
_MOST_MEMBERS = 1 << 20
_MOST_JOINED = 1 << 10
_MOST_PROCESSES = 4096
_MOST_DEVICES = 1 << 20


class Joined(NamedTuple):
    """That a process joined a communicator.

    Attributes:
        communicator: Its id as unsigned decimal text; empty before NCCL 2.25, whose records name none.
        size: Ranks in it; 0 if only the place is known, as NCCL's advanced trace tells it.
        place: The process' rank within it.
    """

    communicator: str
    size: int
    place: int


class Communicator(NamedTuple):
    """Global ranks of a communicator by place; None where nothing tells one."""

    name: str
    ranks: tuple[int | None, ...]


@dataclass(slots=True)
class GpuProcess:
    """A process of a capture that used a GPU, or NCCL.

    Attributes:
        pid: Its number, as its own namespace counts.
        device: CUDA device that its kernels ran on, as the process counts; None of several.
        devices: How many there are.
        rank: Global rank, if anything in the file tells.
        world_size: Ranks in the job, likewise.
        joined: Communicators that it joined during the capture.
        host: Host name.
        gpu: Physical index of the device on its host; the process' own where nothing maps it.
        gpu_name: Model.
        sm_count: Streaming multiprocessors.
        hbm_bytes: Memory.
        domains: Whose its NVTX domains are.
    """

    pid: int
    device: int | None = None
    devices: int = 0
    rank: int | None = None
    world_size: int | None = None
    joined: list[Joined] = field(default_factory=list)
    host: str | None = None
    gpu: int | None = None
    gpu_name: str | None = None
    sm_count: int | None = None
    hbm_bytes: int | None = None
    domains: ProcessDomains = NO_DOMAINS


@dataclass(slots=True)
class NsysExport:
    """One export.

    Attributes:
        processes: By pid; empty if nothing in it used a GPU or NCCL.
        base_ns: What makes its times Unix times.
        has_device: Whether it holds anything that a device computed; tables of all kinds may be there without rows.
    """

    processes: dict[int, GpuProcess] = field(default_factory=dict)
    base_ns: int = 0
    has_device: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSource(Source):
    """A process of an export, with what exports of other ranks say of its communicators.

    Attributes:
        pid: The process.
        rank: Its global rank, if anything tells.
        communicators: Those that it may take part in.
        domains: Whose its NVTX domains are.
        devices: How many it ran kernels on.
        has_device: Whether the export holds anything that a device computed.
    """

    pid: int = 0
    rank: int | None = None
    communicators: tuple[Communicator, ...] = ()
    domains: ProcessDomains = NO_DOMAINS
    devices: int = 1
    has_device: bool = True


def is_export(stored: Stored) -> bool:
    """Whether these are tables of Nsight Systems, whichever of them there are."""
    return not _OWN.isdisjoint(stored.tables)


def capture_of(path: Path) -> NsysExport:
    """What an export says about itself; read once as long as it does not change."""
    about = path.stat()
    return _capture(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1024)
def _capture(path: Path, *_as_of: int) -> NsysExport:
    with opened(path) as stored:
        return about(stored)


def about(stored: Stored) -> NsysExport:
    """Everything but its events."""
    capture = NsysExport(base_ns=_base_ns(stored))
    devices: dict[int, set[int]] = defaultdict(set)
    for table in (KERNELS, GRAPHS):
        for process, device in stored.combinations(table, "globalPid", "deviceId"):
            pid, number = process_of(process), _small(device)
            if pid is not None:
                devices[pid] |= set() if number is None else {number}
    capture.has_device = any(True for table in (GRAPHS, KERNELS) for _ in stored.rows(table, "start"))
    ranges = _ranges(stored)
    for pid in sorted(set(devices) or set(ranges.users))[:_MOST_PROCESSES]:
        used = devices.get(pid, set())
        device = next(iter(used)) if len(used) == 1 else None
        capture.processes[pid] = GpuProcess(
            pid, device, devices=len(used), rank=ranges.ranks.get(pid), joined=ranges.joined.get(pid, []),
            domains=ranges.domains.get(pid, NO_DOMAINS),
        )  # fmt: skip
    _take_hardware(stored, capture)
    _take_environment(stored, capture)
    if any(process.rank is None for process in capture.processes.values()):
        _take_marks(stored, capture)
    return capture


def _world_of(processes: Sequence[GpuProcess]) -> int:
    """Ranks of the job; 0 where the largest communicators cannot be the whole of it.

    Then they are of parts of it: two processes have the same place, or one has two.
    """
    largest = max((joined.size for process in processes for joined in process.joined), default=0)
    world = max([largest, *(process.world_size or 0 for process in processes)])
    names_of_places: dict[int, list[set[str]]] = defaultdict(list)
    for process in processes:
        places = {joined.place for joined in process.joined if joined.size == world}
        if len(places) > 1 or (places and process.rank is not None and process.rank not in places):
            return 0
        for place in places:
            names = {joined.communicator for joined in process.joined if joined.size == world}
            names_of_places[place].append(names - {""})
    # The same one twice is recorded twice.
    is_one = all(len(of_place) == 1 or set.intersection(*of_place) for of_place in names_of_places.values())
    return world if is_one else 0


def communicators_of(processes: Iterable[GpuProcess]) -> dict[str, Communicator]:
    """Who is where in each communicator, of what all processes of a job say.

    The largest one holds the whole job, in order of rank: torch and Megatron make it so.
    """
    mine = list(processes)
    world = _world_of(mine)
    members: dict[str, dict[int, int | None]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for process in mine:
        for joined in process.joined:
            if joined.size == world > 0:
                process.rank = joined.place if process.rank is None else process.rank
                process.world_size = process.world_size or world
    for process in mine:
        for joined in process.joined:
            if joined.communicator:
                sizes[joined.communicator] = max(joined.size, sizes.get(joined.communicator, 0))
                members[joined.communicator][joined.place] = process.rank
    communicators = {}
    for name, size in sizes.items():
        # Without a size there may be more behind the last one known.
        ranks = tuple(members[name].get(place) for place in range(size or max(members[name]) + 2))
        communicators[name] = Communicator(name, tuple(range(size)) if size == world > 0 and None in ranks else ranks)
    return communicators


class _Ranges(NamedTuple):
    """What NVTX ranges tell of processes: who used NCCL, who joined which communicator, who said its rank."""

    users: set[int]
    joined: dict[int, list[Joined]]
    ranks: dict[int, int]
    domains: dict[int, ProcessDomains]


def _ranges(stored: Stored) -> _Ranges:
    ranges = _Ranges(set(), {}, {}, {})
    texts, payloads = Texts(stored), Payloads(stored)
    columns: tuple[str, ...] = ("eventType", "text", "textId", "globalTid", "domainId")
    for kind, text, text_id, thread, domain in stored.select(NVTX, columns, ("eventType", _NAMING)):
        called, pid = texts.of(text, text_id) or "", process_of(thread)
        if pid is None:
            continue
        if kind == EventType.CREATED and isinstance(domain, int):
            known_so_far = ranges.domains.get(pid, NO_DOMAINS)
            ranges.domains[pid] = ProcessDomains(
                known_so_far.nccl | ({domain} if called == "NCCL" else set()), known_so_far.named | {domain}
            )
        elif kind == EventType.THREAD and (match := _RANK_OF_THREAD.match(called)):
            ranges.ranks[pid] = int(match[1])
    for thread, rank in stored.rows("MPI_RANKS", "globalTid", "rank"):
        pid, number = process_of(thread), known(rank)
        if pid is not None and number is not None and number < _MOST_MEMBERS:
            ranges.ranks.setdefault(pid, number)
    numbers = {number for of_process in ranges.domains.values() for number in of_process.nccl}
    where = ("domainId", numbers)
    if not numbers:
        where = ("textId", {number for (number,) in stored.select(TEXTS, ("id",), ("value", "nccl"))})
    columns = ("text", "textId", "globalTid", "domainId", "jsonText", "jsonTextId", "binaryData")
    for text, text_id, thread, domain, json_text, json_id, blob in stored.select(NVTX, columns, where):
        pid, name = process_of(thread), texts.of(text, text_id)
        if pid is None or name is None or not ranges.domains.get(pid, NO_DOMAINS).is_nccl(domain, name):
            continue
        ranges.users.add(pid)
        mine = ranges.joined.setdefault(pid, [])
        if not _INIT.match(name) and (name.startswith("nccl") or len(mine) >= _MOST_JOINED):
            continue
        joined = _joined(payloads.decoded(blob, texts.of(json_text, json_id)))
        if joined is not None and joined not in mine:
            mine.append(joined)
    return ranges


def _joined(payload: Payload) -> Joined | None:
    size, place = payload.size, payload.rank
    if place is None or not place < (_MOST_MEMBERS if size is None else size) <= _MOST_MEMBERS:
        return None
    return None if not (size or payload.communicator) else Joined(payload.communicator or "", size or 0, place)


def _base_ns(stored: Stored) -> int:
    for table in _TIMED:
        for (start,) in stored.rows(table, "start"):
            moment = whole(start)
            if moment is not None:
                if moment > ABSOLUTE_NS:
                    return 0  # exported with --ts-normalize
                break
    for (epoch,) in stored.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        moment = whole(epoch)
        if moment is not None and ABSOLUTE_NS < moment < 2**62:
            return moment
    return 0


def _take_hardware(stored: Stored, capture: NsysExport) -> None:
    """Host and device of each process."""
    hosts = [
        str(value)
        for table, name in (("TARGET_INFO_SYSTEM_ENV", "Hostname"), ("META_DATA_CAPTURE", "DEVICE_DISPLAY_NAME"))
        for key, value in stored.select(table, ("name", "value"), ("name", name))
        if key == name and value
    ]
    columns = ("id", "cuDevice", "name", "smCount", "totalMemory")
    gpus = [(_small(n), _small(cuda), *facts) for n, cuda, *facts in stored.rows("TARGET_INFO_GPU", *columns)]
    physical = {
        (process_of_number(pid), _small(cuda)): _small(gpu)
        for gpu, cuda, pid in stored.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    }
    for process in capture.processes.values():
        process.host = hosts[0] if hosts else None
        process.gpu = process.device
        mapped = physical.get((process.pid, process.device))
        mine = [gpu for gpu in gpus if (gpu[0] == mapped if mapped is not None else gpu[1] == process.device)]
        mine = mine or (gpus if len({gpu[2:] for gpu in gpus}) == 1 else [])
        if mine:
            if mapped is not None:
                process.gpu = mapped
            _, _, name, count, memory = mine[0]
            process.gpu_name = str(name) if name else None
            process.sm_count, process.hbm_bytes = _small(count) or None, known(memory) or None


def _small(value: object) -> int | None:
    """A number of devices or of their parts; of more than anything has, none."""
    number = known(value)
    return number if number is not None and number < _MOST_DEVICES else None


def process_of_number(value: object) -> int | None:
    """A pid that a column holds by itself, or inside a ``globalPid``."""
    number = whole(value)
    return number if number is None or 0 <= number < 1 << 24 else process_of(number)


def _take_environment(stored: Stored, capture: NsysExport) -> None:
    """The rank of the launched process, where it is the only one with a GPU and starts no others itself."""
    variables: dict[str, int] = {}
    starts_others = False
    for name, value in stored.select("META_DATA_CAPTURE", ("name", "value"), ("name", "PROCESS_0:")):
        if name == "PROCESS_0:COMMAND":
            starts_others |= _LAUNCHES.match(PurePosixPath(str(value)).name) is not None
        elif str(name).startswith("PROCESS_0:ARGUMENT"):
            starts_others |= _LAUNCHES_AS_ARGUMENT.match(PurePosixPath(str(value)).name) is not None
        elif name == "PROCESS_0:ENVIRONMENT_VARIABLE":
            match = _VARIABLE.match(str(value))
            if match:
                variables[match[1]] = int(match[2])
    variable = next((name for name in _SIZE_OF if name in variables), None)
    if variable is None or len(capture.processes) != 1 or starts_others:
        return
    (process,) = capture.processes.values()
    rank, sizes = variables[variable], [variables.get(name) for name in (_SIZE_OF[variable], *_SIZE_OF.values())]
    if sizes[0] is None or rank < sizes[0]:
        process.rank = rank if process.rank is None else process.rank
        process.world_size = next((size for size in sizes if size is not None and rank < size), None)


def _take_marks(stored: Stored, capture: NsysExport) -> None:
    """The rank that marks of steps name, as the zero-bubble fork of Megatron writes them."""
    for text, thread in stored.select(NVTX, ("text", "globalTid"), ("text", "iter_")):
        match, process = _RANK_OF_MARK.match(str(text)), capture.processes.get(process_of(thread) or 0)
        if match and process is not None and process.rank is None:
            process.rank = int(match[1])
