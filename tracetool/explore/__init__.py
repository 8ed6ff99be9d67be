"""Explore: placement, schedule and network of a job together, judged by replay and pruned by bounds."""
