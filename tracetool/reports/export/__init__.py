"""Answers in formats of other tools."""
