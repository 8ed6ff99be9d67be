"""Explanations as text and as JSON."""
