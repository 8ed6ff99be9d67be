"""A cause of idle time is added in three files: one is, to a copy of the product, and shows wherever causes do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT, SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

EDITS = {
    "causes/cause.py": {
        "    NO_REDUCTION,\n    OPEN_CHANNEL,": "    NO_REDUCTION,\n    NO_STROLL,\n    OPEN_CHANNEL,",
        "\n\nON_LINKS = ": (
            '    STROLL = (\n        "stroll_by",\n'
            '        CauseWords("stroll", "The host took a walk.", on_path="walking"),\n'
            '        Look("#ABCDEF", "#FEDCBA", "///+", 77),\n        NO_STROLL,\n    )\n\n\nON_LINKS = '
        ),
        "    Cause.HOST,\n)": "    Cause.HOST,\n    Cause.STROLL,\n)",
    },
    "causes/chain.py": {"back.since(start_ns, Cause.HOST)": "back.since(start_ns, Cause.STROLL)"},
    "causes/removals.py": {
        "HOST_IN_TIME = ": 'NO_STROLL = HowRemoved(lambda e: replayed("a host that stays", e))\nHOST_IN_TIME = '
    },
}
"""What adding it takes: the host's lateness is its own from then on."""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("product")
    shutil.copytree(ROOT / "tracetool", root / "tracetool")
    for name, edits in EDITS.items():
        path = root / "tracetool" / name
        text = path.read_text(encoding="utf-8")
        for before, after in edits.items():
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    return root


COMMANDS = """
ingest {trace} -o x.run -q
explain x.run --json
explain x.run -q -v
sql x.run "SELECT mean_ns FROM bubbles_by_cause WHERE cause = 'stroll_by'" --json
report x.run --schedule 1f1b -o page.html
"""
SCRIPT = """
import sys
from contextlib import redirect_stdout
from shlex import split
from tracetool.cli import run
for number, line in enumerate(sys.argv[1].strip().splitlines()):
    with open(f"{number}.txt", "w") as file, redirect_stdout(file):
        assert run(split(line)) == 0
"""


# The product is copied and runs five commands. That each cause has its words, look and removal is held by default
# (test_idle, tests/explanation).
@pytest.mark.thorough
def test_a_cause_that_is_declared_once_is_everywhere(product: Path) -> None:
    assert len(EDITS) <= 3
    command = [sys.executable, "-c", SCRIPT, COMMANDS.format(trace=SAMPLES / "ascend-1f1b")]
    environment = os.environ | {"PYTHONPATH": str(product)}
    done = subprocess.run(command, cwd=product, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, explained, text, rows, _ = ((product / f"{n}.txt").read_text(encoding="utf-8") for n in range(5))

    causes = {cause["cause"]: cause for cause in json.loads(explained)["causes"]}
    assert "host" not in causes
    assert causes["stroll_by"]["meaning"] == "The host took a walk."
    assert causes["stroll_by"]["removal"]["how"].startswith("a host that stays")
    text = " ".join(text.split())
    assert "stroll: The host took a walk. Replayed: a host that stays" in text
    assert "channel 1.9%, stroll 0.2%" in text
    assert json.loads(rows) == [{"mean_ns": causes["stroll_by"]["idle"]["mean_ns"]}]

    page = (product / "page.html").read_text(encoding="utf-8")
    assert ".stroll-by { --tint: #ABCDEF; --line-of: #FEDCBA; --angle: 77deg; }" in page
    assert "#abcdef" in page  # in the picture of the recorded step
