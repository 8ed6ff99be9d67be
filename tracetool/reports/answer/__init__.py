"""An answer as text and as JSON."""
