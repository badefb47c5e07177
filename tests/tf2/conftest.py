"""Fixtures of the tests with TensorFlow."""

import pytest


@pytest.fixture(scope="module")
def alone(tensorflow):
    """What else this process holds is not counted: for tests of numbers, whose budgets are shares of what a step takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("checkmate.tf2.planning.outside_bytes", lambda traced: 0)
        yield


@pytest.fixture
def predicted(monkeypatch):
    """The plain step is not measured: for tests in which budgets and peaks are given."""
    from dense import not_measured

    monkeypatch.setattr("checkmate.tf2.attempt.measured", not_measured)
