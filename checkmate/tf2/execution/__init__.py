"""From a plan to the TensorFlow ops that run it."""
