"""What the tools of Ascend's CANN have in common: their texts, databases, timelines and communication records."""
