"""The problem and the answer: graph, schedule, plan, and the judge. Standard library and NumPy
only; networkx inside two functions."""
