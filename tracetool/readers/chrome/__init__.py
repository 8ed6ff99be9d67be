"""Chrome's trace format: a scanner of events in columns, in Python and in C."""
