"""Tables that anyone can reproduce: `python -m benchmarks`. Not installed."""
