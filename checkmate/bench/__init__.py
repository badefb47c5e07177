"""Benchmarks that anyone can reproduce: `checkmate bench NAME`. Ratios compare two measurements of
one run."""
