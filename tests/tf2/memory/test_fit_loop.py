"""The peak of real `fit` loops by the allocator's count, with all that lies on the device beside
the step."""

from pathlib import Path

import pytest
from processes import found, started

PROGRAM = Path(__file__).with_name("fit_loop.py")

CASES = [
    ("adam", "arrays", "75%"),
    ("adam", "dataset", "75%"),
    ("adam", "generator", "75%"),
    ("adam", "arrays", "60%"),
    ("adam", "dataset", "60%"),
    ("adam", "generator", "60%"),
    ("ema", "arrays", "60%"),
    ("two outputs", "arrays", "75%"),
    ("accumulated", "arrays", "75%"),
]


@pytest.mark.parametrize(
    ("kind", "feed", "budget"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])],
)
def test_the_loop_stays_within_the_budget(kind, feed, budget):
    """The optimizer is made while the step is traced; the pipeline holds batches meanwhile."""
    took = found(started(PROGRAM, kind, feed, budget))
    assert took["recomputed"]
    assert took["peak_bytes"] <= took["budget_bytes"] < took["plain_peak_bytes"]
    assert took["outside_bytes"] > 0
