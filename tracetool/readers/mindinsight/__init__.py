"""Output of MindSpore's profiler of MindInsight's era."""
