"""Output of torch_npu's profiler."""
