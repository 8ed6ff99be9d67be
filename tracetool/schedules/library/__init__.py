"""One schedule per file."""
