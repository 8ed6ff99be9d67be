"""What there is to read: sources among files and folders, who they are, and what is left and why."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING

import xxhash

from tracetool.errors import DuplicateRank, IngestError, MalformedTrace, MissingRank, Option, UnknownFormat
from tracetool.ingestion.walk import purpose_of, walk, why_unknown
from tracetool.model.notice import Silent
from tracetool.readers import READERS, UNRANKED, Group, Identity, Left, Source, Splitter
from tracetool.readers.files import keeping_heads
from tracetool.store.objects import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.model.notice import Progress

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_FOLDERS_NAMED = 4
_KNOWN = (
    "tracetool reads torch.profiler (Kineto) JSON; exports of Nsight Systems; Ascend torch_npu, MindSpore and msprof "
    "output, text or databases; "
    "NDTimeline and straggler-analysis tables"
)
_SAME_DEVICES = ("kineto", "nsys")
"""Readers of what different profilers record of the same devices, the one that tells more first."""
_MOST_UNCLEAR = 64
MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class DiscoveredSource:
    """A source with its reader, rank, identity and a digest of its content.

    Attributes:
        source: What is read together.
        reader: Name of the reader that takes it.
        rank: Global rank; None for a source that is no single rank's.
        identity: Who it is; its rank is None where the trace does not say.
        digest: YYH3 (128 bits) of the bytes of its files.
        rank_from: Where the rank was taken from, if not from the trace.
    """

    source: Source
    reader: str
    rank: int | None
    identity: Identity
    digest: str
    rank_from: str | None = None

    @property
    def stored_rank(self) -> int:
        """Its rank as rows have it."""
        return UNRANKED if self.rank is None else self.rank

    @property
    def label(self) -> str:
        """Path, and the member of it."""
        named = place_of(self.source.path, self.source.member)
        return f"{named}:{' '.join(self.source.part[:2])}" if self.source.part else named


@dataclass(slots=True)
class Discovery:
    """Everything among the files.

    Attributes:
        sources: Sources, sorted by rank.
        failed: Sources and files that cannot be read, and why.
        left: Files that are not read, and why.
        conflicts: Why the sources cannot be read into one Run.
    """

    sources: list[DiscoveredSource] = field(default_factory=list)
    failed: list[Left] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    conflicts: list[IngestError] = field(default_factory=list)


@keeping_heads()
def discover(
    paths: Sequence[Path],
    ranks: Mapping[str, int] | None = None,
    *,
    keep_conflicts: bool = False,
    progress: Progress | None = None,
) -> Discovery:
    """Find the sources in files and folders, and who they are.

    Args:
        paths: Trace files, and folders to walk.
        ranks: Path (or its end) to rank, for traces that do not say theirs.
        keep_conflicts: Return with the conflicts between sources instead of raising the first.
        progress: Told about bytes copied from object stores.

    Raises:
        IngestError: If a path does not exist, or two sources disagree about the size of the job.
        UnknownFormat: If no reader takes a file that was named, or there is no source at all.
        DuplicateRank: If two sources claim one rank.
        MissingRank: If a source does not say its rank.
        MalformedTrace: If the only sources are damaged beyond reading.
    """
    result = Discovery()
    files, named = walk(paths, result.failed, result.left, progress or Silent())
    taken: set[Path] = set()
    identified: list[tuple[Source, str, Identity]] = []
    groups: dict[Group, Group] = {}
    for name in READERS.names():
        reader = READERS.get(name)
        finding = reader.find([f for f in files if f not in taken])
        result.left += finding.left
        result.failed += finding.failed
        for source in finding.sources:
            taken.update(source.files)
            try:
                identity = reader.identify(source)
                # Each of many ranks lists all of them: one list of each group is kept.
                shared = tuple(groups.setdefault(group, group) for group in identity.groups)
                identified.append((source, name, replace(identity, groups=shared)))
            except MalformedTrace as error:
                result.failed.append(Left(source.path, error.message))
            except OSError as error:
                result.failed.append(Left(source.path, f"{place_of(source.path)} cannot be read: {error}"))
    known = taken | {left.path for left in (*result.left, *result.failed)}
    for file in files:
        if file not in known:
            broken, reason = why_unknown(file)
            (result.failed if broken else result.left).append(Left(file, reason))
    _check_named([f for f in named if f not in known])
    if not identified:
        raise _nothing(result, len(files), paths)
    ranked = _with_ranks(identified, ranks or {}, result.conflicts)
    result.sources = in_order(_of_one_profiler(ranked, result.left))
    _split(result, result.sources if keep_conflicts else _unclear(result.sources))
    nameless = [item for item in result.sources if item.source.ranked and item.rank is None]
    claimed = {item.rank for item in result.sources}
    free = (rank for rank in count() if rank not in claimed)
    result.conflicts += [_no_rank([(item, 0)]) for item in nameless if item.source.complements]
    if own := [(item, next(free)) for item in nameless if not item.source.complements]:
        result.conflicts.append(_no_rank(own))
    result.conflicts += job_conflicts(result.sources)
    if result.conflicts and not keep_conflicts:
        raise result.conflicts[0]
    return result


def _of_one_profiler(sources: Sequence[DiscoveredSource], left: list[Left]) -> list[DiscoveredSource]:
    """The sources without a second capture of the same ranks by another profiler, which is left and said.

    Taken is the one of more ranks, of as many the one that names peers and bytes by itself. Never are some ranks taken
    from the one and some from the other: they are different runs. One that tells no ranks is a second one where the
    other has all of the job.
    """
    by_kind = {kind: [item for item in sources if item.reader == kind] for kind in _SAME_DEVICES}
    ranks = {kind: {item.rank for item in items} - {None} for kind, items in by_kind.items()}
    best = max(_SAME_DEVICES, key=lambda kind: len(ranks[kind]))
    world = max((item.identity.world_size or 0 for item in by_kind[best]), default=0)
    why: dict[str, str] = {}
    for kind in by_kind.keys() - {best}:
        if ranks[kind] & ranks[best]:
            why[kind] = "a second capture of the same ranks"
        elif not ranks[kind] and len(by_kind[kind]) <= world == len(ranks[best]):
            why[kind] = f"a capture that does not tell its ranks, beside one of all {world}"
    for item in sources:
        if item.reader in why and item.source.path not in {one.path for one in left}:
            left.append(Left(item.source.path, f"{why[item.reader]}: that of {best} is taken"))
    return [item for item in sources if item.reader not in why]


def ranks_in(item: DiscoveredSource) -> list[DiscoveredSource]:
    """The ranks that a source holds, each as one of its own; empty if it is one rank's.

    Raises:
        MalformedTrace: If it holds several that cannot be told apart, or is damaged beyond reading.
    """
    reader = READERS.get(item.reader)
    if not isinstance(reader, Splitter):
        return []
    return [
        replace(item, source=source, identity=identity, rank=identity.rank or 0, rank_from=evidence)
        for source, identity, evidence in reader.split(item.source, item.identity)
    ]


def in_order(sources: Iterable[DiscoveredSource]) -> list[DiscoveredSource]:
    """Sources by rank, those of no single rank first."""
    return sorted(sources, key=lambda f: (f.stored_rank, str(f.source.path), f.source.member))


def _unclear(sources: Sequence[DiscoveredSource]) -> list[DiscoveredSource]:
    """Sources without a rank, and those that share one: they may hold several, and say the rank of one of them."""
    ranks = Counter(item.rank for item in sources if not item.source.complements)
    unclear = [
        f for f in sources if f.source.ranked and not f.source.complements and (f.rank is None or ranks[f.rank] > 1)
    ]
    return unclear if len(unclear) <= _MOST_UNCLEAR else []


def _split(result: Discovery, some: Sequence[DiscoveredSource]) -> None:
    """Put the ranks that some sources hold in the place of these sources; those that cannot be told apart fail."""
    kept: list[DiscoveredSource] = []
    for item in result.sources:
        try:
            kept += (ranks_in(item) if item in some else []) or [item]
        except MalformedTrace as error:
            result.failed.append(Left(item.source.path, error.message))
            if len(result.sources) == 1:
                result.conflicts.append(error)
    result.sources = in_order(kept)


def digest_of(sources: Sequence[DiscoveredSource]) -> str:
    """SHA-256 over the digests of all sources: the same traces give the same digest anywhere."""
    return hashlib.sha256("".join(f"{f.stored_rank}:{f.digest}\n" for f in sources).encode()).hexdigest()


def _check_named(unknown: list[Path]) -> None:
    for file in unknown:
        if file.stat().st_size == 0:
            raise UnknownFormat(f"{place_of(file)} is empty.", hint="record the trace again")
        broken, reason = why_unknown(file)
        raise UnknownFormat(
            f"{reason}." if broken else f"{place_of(file)} is no trace of a known format.",
            hint=purpose_of(file) or _KNOWN,
        )


def _nothing(result: Discovery, count: int, paths: Sequence[Path]) -> IngestError:
    """Why there is nothing to read."""
    if result.failed:
        return MalformedTrace(result.failed[0].reason)
    named = ", ".join(map(str, paths))
    if len(result.left) == 1:
        return UnknownFormat(f"no trace found in {named}: {result.left[0].reason}.", hint=_KNOWN)
    reasons = "; ".join(f"{n} {reason}" for reason, n in Counter(left.reason for left in result.left).most_common(3))
    looked = f"{count} file{'' if count == 1 else 's'} looked at"
    return UnknownFormat(f"no trace found in {named} ({looked}{': ' + reasons if reasons else ''}).", hint=_KNOWN)


def _with_ranks(
    identified: list[tuple[Source, str, Identity]], ranks: Mapping[str, int], conflicts: list[IngestError]
) -> list[DiscoveredSource]:
    digests: dict[tuple[Path, ...], str] = {}
    for source, _, _ in identified:
        if source.files not in digests:
            digests[source.files] = _digest(source)
    own = [source for source, _, _ in identified if source.ranked and not source.complements]
    alone = len(own or [source for source, _, _ in identified if source.ranked]) == 1
    unused = set(ranks)
    sources = []
    for source, reader, identity in identified:
        item = DiscoveredSource(source, reader, None, identity, digests[source.files])
        if source.ranked:
            try:
                item = _ranked(item, ranks, unused, alone=alone)
            except MissingRank as error:
                conflicts.append(error)
                item = replace(item, rank=identity.rank or 0)
        sources.append(item)
    sources = [_beside(item, sources) if _awaits_rank(item) else item for item in sources]
    for name in sorted(unused):
        labels = ", ".join(item.label for item in sources[:3]) + (" ..." if len(sources) > 3 else "")
        conflicts.append(
            MissingRank(
                f"{Option.RANKS(f'{name}={ranks[name]}')} names none of the sources.", hint=f"there are {labels}"
            )
        )
    return sources


def _ranked(item: DiscoveredSource, ranks: Mapping[str, int], unused: set[str], *, alone: bool) -> DiscoveredSource:
    said = item.identity.rank
    for name, rank in ranks.items():
        if item.label == name or item.label.endswith(f"/{name}"):
            unused.discard(name)
            if said is not None and said != rank:
                raise MissingRank(
                    f"{item.label} says that it is rank {said}, not {rank}.",
                    hint=f"{Option.RANKS} is for traces that do not say theirs",
                )
            return replace(item, rank=rank, rank_from=str(Option.RANKS))
    if said is not None:
        return replace(item, rank=said)
    match = _RANK_IN_NAME.search(item.source.member) or _RANK_IN_NAME.search(item.source.path.name)
    if match:
        return replace(item, rank=int(match[1]), rank_from="the file name")
    if item.source.complements:
        return item  # its trace may tell
    if alone:
        return replace(item, rank=0, rank_from="being the only one")
    return item  # it may hold several


def _no_rank(nameless: Sequence[tuple[DiscoveredSource, int]]) -> MissingRank:
    """Sources that do not say their rank, each with the one to ask for."""
    labels, source = [item.label for item, _ in nameless], nameless[0][0].source
    hint = "name the file rank0.json, rank1.json ..., " if not source.complements else "name it like its trace, "
    why = "" if source.complements else "torch.distributed was not initialised when it was recorded; "
    if any(item.source.member for item, _ in nameless):
        why, hint = "", "record each rank to a file of its own, "
    asked = " ".join(
        Option.RANKS(f"{item.source.path.name}{':' * bool(item.source.member)}{item.source.member}={at}")
        for item, at in nameless
    )
    if len(labels) == 1:
        return MissingRank(f"{labels[0]} does not say its rank.", hint=f"{why}{hint}or ingest with {asked}")
    some = ", ".join(labels[:3]) + f" and {len(labels) - 3} more" * (len(labels) > 3)
    how = f"{why}{hint}or, where all of them are of one job, ingest with {asked}"
    return MissingRank(f"{len(labels)} sources do not say their rank: {some}.", hint=how)


def _awaits_rank(item: DiscoveredSource) -> bool:
    return item.source.complements and item.rank is None


def _beside(item: DiscoveredSource, sources: Sequence[DiscoveredSource]) -> DiscoveredSource:
    """What adds to a trace, with the rank of the one it lies beside: of its own name, or the only one."""
    traces = [f for f in sources if f.rank is not None and not f.source.complements]
    near = [f for f in traces if f.source.path.parent == item.source.path.parent]
    stem = item.source.path.name.partition(".")[0]
    named = [f for f in near if f.source.path.name.partition(".")[0] == stem]
    for candidates in (named, near, traces):
        if len(candidates) == 1:
            return replace(item, rank=candidates[0].rank, rank_from=f"{candidates[0].source.path.name} beside it")
    if not traces and sum(f.source.ranked for f in sources) == 1:
        return replace(item, rank=0, rank_from="being the only one")
    return item


def _one_of(labels: Sequence[str]) -> str:
    """What to name instead of sources of one rank: of several recordings, each in a folder of its own, one folder."""
    files = {path.parent: path for path in map(PurePath, labels)}
    if len(files) < len(labels):
        return "name only one of them"
    # A folder in which another one lies would be read with it.
    outer = {parent for folder in files for parent in folder.parents}
    ends = [f"/*{''.join(file.suffixes)}" if folder in outer else "" for folder, file in files.items()]
    named = [shlex.quote(str(folder)) + end for folder, end in zip(files, ends, strict=True)]
    more = f" or {len(named) - _FOLDERS_NAMED} more" if len(named) > _FOLDERS_NAMED else ""
    return f"these are several recordings: name one folder, as {', '.join(named[:_FOLDERS_NAMED])}{more}"


def job_conflicts(sources: list[DiscoveredSource]) -> Iterator[IngestError]:
    """Why the sources are not those of one job, each rank once."""
    ranked = [(f.rank, f) for f in sources if f.rank is not None]
    by_content: dict[str, DiscoveredSource] = {}
    for _, item in ranked:
        other = by_content.setdefault(item.digest, item)
        if other.source.files != item.source.files and other.rank != item.rank:
            yield DuplicateRank(
                f"{other.label} and {item.label} hold the same bytes, as ranks {other.rank} and {item.rank}.",
                hint="name only one of them",
            )
    by_rank: dict[tuple[bool, int], list[str]] = {}
    for rank, item in ranked:
        by_rank.setdefault((item.source.complements, rank), []).append(item.label)
    for (_, rank), labels in sorted(by_rank.items()):
        one, *others = labels
        if not others:
            continue
        several = f"{one}, {others[0]} and {len(others) - 1} more all"
        some = f"{one} and {others[0]} both" if len(others) == 1 else several
        yield DuplicateRank(f"{some} say rank {rank}.", hint=_one_of(labels))
    sizes: dict[int, str] = {}
    for rank, item in ranked:
        said = max(rank + 1, item.identity.world_size or 1)
        if said > MOST_RANKS:
            yield IngestError(
                f"{item.label} would be of a job of at least {said:,} ranks: more than {MOST_RANKS:,} cannot be.",
                hint="its account of the job (distributedInfo), or the rank in its name, is damaged",
            )
        if item.identity.world_size is not None:
            sizes.setdefault(item.identity.world_size, item.label)
    if len(sizes) > 1:
        listed = ", ".join(f"{size} ranks ({label})" for size, label in sorted(sizes.items()))
        yield IngestError(
            f"the sources disagree about the size of the job: {listed}.", hint="name the traces of one job only"
        )


def _digest(source: Source) -> str:
    # XXH3 reads ten times as fast as SHA-256 and tells contents apart as well; nobody attacks their own cache.
    total = xxhash.xxh3_128()
    for file in source.files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
        total.update(b"\0end of file")
    return total.hexdigest()
