"""The Python function behind a step."""

import pytest
import tensorflow as tf

from checkmate.tf2.graph.trace import python_of

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("autograph", [True, False])
def test_tensorflow_says_whether_control_flow_is_converted(autograph):
    def step(x):
        return x

    function = tf.function(step, autograph=autograph)
    assert hasattr(function, "_autograph")
    assert python_of(function) == (step, autograph)
    assert python_of(step) == (step, True)
