"""A Run on disk: ``manifest.json`` and a folder of Parquet files per table. Parquet is the truth, DuckDB the lens."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracetool.errors import NotARun, SchemaVersion, StoreError, UnknownName, command_or_call
from tracetool.store import WHOLE, as_path, is_local, read_parts, sources_of, whole_file, write_part
from tracetool.store.kept import from_bytes, to_bytes
from tracetool.store.objects import RunObjects, handed_over, put_folder
from tracetool.store.place import HANDED, KEPT, MANIFEST, PART, check_free, only_once, part_sizes
from tracetool.store.query import Lens, Views, connect, empty_source, files_source, seal, table_sources
from tracetool.tables.run import SCHEMA_VERSION, TABLES
from tracetool.version import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    import duckdb
    import pyarrow as pa

_WORTH_FILES = 32
_WORTH_BYTES = 2_000_000
_MOST_HELD_BYTES = 48_000_000


class RunWriter:
    """Writes a Run under a temporary name and renames it when it is complete.

    Used as a context manager: leaving it by an exception removes what was written.

    Args:
        path: Folder to create.
        force: Replace an existing Run. Anything else in the way is never touched.

    Raises:
        AlreadyExists: If the path exists and is no Run, or ``force`` is off.
        StoreError: If its folder cannot be written.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        check_free(path, force=force)
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise StoreError(f"{path} is no name in UTF-8.", hint="choose another name") from error
        self._path = path
        try:
            if is_local(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent if is_local(path) else None))
        except OSError as error:
            raise StoreError(f"could not write {path}: {error}.", hint="name another place") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise StoreError(f"could not write {self._path}: {error}.", hint="check the disk") from error

    def handing_over(self) -> AbstractContextManager[Path]:
        """Where workers elsewhere put parts that the Run gets afterwards."""
        if is_local(self._path):
            return nullcontext(self.folder)
        return handed_over(self._path / f"{HANDED}{os.urandom(4).hex()}", self.folder)

    def commit(
        self, manifest: dict[str, Any], tables: Mapping[str, pa.Table], complete: Callable[[Run], object] | None = None
    ) -> None:
        """Write the manifest and the tables of the Run as a whole, and give the Run its name.

        Args:
            manifest: Facts about the Run.
            tables: Those that belong to no source.
            complete: Adds what is derived, while the Run has no name yet.
        """
        for name, declared in TABLES.items():
            rows = tables.get(name)
            if rows is not None or not any((self.folder / name).glob("*.parquet")):
                write_part(self.folder, name, declared.arrow_schema().empty_table() if rows is None else rows)
        files = {"files": list(part_sizes(self.folder))}
        _write_manifest(self.folder, {"schema_version": SCHEMA_VERSION, **manifest, **files})
        if complete is not None:
            complete(Run(self.folder, name=str(self._path)))
        if not is_local(self._path):
            _write_manifest(self.folder, json.loads((self.folder / MANIFEST).read_bytes()) | only_once())
            put_folder(self.folder, self._path, last=MANIFEST)
            return
        self.folder.chmod(0o755)
        # A folder cannot be renamed over a full one: the old Run steps aside first.
        aside = self._path.with_name(f".{self._path.name}.old-{os.getpid()}")
        if self._path.exists():
            self._path.rename(aside)
        try:
            self.folder.rename(self._path)
        except BaseException:
            if aside.exists() and not self._path.exists():
                aside.rename(self._path)
            raise
        shutil.rmtree(aside, ignore_errors=True)


class Run(Lens):
    """A Run that was opened for reading.

    Args:
        path: Its folder, or the URL of one.
        name: What to call it in messages, if not by its path.

    Attributes:
        path: As it was named.
        folder: Where its files are on this machine: of a Run on an object store copies, made once they are needed.

    Raises:
        NotARun: If the folder has no readable manifest, or lacks a table or a part of one.
        SchemaVersion: If another major version of the schema wrote it.
        StoreError: If it is on an object store that refuses, or cannot be reached.
    """

    def __init__(self, path: Path | str, *, name: str | None = None) -> None:
        path = as_path(path) if isinstance(path, str) else path
        self.path = path
        self.name = name or str(path)
        self._objects = None if is_local(path) else RunObjects(path, MANIFEST)
        self.folder = path if self._objects is None else self._objects.folder
        self._through: Mapping[str, str] = {}
        self._narrowed: Mapping[str, Sequence[str]] = {}
        self._is_held = False
        try:
            self.manifest: dict[str, Any] = json.loads(self.file(MANIFEST).read_text(encoding="utf-8"))
            version, files = str(self.manifest["schema_version"]), list(self.manifest.get("files", ()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotARun(
                f"{path} is no Run: its {MANIFEST} is missing or damaged.",
                hint=f"make one: {command_or_call('tracetool ingest TRACES... -o x.run', 'tt.ingest(traces, output)')}",
            ) from error
        if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise SchemaVersion(
                f"{path} has schema version {version}, this tool reads {SCHEMA_VERSION}.",
                hint="ingest the traces again",
            )
        # What a later minor version brought is empty in an older Run.
        self._later = frozenset(name for name, declared in TABLES.items() if declared.since_minor > _minor(version))
        self._sizes = self._listed()
        absent = set(TABLES) - self._later - {name.partition("/")[0] for name in self._sizes}
        # Rows of some ranks would be missing, as if they had not been recorded.
        lost = [name for name in files if name not in self._sizes and name.partition("/")[0] not in absent]
        if lacks := sorted(absent) + lost:
            some = ", ".join(lacks[:4]) + f" and {len(lacks) - 4} files more" * (len(lacks) > 4)
            raise NotARun(f"{path} lacks {some}.", hint="ingest the traces again")
        if cut := [name for name, size in self._sizes.items() if not size]:
            raise NotARun(f"{path}: {', '.join(cut)} is cut off.", hint="ingest the traces again")

    def _listed(self) -> dict[str, int]:
        """Of each file of the tables its size; 0 of one that is cut off."""
        if self._objects is None:
            return part_sizes(self.folder)
        return {name: size for name, size in self._objects.sizes.items() if PART.fullmatch(name)}

    def have(self, tables: Iterable[str]) -> None:
        """Have the files of tables that questions open in ``folder``: of a Run on an object store, copies of them."""
        if self._objects is not None:
            wanted = set(tables)
            self._objects.have(name for name in self._opened if name.partition("/")[0] in wanted)

    def files(self, table: str) -> list[Path]:
        """All files of a table on this machine, in the order of their names."""
        if self._objects is not None:
            self._objects.have(name for name in self._sizes if name.startswith(f"{table}/"))
        return sorted((self.folder / table).glob("*.parquet"))

    def file(self, name: str) -> Path:
        """A file of the Run beside its tables on this machine, whether it is there or not."""
        if self._objects is not None:
            self._objects.have([name])
        return self.folder / name

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    @property
    def size_bytes(self) -> int:
        """Of the files that questions of it open."""
        return sum(self._opened.values())

    @property
    def _opened(self) -> dict[str, int]:
        """The files that questions open, with their sizes."""
        return {n: s for n, s in self._sizes.items() if n in self._narrowed.get(n.partition("/")[0], (n,))}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with one view per table and the views of ``sql/``.

        Queries can reach neither files nor the network, and nothing they do changes the Run.
        """
        return self._views.all_made()

    @cached_property
    def _views(self) -> Views:
        connection = connect([self.folder], self.size_bytes)
        seal(connection)
        return Views(connection, self.sources, tables="TABLE" if self._is_held else "VIEW", have=self.have)

    def _connection_for(self, sql: str) -> duckdb.DuckDBPyConnection:
        return self._views.made_for(sql)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table as Arrow, with its declared types and comments; read from Parquet, one chunk per file or more.

        ``polars.from_arrow(table, rechunk=False)`` takes it over without copying numbers; categories and texts have
        another layout there.

        Args:
            name: Its name.
            columns: Those to read; by default all.

        Raises:
            UnknownName: If there is no such table or column.
            StoreError: If its files are damaged.

        Example:
            >>> run.table("ops", ["rank", "kind", "duration_ns"]).slice(0, 1).to_pylist()
            [{'rank': 0, 'kind': 'F', 'duration_ns': 5680379}]
        """
        if name not in TABLES:
            raise UnknownName("table", name, TABLES)
        known = [column.name for column in TABLES[name].columns]
        chosen = known if columns is None else list(columns)
        for column in chosen:
            if column not in known:
                raise UnknownName(f"column of {name}", column, known)
        if name in self._through or name in self._later:
            rows = self.arrow(f"SELECT {', '.join(chosen)} FROM {name}")
            return rows.cast(TABLES[name].arrow_schema(chosen))
        return read_parts(self.files(name), name, chosen)

    @property
    def sources(self) -> dict[str, str]:
        """For each table, what its view selects from."""
        sources = table_sources(self.folder) | {name: empty_source(TABLES[name]) for name in self._later}
        sources |= {name: files_source(self.folder, names) for name, names in self._narrowed.items()}
        return sources | {name: _over(query, sources[name]) for name, query in self._through.items()}

    def overlay(self, queries: Mapping[str, str]) -> Run:
        """The same Run, with some tables as queries make them of what is recorded.

        Args:
            queries: Per table, a query in which ``{recorded}`` stands for the table as it is seen now.
        """
        through = {**self._through}
        for name, query in queries.items():
            before = self._through.get(name)
            through[name] = query if before is None else _over(query, f"({before})")
        run = self._again()
        run._through = through
        return run

    def _again(self) -> Run:
        run = copy(self)
        run.__dict__.pop("_views", None)
        return run

    def of_ranks(self, ranks: Iterable[int]) -> Run:
        """The same Run for questions about some ranks: of tables split by source, only their files are opened.

        Args:
            ranks: Those that are asked about; of the rows of others there may be all, some or none.
        """
        if self._is_held:
            return self
        ranks = set(ranks)
        wanted = {
            source for source, rank in self.rows("SELECT source, rank FROM sources") if rank is None or rank in ranks
        }
        narrowed: dict[str, list[str]] = defaultdict(list)
        for name in self._sizes:
            table, _, file = name.partition("/")
            part = file.removesuffix(".parquet")
            if part == WHOLE or not wanted.isdisjoint(sources_of(part)):
                narrowed[table].append(name)
        opened = {name for names in narrowed.values() for name in names}
        left_bytes = sum(size for name, size in self._sizes.items() if name not in opened)
        # Another connection costs more than a few files more, or a little more to go through.
        if len(self._sizes) - len(opened) < _WORTH_FILES and left_bytes < _WORTH_BYTES:
            return self
        run = self._again()
        # A table in which none of them has a file is opened as before: no row of it is asked for.
        run._narrowed = narrowed
        return run

    def in_memory(self) -> Run:
        """The same Run with its tables read once, for many small questions of all of it: opening files is most of them.

        Where they are large, files are read for each question as before.
        """
        if self._is_held or self.size_bytes > _MOST_HELD_BYTES:
            return self
        run = self._again()
        run._is_held = True
        return run

    @property
    def is_overlaid(self) -> bool:
        """Whether some tables are seen as queries make them."""
        return bool(self._through)

    def add(self, tables: dict[str, pa.Table], manifest: dict[str, Any]) -> None:
        """Replace derived tables and add entries to the manifest; each file changes in one step.

        Args:
            tables: Rows of tables made from the ingested ones.
            manifest: Entries to add or replace.
        """
        self.manifest |= manifest if self._objects is None else manifest | only_once()
        with self._writing() as folder:
            for name, rows in tables.items():
                write_part(folder, name, rows)
            _write_manifest(folder, self.manifest)
        if self._is_held or self._objects is not None:
            self.__dict__.pop("_views", None)  # other views read the files anew

    def keep(self, name: str, value: object) -> None:
        """Keep what was worked out of the traces beside the tables, for :meth:`kept` of this very code.

        Args:
            name: What to call it.
            value: Made of the product's own dataclasses, named tuples and enumerations, and of plain data.
        """
        self.write(f"{name}{KEPT}", self._made_of() + to_bytes(value))

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the Run beside its tables; it changes in one step."""
        with self._writing() as folder, whole_file(folder / name) as file:
            file.write(content)

    @contextmanager
    def _writing(self) -> Iterator[Path]:
        """Where files that the Run is to have are written: its folder, or one from which they are put there."""
        if self._objects is None:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="tracetool-") as aside:
            yield Path(aside)
            put_folder(Path(aside), self.path, last=MANIFEST, is_whole=False)
        self._objects = RunObjects(self.path, MANIFEST)
        self.folder = self._objects.folder
        self._sizes = self._listed()

    def kept(self, name: str) -> object | None:
        """What :meth:`keep` was given; None if nothing was, or by other code, of other tables, or not to be trusted.

        It can be deleted: it is made anew from the tables.
        """
        if self.is_overlaid:
            return None
        try:
            text = self.file(f"{name}{KEPT}").read_bytes()
            made_of = self._made_of()
            return from_bytes(text[len(made_of) :]) if text.startswith(made_of) else None
        except Exception:
            # Damaged pickles fail in many ways, and none of them matters.
            return None

    def _made_of(self) -> bytes:
        """What tells whether something kept still holds: the code, and the sizes of the tables as they were read."""
        read = sorted(item for item in self._sizes.items() if not item[0].endswith(f"/{WHOLE}.parquet"))
        return hashlib.sha256(f"{code_digest()} {self.manifest.get('digest')} {read}".encode()).digest()


def _minor(version: str) -> int:
    return int(version.partition(".")[2] or 0)


def _over(query: str, table: str) -> str:
    return f"({query.replace('{recorded}', table)})"


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    with whole_file(folder / MANIFEST) as file:
        file.write((json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())
