"""Checks of predictions and of histories: validation, stragglers, trends."""
