"""Dynamic tensor rematerialization (DTR): no plan in advance; evict by a score when memory runs
short, recompute on demand."""
