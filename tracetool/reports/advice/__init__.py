"""Advice as text and as JSON."""
