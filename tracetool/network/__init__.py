"""The network as a choice: tiers, routes over shared resources, placement, collectives, traffic, and what it costs."""
