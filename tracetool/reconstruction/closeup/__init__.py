"""Actions kernel by kernel: layers, halves of backwards, slowdown, launches."""
