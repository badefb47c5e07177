"""What the problem and the answer are: graph, schedule, plan, and the judge. Standard library and
NumPy only."""
