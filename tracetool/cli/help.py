"""tracetool help: topics, which are Markdown files of the package, and the help of commands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from tracetool.errors import UnknownName

TOPICS = Path(__file__).parents[1] / "help"
_LINK = re.compile(r"\[([\w-]+)\]\(\1\.md\)")
_WIDEST = 100


@click.command("help")
@click.argument("names", nargs=-1, metavar="[TOPIC|COMMAND]")
@click.pass_context
def print_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Print a topic, or the help of a command; without a name, list them.

    \b
    Examples:
      tracetool help
      tracetool help metrics
      tracetool help replay
    """
    name = " ".join(names).lower()
    if not names:
        click.echo(_listed(context))
    elif name in topics():
        _print_topic(name)
    else:
        click.echo(_of_command(context.find_root(), names))


def topics() -> dict[str, str]:
    """What each topic is about, in a line, by its name."""
    lines = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(TOPICS.glob("*.md"))}
    return {name: line.removeprefix(f"# {name}: ") for name, line in lines.items()}


def topic_text(name: str) -> str:
    """A topic as it is printed: links to others are the commands that print them."""
    return _LINK.sub(r"`tracetool help \1`", (TOPICS / f"{name}.md").read_text(encoding="utf-8"))


def _print_topic(name: str) -> None:
    if not sys.stdout.isatty():
        click.echo(topic_text(name), nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(topic_text(name), code_theme="bw"), width=min(console.width, _WIDEST))


def _listed(context: click.Context) -> str:
    root = context.find_root()
    formatter = context.make_formatter()
    for title, rows in (("Topics", topics()), ("Commands", _commands(root))):
        with formatter.section(title):
            formatter.write_dl(list(rows.items()))
    formatter.write_paragraph()
    formatter.write_text("'tracetool help NAME' prints one; a command also has --help.")
    return formatter.getvalue().rstrip()


def _commands(root: click.Context) -> dict[str, str]:
    group = root.command
    return {name: each.get_short_help_str(62) for name, each in getattr(group, "commands", {}).items()}


def _of_command(context: click.Context, names: tuple[str, ...]) -> str:
    """The help of a command, or of one below it.

    Raises:
        UnknownName: If there is none; says which topics hold the words.
    """
    root = context
    for name in names:
        below = context.command.get_command(context, name.lower()) if isinstance(context.command, click.Group) else None
        if below is None:
            raise UnknownName("topic or command", " ".join(names), [*topics(), *_commands(root)], hint=_hint(names))
        context = click.Context(below, parent=context, info_name=name.lower())
    return context.get_help()


def _hint(names: tuple[str, ...]) -> str:
    words = [name.lower() for name in names]
    texts = {name: topic_text(name).lower() for name in topics()}
    often = {name: min(map(text.count, words)) for name, text in texts.items()}
    holding = sorted((name for name in often if often[name]), key=lambda name: -often[name])
    listed = "'tracetool help' lists topics and commands"
    return f"topics with it: {', '.join(holding)}; {listed}" if holding else listed
