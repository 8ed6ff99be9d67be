"""Labelled operations: NDTimeline and the straggler analysis."""
