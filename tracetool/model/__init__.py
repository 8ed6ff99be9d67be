"""The nouns: pure values without input or output."""
