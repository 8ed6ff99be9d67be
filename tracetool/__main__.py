"""``python -m tracetool``, and the command ``tracetool``."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

from tracetool.version import VERSION_LINE


def main() -> None:
    """Run the command line; an interruption before it is loaded ends the process without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] == ["--version"]:
        # Scripts ask for it again and again: all commands need not be loaded to say it, but to say why it cannot be.
        with suppress(OSError):
            print(VERSION_LINE, flush=True)  # noqa: T201 - a command's answer
            return
    from tracetool.cli import main as run

    run()


if __name__ == "__main__":
    main()
