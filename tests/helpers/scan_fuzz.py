"""Try built ``_scan`` modules on random text: ``python -m helpers.scan_fuzz SEED CASES EVERY MODULE...``.

To be run in ``tests``; CASES may be ``60s``. A long text is cut off at each EVERYth of its bytes.

A script of its own, so that modules built with sanitizers can run under the preloaded library they need; for several
modules at once, because Python is slow to start there.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

from helpers.event_reference import Found, as_found, find
from helpers.event_soup import FIELDS, OWN_KEYS, WANTED, Soup, crowd

from tracetool.readers.chrome.compiled import Window

if TYPE_CHECKING:
    from random import Random

    from helpers.event_reference import Fields

    from tracetool.readers.chrome._scan import Scanner
    from tracetool.readers.chrome.compiled import Kind


_LONG = b",".join([b'{"ph":"X","cat":"kernel","name":"%b","x":"%b"}' % (b"n" * 100, b"x" * 100)] * 6)
"""Text that ends where comparing it with text from before would go on."""


def load(path: str) -> list[tuple[Fields, Scanner]]:
    """Scanners from a module at this path, with their fields."""
    name = "tracetool.readers.chrome._scan"
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return [
        (fields, module.Scanner([(key.encode(), kind, in_args) for key, kind, in_args in fields], WANTED))
        for fields in (FIELDS, OWN_KEYS, OWN_KEYS)
    ]


def soup_text(random: Random) -> bytes:
    """Text of one case, mostly with something wrong in it."""
    soup = Soup(random, random.choice([0.0, 0.0, 0.0, 0.02]))
    text = soup.alike() if random.random() < 0.4 else soup.text()
    return text if random.random() < 0.5 else soup.damaged(text)


def check(scanner: Scanner, fields: Fields, text: bytes) -> Found:
    """The scanner's answer, after comparing it with the reference.

    Bytes have a zero after them and small objects hold their content: here the text ends where its allocation does.
    """
    start = max(0, 64 - len(text))
    text = bytes(start) + text
    room: Any = (ctypes.c_char * len(text)).from_buffer_copy(text)
    found = as_found(Window(*scanner.scan(room, start, len(text))), fields)
    assert found == _expected(text, start, tuple(fields)), text
    return found


@cache
def _expected(text: bytes, start: int, fields: tuple[tuple[str, Kind, bool], ...]) -> Found:
    """What the reference finds: modules get the same cases, and under sanitizers it takes most of the time."""
    return find(text, start, len(text), fields, WANTED)


def main(seed: int, cases: str, every: int, path: str) -> None:
    """Run the cases on one module, and say how many those were."""
    scanners = load(path)
    rng = random.Random(seed)  # noqa: S311 - cases of a test, repeatable
    for fields, scanner in scanners[:2]:
        check(scanner, fields, crowd(2000))
        for cut in range(0, len(_LONG), every):
            check(scanner, fields, _LONG[:cut])
    until = time.monotonic() + float(cases[:-1]) if cases.endswith("s") else None
    count = taken = declined = 0
    while time.monotonic() < until if until is not None else count < int(cases):
        text = soup_text(rng)
        fields, scanner = rng.choice(scanners)
        found = check(scanner, fields, text[: rng.choice([len(text), len(text), rng.randint(0, len(text))])])
        count += 1
        taken += found.rows + found.skipped.total()
        declined += found.status == 1
    sys.stdout.write(f"{count} cases, {taken} events taken, {declined} declined\n")


if __name__ == "__main__":
    for module in sys.argv[4:]:
        sys.stderr.write(f"{module}\n")
        main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), module)
