"""Output of the ``msprof`` command."""
