"""The cheapest path through the states of memory: exact where ops are few."""
