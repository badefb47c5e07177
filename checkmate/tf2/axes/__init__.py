"""Which values of a training step belong to single examples, so that a batch can run in slices."""
