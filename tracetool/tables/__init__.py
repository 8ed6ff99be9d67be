"""Every table and its columns, declared once."""
