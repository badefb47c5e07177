"""Small steps whose values depend on the batch's size, on other examples or on positions: in slices
of the batch they are the same, or refused; never other."""

from __future__ import annotations

import pytest
import tensorflow as tf
from slices_oracle import in_slices
from small_steps import OTHER_EXAMPLES, STEPS

pytestmark = pytest.mark.usefixtures("tensorflow")

REFUSED = {
    *("mean of masked", "h[-1:]", "h[:5]", "h[::2]", "both reversed", "eye(n) @ h", "diag @ h"),
    *("one_hot(range(n)) @ h", "reshape, then times"),
    *("each of two", "batch twice, cut", "tiled", "map_fn", "diagonal", "cut to longest"),
    *("words in a row", "state of each", "optional of two"),
}
"""Steps that could be split exactly, and for which there is no rule."""


def check(name: str, examples: int) -> None:
    step, batch = STEPS[name]()
    found = in_slices(tf.function(step, autograph=False), batch, examples)
    if found.binding is not None:
        assert name in REFUSED or name in OTHER_EXAMPLES, found.binding.sentence
    else:
        assert name not in REFUSED
        assert not found.errors


@pytest.mark.parametrize("name", STEPS)
def test_a_step_in_slices_of_five_and_two_is_the_same_or_refused(name):
    check(name, 5)


@pytest.mark.slow
@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_in_equal_slices_is_the_same_or_refused(name, examples):
    check(name, examples)


def test_there_are_steps_of_every_kind():
    """As many as are refused are split, so that a refusal of all would be seen."""
    assert len(STEPS) > 150 and len({*REFUSED, *OTHER_EXAMPLES}) < len(STEPS) / 2
    assert STEPS.keys() >= REFUSED | set(OTHER_EXAMPLES)
