"""What single papers published, replayed."""
