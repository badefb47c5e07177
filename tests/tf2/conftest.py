"""Fixtures of the tests with TensorFlow."""

import pytest


@pytest.fixture(scope="module")
def alone(tensorflow):
    """What else this process holds is not counted: for tests of numbers, whose budgets are shares of what a step takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("checkmate.tf2.planning.outside_bytes", lambda traced: 0)
        yield
