"""The models of `checkmate bench zoo`, small, untrained, on made-up batches: one function each.

They are data of a benchmark, and not part of the wheel.
"""
