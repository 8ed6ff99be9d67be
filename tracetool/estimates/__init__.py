"""From shapes, or layer timings in a file, to costs of stages, messages and memory without a trace; then replayed."""
