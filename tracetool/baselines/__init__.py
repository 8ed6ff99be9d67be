"""A history of reports in one file, and whether a figure has taken a step in it."""
