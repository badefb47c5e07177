"""Known methods, with which the solvers are compared."""
