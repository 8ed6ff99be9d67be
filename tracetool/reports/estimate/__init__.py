"""What ``tracetool estimate`` prints: of a model, and of measured plans."""
