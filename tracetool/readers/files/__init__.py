"""Bytes of trace files, whatever their format: streams, archives, rows that wait on disk."""
