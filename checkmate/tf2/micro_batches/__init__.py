"""A step whose batch runs in slices, one after another, with one update."""
