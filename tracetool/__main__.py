"""``python -m tracetool``, and the command ``tracetool``."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; an interruption before it is loaded ends the process without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracetool.cli import main as run

    run()


if __name__ == "__main__":
    main()
