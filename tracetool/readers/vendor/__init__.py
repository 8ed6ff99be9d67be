"""Figures of the vendor's own cluster analysis."""
