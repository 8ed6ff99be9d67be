"""Tables as people read them: 80 columns whatever the names, and nothing lost of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES
from hypothesis import given
from hypothesis import strategies as st

from tracetool.cli import run
from tracetool.reports.answer.text import table

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")


@given(
    names=st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=120), min_size=1),
    cells=st.lists(st.integers(0, 10**9), min_size=1, max_size=4),
    width=st.integers(70, 120),
)
def test_tables_fit_and_lose_nothing(names: list[str], cells: list[int], width: int) -> None:
    figures = [str(cell) for cell in cells]
    lines = table([["", *figures], *([name, *figures] for name in names)], width)
    assert max(map(len, lines)) <= width
    ends = "".join(f"  {figure}" for figure in figures)
    seen = [""]
    for line in lines[1:]:
        seen[-1] += line.removesuffix(ends).strip()
        if line.endswith(ends):
            seen.append("")
    assert seen == [*names, ""]


@pytest.mark.parametrize("name", ["an-order-for-two-data-centres-over-a-thin-link-with-a-long-name.csv", "x" * 90])
def test_every_line_of_a_report_fits_whatever_the_names(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["schedules", "gpipe", "--csv"]) == 0
    order = tmp_path / name
    order.write_text(capsys.readouterr().out, encoding="utf-8")
    link = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--hbm", "80GiB"]
    assert run(["replay", SAMPLE, "--schedule", f"csv:{order},zb-h1", *link, "-q", "-v"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[1:])) <= 80
    head = next(line for line in text.splitlines() if line.endswith("fits"))
    assert [line for line in text.splitlines() if line.endswith("  yes") and len(line) == len(head)]
    # What a rank needs beyond its peak is the recording's: it stands there once for all.
    assert text.count("needed beyond it") == 1
    assert " ".join(text.split()).count("(the same for all results)") == 1


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_against_a_limit_a_result_is_told_by_what_it_needs(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """v-min peaks at 11.80 GiB and lacks 429.91 MiB (0.42 GiB) of 12 GiB: what stands beside NO is above the limit."""
    monkeypatch.setenv("COLUMNS", str(columns))
    link = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--hbm", "12GiB"]
    assert run(["replay", SAMPLE, "--schedule", "v-min", "--p2p", "per-edge", *link, "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("  v-min "))
    assert row.endswith(" NO")
    assert "12.42 GiB" in row
    head = next(line for line in lines if line.endswith("fits"))
    left_out = next((line for line in lines if line.startswith("  no room: ")), "")
    for name in ("transfers", "bubble", "peak HBM", "needs"):
        assert (name in head) != (name in left_out)


def test_offers_keep_their_errors_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    link = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", "--or", "100Gbit/s,10ms=9000EUR/month"]
    assert run(["advise", SAMPLE, "--schedule", "1f1b", *link, "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.lstrip().startswith("offer"))
    assert "±" in head
    assert max(map(len, lines)) <= 60
