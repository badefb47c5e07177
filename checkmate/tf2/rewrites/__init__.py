"""Ways to write a training step otherwise: the same numbers in less memory, or in less time."""
