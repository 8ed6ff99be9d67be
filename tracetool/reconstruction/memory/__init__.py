"""Memory of each rank by action, from the allocator's log."""
