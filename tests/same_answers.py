"""Whether every answer is the same as before: the command line of two trees over the same traces.

    python tests/same_answers.py BEFORE_REV [--against TREE] [--data ../shared/data] [--only replay,sweep] [--cache DIR]

checks BEFORE_REV out into a temporary worktree, runs ``COMMANDS`` in it and in TREE (this working tree by default), and
compares what they print, byte for byte: with ``--json`` and the files of data they write an answer, on which it exits
with 1 where one differs and no field of ``ALLOWED`` says so; without, text, of which it only warns. What BEFORE_REV
answers is kept in the cache by its commit. Commands whose traces are not there are left out, and it says so.

Commands run in a folder of their own, with ``samples`` and ``data`` as links beside what earlier ones made, so that
their words are the same in both trees; the paths of the tree and of that folder are masked, and nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec
from answer_changes import Difference, changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent

# Fields of JSON that may differ, and why: "VERB /path/*/field" of the answer's file or stdout.
ALLOWED: dict[str, str] = {}

# Commands in the order in which they need each other's files; ``> FILE`` keeps what a command prints.
COMMANDS = Path(__file__).with_name("same_answers.txt").read_text(encoding="utf-8")

INPUTS = {
    "map.csv": "rank,dc\n0,east\n1,east\n2,west\n3,west\n",
    "wan.toml": """scenario = [
        {name = "metro", dc = "0-1,2-3", bandwidth = "400Gbit/s", distance = "80km", hbm = "80GiB"},
        {name = "leased", dc = "0-1,2-3", links = ["dc0-dc1=25Gbit/s,10ms"], microbatches = 16, p2p = "per-edge"},
        ]""",
}
DATA = Path(os.environ.get("TRACETOOL_DATA", ROOT.parent / "shared" / "data"))
AT_A_TIME = 2
MOST_SHOWN = 10


class Command(NamedTuple):
    """One command line: its words, where its stdout is kept, the files it writes and those that others write for it."""

    words: tuple[str, ...]
    kept: str | None
    writes: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def answers(self) -> bool:
        """Whether it takes ``--json``; the others print an answer as it is."""
        return self.kept is None and self.words[:2] != ("baseline", "add")


class Result(msgspec.Struct, frozen=True):
    """What a command did: with ``--json``, and without it."""

    code: int
    answer: str
    text: str
    files: dict[str, str]


class Tree(NamedTuple):
    """A checkout, and the folder that its commands run in."""

    root: Path
    work: Path

    def masked(self, text: str) -> str:
        return text.replace(str(self.work), "<work>").replace(str(self.root), "<tree>")


def parse(lines: str) -> list[Command]:
    """The commands of a text, one per line; ``#`` begins a comment."""
    commands: list[Command] = []
    made: set[str] = set()
    for line in lines.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        kept = words.pop() if words[-2:-1] == [">"] else None
        words = words[:-1] if kept else words
        flags = ("--history",) if words[:2] == ["baseline", "add"] else ("-o", "--run")
        writes = [kept] if kept else [word for flag, word in itertools.pairwise(words) if flag in flags]
        needs = [name for word in words for name in word.replace("csv:", "").split(",") if name in made]
        made.update(writes)
        commands.append(Command(tuple(words), kept, tuple(writes), tuple(needs)))
    return commands


def with_needs(wanted: Sequence[Command], commands: Sequence[Command]) -> list[Command]:
    """The wanted commands and those whose files they need, in order."""
    taken: list[Command] = []
    needed: set[str] = set()
    for command in reversed(commands):
        if command in wanted or needed.intersection(command.writes):
            taken.append(command)
            needed.update(command.needs)
    return taken[::-1]


def without_absent(commands: Sequence[Command], data: Path) -> list[Command]:
    """Those whose traces are there, and those of the commands they need."""
    absent: set[str] = set()
    there = []
    for command in commands:
        traces = [data / word.removeprefix("data/") for word in command.words if word.startswith("data/")]
        if all(path.exists() for path in traces) and not absent.intersection(command.needs):
            there.append(command)
        else:
            absent.update(command.writes)
            click.echo(f"left out   {shlex.join(command.words)}: its traces are not there")
    return there


def execute(tree: Tree, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("TRACETOOL_", "PYTHON"))}
    variables |= {"PYTHONPATH": str(tree.root), "TRACETOOL_CACHE": str(tree.work / "cache"), "COLUMNS": "100"}
    command = [sys.executable, "-m", "tracetool", *words]
    return subprocess.run(command, cwd=tree.work, env=variables, capture_output=True, text=True, check=False)


def run(tree: Tree, command: Command) -> Result:
    """Runs a command with and without ``--json``; a Run it writes is asked by other commands, not compared."""
    force = ["--force"] if command.writes and not command.kept and command.answers else []
    plain = execute(tree, [*command.words, *force])
    done = execute(tree, [*command.words, *force, "--json"]) if command.answers else plain
    if command.kept:
        (tree.work / command.kept).write_text(done.stdout, encoding="utf-8")
    paths = [tree.work / name for name in command.writes if not name.endswith((".run", ".parquet", ".png"))]
    files = {path.name: tree.masked(path.read_text(encoding="utf-8")) for path in paths if path.is_file()}
    text = plain.stdout + plain.stderr + (done.stderr if command.answers else "")
    return Result(done.returncode, tree.masked(done.stdout), tree.masked(text), files)


def run_all(tree: Tree, commands: Sequence[Command]) -> Iterator[tuple[Command, Result]]:
    """Runs commands, some at a time, each after those it needs; in their order, as they are done."""
    makers: dict[str, Future[Result]] = {}

    def after(earlier: list[Future[Result]], command: Command) -> Result:
        for future in earlier:
            future.result()
        return run(tree, command)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        futures = []
        for command in commands:
            future = pool.submit(after, [makers[name] for name in command.needs], command)
            makers.update(dict.fromkeys(command.writes, future))
            futures.append(future)
        for command, future in zip(commands, futures, strict=True):
            yield command, future.result()


def compared(command: Command, before: Result, after: Result) -> tuple[list[Difference], list[Difference]]:
    """How a command's answers differ, and how its texts do."""
    allowed = [pattern for verb, pattern in (field.split(" ", 1) for field in ALLOWED) if verb == command.words[0]]
    answers = [] if before.code == after.code else [Difference("exit code", str(before.code), str(after.code))]
    answers += changes(before.answer, after.answer, allowed)
    texts = changes(before.text, after.text)
    for name in {**before.files, **after.files}:
        old, new = before.files.get(name, ""), after.files.get(name, "")
        if name.endswith(".html"):
            texts += [d._replace(pointer=f"{name} {d.pointer}") for d in changes(old, new)]
        else:
            answers += [d._replace(pointer=f"{name} {d.pointer}") for d in changes(old, new, allowed)]
    return answers, texts


def build(root: Path) -> None:
    """Builds the C parts in place, as far as there is a compiler: a tree is complete without, and slower."""
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for module in (part["name"] for part in settings["tool"]["setuptools"]["ext-modules"]):
        if not any((root / f"{module.replace('.', '/')}{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            click.echo(f"note       {root} goes on without {module}, which could not be built: {why}")


@contextmanager
def work_folder(root: Path, data: Path) -> Iterator[Tree]:
    """The folder that commands of a tree run in, with what they read."""
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        work = Path(folder).resolve()
        (work / "samples").symlink_to(root / "sample_traces")
        (work / "data").symlink_to(data)
        for name, content in INPUTS.items():
            (work / name).write_text(content, encoding="utf-8")
        build(root)
        yield Tree(root, work)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="same-answers-") as folder:
        root = Path(folder).resolve() / "tree"
        git("worktree", "add", "--detach", str(root), commit)
        try:
            yield root
        finally:
            git("worktree", "remove", "--force", str(root))


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr.strip())
    return done.stdout.strip()


def results_before(commit: str, commands: Sequence[Command], data: Path, cache: Path) -> dict[Command, Result]:
    """What a commit answers, from the cache or run now."""
    folder = cache / commit
    folder.mkdir(parents=True, exist_ok=True)
    # A result hangs on the commands that made its files as well.
    keys = {command: repr((with_needs([command], commands), INPUTS, str(data))) for command in commands}
    paths = {c: folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json" for c, key in keys.items()}
    missing = [command for command in commands if not paths[command].exists()]
    if missing:
        click.echo(f"running {len(missing)} commands of {commit[:12]}", err=True)
        with checkout(commit) as root, work_folder(root, data) as tree:
            for command, result in run_all(tree, with_needs(missing, commands)):
                part = paths[command].with_suffix(".part")
                part.write_bytes(msgspec.json.encode(result))
                part.replace(paths[command])
    return {command: msgspec.json.decode(path.read_bytes(), type=Result) for command, path in paths.items()}


def report(command: Command, answers: Sequence[Difference], texts: Sequence[Difference]) -> None:
    """Prints a line for a command, and below it what differs: of texts the first place alone."""
    verdict = "differs" if answers else "same"
    click.echo(f"{verdict:<10} {shlex.join(command.words)}{'  (text differs)' if texts else ''}")
    for difference in (*answers[:MOST_SHOWN], *(d._replace(pointer=f"text {d.pointer}") for d in texts[:1])):
        click.echo(f"    {difference.pointer or '/'}: {difference.before} -> {difference.after}")
    if len(answers) > MOST_SHOWN:
        click.echo(f"    and {len(answers) - MOST_SHOWN:,} more")


@click.command(help=(__doc__ or "").split("\n", 1)[0])
@click.argument("before_rev")
@click.option("--against", type=click.Path(exists=True, path_type=Path), default=ROOT, help="Tree to hold against it.")
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="Recorded traces.")
@click.option("--only", default="", help="Only commands with one of these words: replay,sweep.")
@click.option("--cache", type=click.Path(path_type=Path), default=Path(tempfile.gettempdir()) / "same-answers-cache")
def main(before_rev: str, against: Path, data: Path, only: str, cache: Path) -> None:
    everything = parse(COMMANDS)
    words = set(filter(None, only.split(",")))
    wanted = with_needs([c for c in everything if not words or words.intersection(c.words)], everything)
    commands = without_absent(wanted, data.resolve())
    before = results_before(git("rev-parse", f"{before_rev}^{{commit}}"), commands, data.resolve(), cache)
    differing = 0
    with work_folder(against.resolve(), data.resolve()) as tree:
        for command, after in run_all(tree, commands):
            answers, texts = compared(command, before[command], after)
            report(command, answers, texts)
            differing += bool(answers)
    for field, reason in ALLOWED.items():
        click.echo(f"allowed    {field}: {reason}")
    click.echo(f"{len(commands) - differing} of {len(commands)} commands answer the same")
    sys.exit(1 if differing or not commands else 0)


if __name__ == "__main__":
    main()
