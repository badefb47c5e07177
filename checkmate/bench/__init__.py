"""Tables that anyone can reproduce: `checkmate bench NAME`. Ratios are of two things measured in
one run."""
