"""What a recording holds and lacks."""
