"""The compiled engine (``_engine.c``); arrays are int32, times int64."""

from tracetool.replays.flow import Bytes, Floats, Int8s, Int32s, Int64s

def order(first: Int32s, at: Int32s, out: Int32s, /) -> int: ...
def run(
    first: Int32s,
    at: Int32s,
    durations: Int64s,
    link_of: Int32s,
    links: int,
    heads: Int32s | None,
    start: Int64s,
    end: Int64s,
    slow: tuple[Int64s, Int8s, Int32s, Int32s, Floats, Floats] | None,
    /,
) -> int: ...
def sweep(
    order: Int32s,
    first: Int32s,
    at: Int32s,
    class_of: Int32s,
    base: Int64s,
    varying: Int32s,
    values: Int64s,
    wanted: Int32s,
    earlier: Int32s,
    later: Int32s,
    out: Int64s,
    failed: Bytes,
    from_: int,
    to: int,
    /,
) -> None: ...
