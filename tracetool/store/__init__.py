"""A Run on disk, and the questions that it answers in SQL."""
