"""Comparisons as text, as JSON and for CI."""
