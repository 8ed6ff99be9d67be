"""How long an action takes and how many bytes it holds and sends."""
