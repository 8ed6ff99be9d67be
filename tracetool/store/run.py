"""A Run on disk: ``manifest.json`` and a folder of Parquet files per table. Parquet is the truth, DuckDB the lens."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import defaultdict
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracetool.errors import AlreadyExists, NotARun, Option, SchemaVersion, StoreError, UnknownName, command_or_call
from tracetool.store import (
    WHOLE,
    as_path,
    is_local,
    part_path,
    read_parts,
    remove_tree,
    source_part,
    whole_file,
    write_part,
)
from tracetool.store.kept import from_bytes, to_bytes
from tracetool.store.query import Lens, Views, connect, empty_source, files_source, seal, table_sources
from tracetool.tables.run import SCHEMA_VERSION, TABLES
from tracetool.version import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import duckdb
    import pyarrow as pa

MANIFEST = "manifest.json"
_KEPT = ".kept"
_WORTH_FILES = 32
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
        if path.exists():
            if not (path / MANIFEST).is_file():
                raise AlreadyExists(f"{path} exists and is no Run.", hint="choose another name")
            if not force:
                raise AlreadyExists(f"the Run {path} exists.", hint=f"add {Option.FORCE.on} to replace it")
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise StoreError(f"{path} is no name in UTF-8.", hint="choose another name") from error
        self._path = path
        if not is_local(path):
            # Object stores cannot rename: a Run is one once its manifest is there, which is written last.
            remove_tree(path)
            self.folder = path
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise StoreError(
                f"could not write {path}: {error}.",
                hint="name another place",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_local(self.folder) or kind is not None:
            remove_tree(self.folder)
        if isinstance(error, OSError):
            raise StoreError(f"could not write {self._path}: {error}.", hint="check the disk") from error

    def drop_part(self, part: str) -> None:
        """Take back everything that a part holds."""
        for name in TABLES:
            part_path(self.folder, name, part).unlink(missing_ok=True)

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
        _write_manifest(self.folder, {"schema_version": SCHEMA_VERSION, **manifest})
        if complete is not None:
            complete(Run(self.folder, name=str(self._path)))
        if not is_local(self.folder):
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
        path: Its folder.
        name: What to call it in messages, if not by its path.

    Raises:
        NotARun: If the folder has no readable manifest, or lacks a table or a part of one.
        SchemaVersion: If another major version of the schema wrote it.
    """

    def __init__(self, path: Path | str, *, name: str | None = None) -> None:
        path = as_path(path) if isinstance(path, str) else path
        self.path = path
        self.name = name or str(path)
        self._through: Mapping[str, str] = {}
        self._narrowed: Mapping[str, Sequence[str]] = {}
        self._is_held = False
        try:
            self.manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            version = str(self.manifest["schema_version"])
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
        parts = {name: sorted((path / name).glob("*.parquet")) for name in TABLES if name not in self._later}
        absent = [name for name, files_of in parts.items() if not files_of]
        if absent:
            raise NotARun(f"{path} lacks {', '.join(absent)}.", hint="ingest the traces again")
        self._sizes = {
            f"{name}/{file.name}": _whole_size(file) for name, files_of in parts.items() for file in files_of
        }
        cut = [name for name, size in self._sizes.items() if not size]
        if cut:
            raise NotARun(f"{path}: {', '.join(cut)} is cut off.", hint="ingest the traces again")

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    @property
    def size_bytes(self) -> int:
        """Of the files that questions of it open."""
        return sum(s for n, s in self._sizes.items() if n in self._narrowed.get(n.partition("/")[0], (n,)))

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with one view per table and the views of ``sql/``.

        Queries can reach neither files nor the network, and nothing they do changes the Run.
        """
        return self._views.all_made()

    @cached_property
    def _views(self) -> Views:
        connection = connect([self.path], self.size_bytes)
        seal(connection)
        return Views(connection, self.sources, tables="TABLE" if self._is_held else "VIEW")

    def _connection_for(self, sql: str) -> duckdb.DuckDBPyConnection:
        return self._views.made_for(sql)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table as Arrow, with its declared types and comments; read from Parquet, one chunk per source or more.

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
        return read_parts(self.path, name, chosen)

    @property
    def sources(self) -> dict[str, str]:
        """For each table, what its view selects from."""
        sources = table_sources(self.path) | {name: empty_source(TABLES[name]) for name in self._later}
        sources |= {name: files_source(self.path, names) for name, names in self._narrowed.items()}
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
            ranks: Those that are asked about; rows of others may be missing.
        """
        if self._is_held:
            return self
        wanted = set(ranks)
        whole = {WHOLE} | {
            source_part(source)
            for source, rank in self.rows("SELECT source, rank FROM sources")
            if rank is None or rank in wanted
        }
        narrowed: dict[str, list[str]] = defaultdict(list)
        for name in self._sizes:
            table, _, file = name.partition("/")
            if file.removesuffix(".parquet") in whole:
                narrowed[table].append(name)
        opened = sum(map(len, narrowed.values()))
        # Another connection costs more than opening a few files more.
        if len(self._sizes) - opened < _WORTH_FILES:
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
        for name, rows in tables.items():
            write_part(self.path, name, rows)
        self.manifest |= manifest
        _write_manifest(self.path, self.manifest)
        self.__dict__.pop("_views", None)

    def keep(self, name: str, value: object) -> None:
        """Keep what was worked out of the traces beside the tables, for :meth:`kept` of this very code.

        Args:
            name: What to call it.
            value: Made of the product's own dataclasses, named tuples and enumerations, and of plain data.
        """
        with whole_file(self.path / f"{name}{_KEPT}") as file:
            file.write(self._made_of())
            file.write(to_bytes(value))

    def kept(self, name: str) -> object | None:
        """What :meth:`keep` was given; None if nothing was, or by other code, of other tables, or not to be trusted.

        It can be deleted: it is made anew from the tables.
        """
        if self.is_overlaid:
            return None
        try:
            text = (self.path / f"{name}{_KEPT}").read_bytes()
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


def _whole_size(path: Path) -> int:
    """Size of a Parquet file that has its closing mark; 0 for one that is cut off."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size if size > 12 and file.seek(-4, os.SEEK_END) > 0 and file.read() == b"PAR1" else 0


def is_run(path: Path) -> bool:
    """Whether the path looks like a Run (a folder with a manifest)."""
    return (path / MANIFEST).is_file()
