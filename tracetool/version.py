"""The version of this tool."""

__version__ = "0.1.0"
