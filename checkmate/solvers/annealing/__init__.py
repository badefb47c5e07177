"""Simulated annealing over orders of evaluations. Only this room uses numba."""
