"""What memory a step has, what else lies in it, and what the plain step takes of it."""
