"""What a whole capture tells before any step is cut out: messages, clocks, groups, who sits where."""
