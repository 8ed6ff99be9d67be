"""Sweeps as text, JSON, tables and pictures."""
