"""Settings of published papers, rebuilt from public facts: what they report, and where it can arise in a model."""
