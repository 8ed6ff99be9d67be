"""``python -m tracetool``."""

from tracetool.cli import main

main()
