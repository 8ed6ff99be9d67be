"""The schedule picture."""
