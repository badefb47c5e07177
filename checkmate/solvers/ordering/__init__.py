"""Plans, and bounds, for other orders of ops than the graph's own."""
