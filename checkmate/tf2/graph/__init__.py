"""From a training step to the graph that is planned."""
