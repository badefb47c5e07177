"""Variables come back to the bit: after verify, and after a step that ran out of memory."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training import planned_function

from checkmate.tf2.execution.undo import Undo, kept_state

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "bool"]
)
def test_values_come_back_to_the_bit(dtype):
    special = (
        [0.0, -0.0, 1.5, -3.25, 65504.0, np.inf, np.nan]
        if "float" in dtype
        else [0, 1, 1, 0, 1, 0, 1]
    )
    for values in (special, special[2:5]):
        variable = tf.Variable(tf.cast(tf.constant(values), dtype), dtype=dtype)
        before = variable.numpy()
        with kept_state([variable]):
            variable.assign(tf.zeros_like(variable))
        assert variable.numpy().tobytes() == before.tobytes()
        with pytest.raises(KeyError), kept_state([variable]):
            variable.assign(tf.ones_like(variable))
            raise KeyError
        assert variable.numpy().tobytes() == before.tobytes()


def test_an_interrupt_waits_until_all_values_are_back(monkeypatch):
    from checkmate.tf2.execution import undo

    variables = [tf.Variable(tf.ones((4,)) * k) for k in range(6)]
    put_back, calls = undo.put_back, []

    def interrupted(variable, value):
        calls.append(variable)
        if len(calls) in (3, 4):  # people press Ctrl-C twice
            raise KeyboardInterrupt
        put_back(variable, value)

    monkeypatch.setattr(undo, "put_back", interrupted)
    with pytest.raises(KeyboardInterrupt), undo.kept_state(variables):
        for variable in variables:
            variable.assign(-tf.ones((4,)))
    for k, variable in enumerate(variables):
        np.testing.assert_array_equal(variable.numpy(), k)


def planned_step():
    """A step that counts before its memory is highest, and updates weights after."""
    weights = [
        tf.Variable(tf.random.stateless_normal((256, 256), (k, 1)) / 16, name=f"weight_{k}")
        for k in range(8)
    ]
    count = tf.Variable(0, dtype=tf.int64, name="count")

    def step(x):
        count.assign_add(1)
        with tf.GradientTape() as tape:
            h = x
            for weight in weights:
                h = tf.tanh(h @ weight)
            loss = tf.reduce_mean(h * h)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal((1024, 256), (1, 2))
    return planned_function(step, x, budget="70%").planned, x, [count], weights


def failing(planned, name):
    """The error of an evaluation of this op that ran out of memory."""
    message = f"OOM when allocating tensor\n\t [[{{{{node planned/{name}}}}}]]"
    return tf.errors.ResourceExhaustedError(None, None, message)


def test_what_was_written_before_memory_ran_out_is_put_back():
    planned, _, early, weights = planned_step()
    before = [v.numpy() for v in early]
    undo = Undo.before(planned.run, planned.traced)
    assert {id(v) for v, _ in undo.copies} >= {id(v) for v in early}
    assert len(undo.copies) < len(weights) / 2, "weights are updated after the peak"
    for variable in early:
        variable.assign_add(tf.ones_like(variable))
    highest = next(n for n in undo.places if "gradient_tape" in n and "evaluation_0" in n)
    assert undo.undo(failing(planned, highest)) == ([], [])
    for variable, value in zip(early, before, strict=True):
        assert variable.numpy().tobytes() == value.tobytes()


def test_what_cannot_be_put_back_is_named():
    planned, _, _, weights = planned_step()
    undo = Undo.before(planned.run, planned.traced)
    last = max(undo.places, key=undo.places.__getitem__)
    changed, effects = undo.undo(failing(planned, last))
    kept = {v.name for v, _ in undo.copies}
    assert set(changed) == {v.name for v in weights} - kept and not effects
    assert undo.undo(failing(planned, "a name of no op"))[0] == changed
