"""Where steps begin and end, which do the same work, and what crosses between data centres in one."""
