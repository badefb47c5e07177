"""`python -m benchmarks foreign`: its verdict of each answer, and two programs."""

import pytest

from benchmarks import foreign

MIB = 2**20
TRAINED = {
    "plain_bytes": 100 * MIB,
    "budget_bytes": 60 * MIB,
    "peak_bytes": 59 * MIB,
    "difference": 0.0,
    "values": "bits",
}
REFUSED = {"refused": "proven", "message": "No.", "op": "conv", "named_bytes": 70 * MIB}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (TRAINED, "trained"),
        ({**TRAINED, "peak_bytes": 63 * MIB}, "trained, OVER by 5.0%"),
        ({**TRAINED, "difference": 0.1}, "trained, OTHER VALUES"),
        ({**TRAINED, "values": "DIFFERENT"}, "trained, OTHER VALUES"),
        ({**REFUSED, "named_peak_bytes": 70 * MIB}, "refused (proven; 70.0 MiB named, holds) conv"),
        (
            {**REFUSED, "named_peak_bytes": 71 * MIB},
            "refused (proven; 70.0 MiB named, NOT kept) conv",
        ),
        ({**REFUSED, "named_error": "No."}, "refused (proven; 70.0 MiB named, NOT accepted) conv"),
        (
            {**REFUSED, "named_bytes": None, "refused": "not found"},
            "refused (not found; no budget named) conv",
        ),
        ({"error": "It broke."}, "FAILED: It broke."),
    ],
)
def test_answers(row, answer):
    assert foreign.answer(row) == answer


@pytest.mark.slow
def test_programs_train_within_a_budget(tensorflow):
    """One with its own training step, one of tf_keras, whose U-Net must compute something again:
    of the other, another order alone may need less than 80 %."""
    pytest.importorskip("tf_keras")
    rows = [each for name in ("dcgan", "keras2_unet") for each in foreign.measure(name, "80%", 2)]
    assert [foreign.answer(row) for row in rows] == ["trained"] * 2, rows
    assert rows[-1]["recomputed"], rows
