"""Command lines of README and of help's topics, and what they print: ``python -m helpers.documented`` renews that."""

from __future__ import annotations

import io
import os
import re
import shlex
from contextlib import chdir, redirect_stdout
from typing import TYPE_CHECKING

from helpers.recorded import ROOT

from tracetool.cli import run
from tracetool.cli.help import TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

README = ROOT / "README.md"
DOCUMENTS = (README, *sorted(TOPICS.glob("*.md")))
PICTURE = ROOT / "sample_traces" / "gantt.png"
DRAWN = [
    "replay", "sample_traces/h100-1f1b", "--schedule", "geopipe", "--extra-forwards", "2,2,0,0",
    "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms",
]  # fmt: skip
COLOURS = 96
"""Of the picture's palette: as many as keep it small and its edges smooth."""

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_SHOWN = re.compile(r"(?<=^```sh\n)([^`]*?)(\n```\n\n```text\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def text_of(document: Path) -> str:
    """A document as it stands."""
    return document.read_text(encoding="utf-8")


def inline_code(text: str) -> list[str]:
    """What stands between backticks outside blocks, on one line each."""
    return [" ".join(code.split()) for code in _INLINE.findall(_FENCED.sub("", text))]


def commands(text: str) -> list[list[str]]:
    """The arguments of every command line of tracetool, those of shell blocks first."""
    blocks = [line for kind, block in _FENCED.findall(text) if kind == "sh" for line in _lines(block)]
    return [_arguments(line) for line in (*blocks, *inline_code(text)) if _is_ours(line)]


def shown(text: str) -> list[tuple[list[str], str]]:
    """Commands with what the document says that they print: a block of text right behind one of shell."""
    return [(_asked(block), output) for block, _, output in _SHOWN.findall(text)]


def renewed(text: str, printed: Callable[[list[str]], str]) -> str:
    """A document with what its commands print now."""
    return _SHOWN.sub(lambda found: found[1] + found[2] + printed(_asked(found[1])), text)


def _asked(block: str) -> list[str]:
    (line,) = (line for line in _lines(block) if _is_ours(line))
    return _arguments(line)


def _lines(block: str) -> list[str]:
    return [part.strip() for line in block.replace("\\\n", " ").splitlines() for part in line.split("&&")]


def _is_ours(line: str) -> bool:
    return line.removeprefix(".venv/bin/").startswith("tracetool ")


def _arguments(line: str) -> list[str]:
    words = shlex.split(line)
    return words[1 : words.index(">") if ">" in words else None]


def _printed(arguments: list[str]) -> str:
    with chdir(ROOT), redirect_stdout(io.StringIO()) as out:
        if run(arguments) != 0:
            raise SystemExit(f"tracetool {shlex.join(arguments)} failed")
    return out.getvalue()


def _draw() -> None:
    from PIL import Image

    _printed([*DRAWN, "-o", str(PICTURE), "--force", "-q"])
    with Image.open(PICTURE) as drawn:
        reduced = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    reduced.save(PICTURE, optimize=True)


def _write() -> None:
    os.environ["COLUMNS"] = "80"
    for document in DOCUMENTS:
        document.write_text(renewed(text_of(document), _printed), encoding="utf-8")
    _draw()


if __name__ == "__main__":
    _write()
