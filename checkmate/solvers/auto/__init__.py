"""The default solver: bounds from a relaxation, plans from its solutions, improved by annealing."""
