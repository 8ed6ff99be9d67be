"""tracetool help: topics, which are Markdown files of the package, and the help of commands.

tracetool config: which settings hold, and where they come from.

tracetool completion: what a shell needs to complete commands, options and names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from tracetool.cli.output import JSON, flag_of, next_step, print_json
from tracetool.cli.set_options import commands_with_settings, key_of, settable, shared_options
from tracetool.cli.setting_sources import find_settings, settings_in_effect
from tracetool.cli.settings import place_of
from tracetool.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.cli.set_options import SetOption

TOPICS = Path(__file__).parents[1] / "help"
_LINK = re.compile(r"\[([\w-]+)\]\(\1\.md\)")
_WIDEST = 100
_LISTED = "'tracetool help' lists topics and commands"


def _names(context: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topics and commands that begin so."""
    about = topics() | _commands(context.find_root())
    return [CompletionItem(name, help=line) for name, line in about.items() if name.startswith(incomplete)]


@click.command("help")
@click.argument("names", nargs=-1, metavar="[TOPIC|COMMAND]", shell_complete=_names)
@click.pass_context
def print_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Print a topic, or the help of a command; list them; or find the topics that speak of a word.

    \b
    Examples:
      tracetool help
      tracetool help metrics
      tracetool help replay
      tracetool help knee
    """
    name = " ".join(names).lower()
    if not names:
        click.echo(_listed(context))
    elif name in topics():
        _print_topic(name)
    elif not _is_command(context, names) and (speaking := _speaking_of(names)):
        click.echo(_topics_text(context, speaking))
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
        UnknownName: If there is none.
    """
    root = context
    for name in names:
        below = context.command.get_command(context, name.lower()) if isinstance(context.command, click.Group) else None
        if below is None:
            raise UnknownName("topic or command", " ".join(names), [*topics(), *_commands(root)], hint=_LISTED)
        context = click.Context(below, parent=context, info_name=name.lower())
    return context.get_help()


def _is_command(context: click.Context, names: tuple[str, ...]) -> bool:
    return names[0].lower() in _commands(context.find_root())


def _speaking_of(names: tuple[str, ...]) -> dict[str, str]:
    """The topics that hold all the words, by how often, each with the first line that holds one."""
    words = [name.lower() for name in names]
    texts = {name: topic_text(name) for name in topics()}
    often = {name: min(text.lower().count(word) for word in words) for name, text in texts.items()}
    holding = sorted((name for name in often if often[name]), key=lambda name: -often[name])
    return {
        name: next(line for line in texts[name].splitlines() if any(word in line.lower() for word in words))
        for name in holding
    }


def _topics_text(context: click.Context, matches: dict[str, str]) -> str:
    formatter = context.make_formatter()
    with formatter.section("Topics that speak of it"):
        formatter.write_dl([(name, line.removeprefix(f"# {name}: ").strip("-|` ")) for name, line in matches.items()])
    formatter.write_paragraph()
    formatter.write_text("'tracetool help NAME' prints one.")
    return formatter.getvalue().rstrip()


def _all_commands(context: click.Context) -> click.Group:
    group = context.find_root().command
    if not isinstance(group, click.Group):
        raise click.UsageError("no commands stand above this one.")
    return group


def _settable_commands(context: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = commands_with_settings(_all_commands(context))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [ARGS]...]", shell_complete=_settable_commands
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of tracetool.toml, for editors.")
@JSON
@click.pass_context
def config(context: click.Context, command: tuple[str, ...], *, schema: bool, as_json: bool) -> None:
    """Show which settings hold, and from which file and line; of a command: every option, and where from.

    \b
    Examples:
      tracetool config
      tracetool config replay
      tracetool config sweep x.run --hbm 80GiB
    """
    root = _all_commands(context)
    if schema:
        print_json(settings_schema(root))
        return
    if command:
        _print_rows(_held_by(context.find_root(), list(command)), as_json=as_json)
        return
    path = find_settings(Path.cwd())
    settings = settings_in_effect(root, path)
    if not settings and not as_json:
        click.echo("no settings: no tracetool.toml here or above, no [tool.tracetool] in a pyproject.toml, no variable")
        next_step("tracetool help settings", quiet=False)
        return
    held: dict[tuple[str, str], tuple[SetOption, list[str]]] = {}
    for name, of_command in settings.items():
        for setting in of_command.values():
            held.setdefault((setting.table, key_of(setting.option)), (setting, []))[1].append(name)
    rows = [["setting", "value", "from", "holds for"]]
    for (table, key), (setting, names) in held.items():
        listed = ".".join((*table.split(), key))
        rows.append([listed, _shown(setting.value), setting.where, ", ".join(names)])
    _print_rows(rows, as_json=as_json)
    next_step(f"tracetool config {next((names[0] for _, names in held.values()), 'replay')}", quiet=as_json)


def _held_by(root: click.Context, words: list[str]) -> list[list[str]]:
    """Every option of a command, its value and where that is from.

    Raises:
        UnknownName: If there is no such command.
        click.ClickException: If the words behind it are none that it takes.
    """
    commands = commands_with_settings(_all_commands(root))
    name = next((" ".join(words[:count]) for count in (1, 2) if " ".join(words[:count]) in commands), None)
    if name is None:
        raise UnknownName("command", " ".join(words), commands)
    typed = words[len(name.split()) :]
    while True:
        try:
            context = commands[name].make_context(name, list(typed), parent=root)
            break
        except click.MissingParameter as error:
            # What is asked is how options stand: what the command is about may be left out.
            if not isinstance(error.param, click.Argument):
                raise
            typed.append(error.param.human_readable_name)
    rows = [["option", "value", "from"]]
    options = (each for each in commands[name].params if isinstance(each, click.Option) and each.expose_value)
    return rows + [
        [flag_of(each), _shown(context.params[each.name or ""]), place_of(context, each)] for each in options
    ]


def settings_schema(root: click.Group) -> dict[str, Any]:
    """The JSON Schema of a file of settings.

    Args:
        root: Whose options may be set.
    """

    def closed(properties: Mapping[str, Any], about: str) -> dict[str, Any]:
        return {"description": about, "type": "object", "properties": properties, "additionalProperties": False}

    schema: dict[str, Any] = {
        key: _schema_of(next(iter(options.values()))) for key, options in shared_options(root).items()
    }
    tables: dict[str, dict[str, Any]] = {}
    for name, command in commands_with_settings(root).items():
        own = {key: _schema_of(option) for key, option in settable(command).items()}
        group, _, below = name.partition(" ")
        alone = f"tracetool {name} alone"
        tables.setdefault(group, {}).update({below: closed(own, alone)} if below else own)
    for group, held in tables.items():
        table = closed(held, f"tracetool {group} alone")
        schema[group] = {"anyOf": [schema[group], table]} if group in schema else table
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:tracetool:schema:1:config"}
    return head | {"title": "Settings"} | closed(schema, "What a project sets; the command line goes ahead of it.")


def _schema_of(option: click.Option) -> dict[str, Any]:
    if option.is_flag:
        return {"description": option.help, "type": "boolean"}
    texts: dict[str, Any] = {"type": ["string", "number"]}
    if option.multiple or "," in (option.metavar or ""):
        return {"description": option.help, "anyOf": [texts, {"type": "array", "items": texts, "minItems": 1}]}
    return {"description": option.help} | texts


def _shown(value: object) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _print_rows(rows: list[list[str]], *, as_json: bool) -> None:
    """Rows under their heads, or an object for each."""
    heads, *below = rows
    if as_json:
        keys = [head.replace(" ", "_") for head in heads]
        print_json([dict(zip(keys, row, strict=True)) for row in below])
    else:
        click.echo(_columns(rows))


def _columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what a shell needs to complete commands, options, schedules, DCs and paths.

    \b
    Examples:
      source <(tracetool completion bash)             # in ~/.bashrc; zsh alike
      tracetool completion fish > \\
          ~/.config/fish/completions/tracetool.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click completes nothing in {shell}.")
    click.echo(kind(_all_commands(context), {}, "tracetool", "_TRACETOOL_COMPLETE").source())
