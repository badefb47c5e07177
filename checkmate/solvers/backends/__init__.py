"""Adapters to solver packages. They see matrices, never graphs, and import their package when they
are called."""
