"""Adapters to solver packages. They take matrices, not graphs, and import their package when they
are called."""
