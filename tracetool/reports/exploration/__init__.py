"""What ``tracetool explore`` prints."""
