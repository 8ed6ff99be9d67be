"""DC maps by ranges, host patterns and tables; expectations are the maps read by hand."""

from __future__ import annotations

import pytest

from tracetool.errors import BadTopology
from tracetool.model.dc_map import DCMap, parse_map, parse_table

HOSTS = {0: "gpu-a1", 1: "gpu-a2", 2: "gpu-b1", 3: "gpu-b2"}
PLACES = {0: 0, 1: 0, 2: 1, 3: 1}
"""Pipeline rank of each global rank: two pipelines side by side."""


def test_ranges_count_pipeline_ranks() -> None:
    dc_map = parse_map("0,1")
    assert dc_map.counts == "pipeline ranks"
    assert dc_map.of_pipeline((1, 3), {}) == ("dc0", "dc1")
    assert dc_map.of_ranks(PLACES, {}) == {0: "dc0", 1: "dc0", 2: "dc1", 3: "dc1"}


@pytest.mark.parametrize(
    "dc_map",
    [
        parse_map("west=gpu-a*,east=gpu-b*"),
        parse_map(" west = gpu-a1+gpu-a2 , east = *b[12] "),
        parse_table("host,dc\ngpu-a*,west\ngpu-b1,east\ngpu-b2,east\n", "map.csv"),
        parse_table("rank,dc\n0,west\n1,west\n2,east\n3,east\n", "map.csv"),
        parse_table("\ufeffDC, Rank\r\neast, 3\r\neast,2\r\nwest,1\r\nwest,0\r\nwest,9\r\n", "map.csv"),
        parse_table("rank,host,dc\n0,x,west\n1,x,west\n2,x,east\n3,x,east\n", "map.csv"),
    ],
)
def test_hosts_and_tables_name_global_ranks(dc_map: DCMap) -> None:
    assert dc_map.of_pipeline((3, 1), HOSTS) == ("east", "west")
    assert dc_map.of_ranks(PLACES, HOSTS) == {0: "west", 1: "west", 2: "east", 3: "east"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("west=gpu-a*,gpu-b*", "'gpu-b*' does not say which hosts"),
        ("west=", "'west=' does not say which hosts"),
        ("west=a+,east=b", "'west=a+' holds an empty pattern"),
        ("eu-west=a*,east=b*", "'eu-west' cannot be the name of a DC"),
        ("=a*,east=b*", "'' cannot be the name of a DC"),
        ("0-1,3", "leaves out rank 2"),
    ],
)
def test_maps_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(BadTopology) as caught:
        parse_map(text)
    assert said in caught.value.message
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m.csv needs the columns rank (or host) and dc; found none"),
        ("rank,place\n0,a\n", "found rank, place"),
        ("dc\na\n", "found dc"),
        ("rank,dc\n", "m.csv lists no rank"),
        ("rank,dc\n0,a\nx,b\n", "m.csv, line 3: 'x' is no global rank"),
        ("rank,dc\n-1,a\n", "m.csv, line 2: '-1' is no global rank"),
        ("rank,dc\n0,\n", "m.csv, line 2: the dc is missing"),
        ("rank,dc\n0\n", "m.csv, line 2: the dc is missing"),
        ("host,dc\n,a\n", "m.csv, line 2: the host is missing"),
        ("rank,dc\n0,a\n0,b\n", "m.csv, line 3: rank 0 is listed before, in a"),
        ("host,dc\nx,a\nx,b\n", "m.csv, line 3: host 'x' is in a and in b"),
        ("rank,dc\n0,eu west\n", "m.csv, line 2: 'eu west' cannot be the name of a DC"),
    ],
)
def test_tables_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(BadTopology) as caught:
        parse_table(text, "m.csv")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("dc_map", "hosts", "said"),
    [
        (parse_map("w=gpu-a*"), HOSTS, "host 'gpu-b1' (rank 2) is in no DC: it matches none of gpu-a*"),
        (parse_map("w=gpu-*,e=*-b*"), HOSTS, "host 'gpu-b1' (rank 2) matches gpu-* (w) and *-b* (e)"),
        (parse_map("w=gpu-*"), {0: None, 1: "gpu-a2"}, "the traces of ranks 0, 2-3 do not say on which host"),
        (parse_map("w=gpu-*"), {**HOSTS, 3: None}, "the trace of rank 3 does not say on which host"),
        (parse_table("rank,dc\n0,a\n3,b\n", "m.csv"), HOSTS, "the DC map m.csv leaves out ranks 1-2"),
    ],
)
def test_ranks_that_a_map_does_not_place(dc_map: DCMap, hosts: dict[int, str | None], said: str) -> None:
    for ask in (lambda: dc_map.of_ranks(PLACES, hosts), lambda: dc_map.of_pipeline(range(4), hosts)):
        with pytest.raises(BadTopology) as caught:
            ask()
        assert said in caught.value.message
        assert caught.value.hint


def test_ranges_that_do_not_fit_the_pipelines() -> None:
    with pytest.raises(BadTopology, match=r"covers pipeline ranks 0..2, the pipeline has ranks 0..1"):
        parse_map("0,1,2").of_ranks(PLACES, {})
    with pytest.raises(BadTopology, match="rank 7 is in no pipeline"):
        parse_map("0,1").of_ranks({**PLACES, 7: None}, {})
