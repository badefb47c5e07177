"""Whole programs under eager dynamic rematerialization: Keras's fit, and op logs of what ran."""

import numpy as np
import pytest
from eager_programs import MIB, above, chain, dtr, gradients, plain_peak, same

from checkmate import simulate

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_fit_run_eagerly_trains_the_same():
    import keras

    def trained(context):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [
                layers.Input((32,)),
                layers.Dense(256, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(256, "relu"),
                layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], run_eagerly=True)
        x = np.random.RandomState(0).randn(512, 32).astype("float32")
        with context() as entered:
            history = model.fit(x, np.arange(512) % 4, batch_size=256, epochs=2, verbose=0, shuffle=False).history
        return history, model.get_weights(), entered

    import contextlib

    plain = trained(contextlib.nullcontext)
    found = trained(lambda: above(2.9 * MIB))
    assert found[0] == plain[0]
    same(found[1], plain[1])
    stats = found[2].stats
    assert stats.rematerializations and stats.peak_bytes <= stats.budget_bytes, str(stats)


def test_a_recorded_log_is_a_program():
    from checkmate import tf2

    variables, loss = chain(depth=6)
    gradients(variables, loss)
    with dtr():
        gradients(variables, loss)
    _, _, peak = plain_peak(variables, loss)
    with tf2.dtr.record("chain") as recording:
        gradients(variables, loss)
    log = recording.log
    calls = [each for each in log.instructions if type(each).__name__ == "Call"]
    assert [call.op for call in calls if call.op in ("MatMul", "Tanh", "TanhGrad")].count("Tanh") == 6
    plain = simulate(log, "100%")
    assert plain.status.value == "ok" and plain.overhead < 1.01
    fixed = sum(each.bytes for each in log.instructions if type(each).__name__ == "Constant")
    assert plain.plain_peak_bytes - fixed == pytest.approx(peak, rel=0.2)
    tight = simulate(log, fixed + int(0.9 * (plain.plain_peak_bytes - fixed)))
    assert tight.rematerializations > 0
