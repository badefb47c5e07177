"""fit() in slices: history, weights and the optimizer's state of the whole batch."""

import keras
import numpy as np
import pytest
from sliced_nets import images, loss, net

import checkmate

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def fitted(optimizer, micro_batches, budget="60MiB", examples=40, dtype="float32"):
    model = net(dtype=dtype)
    metrics = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    model.compile(optimizer, loss(), **metrics, jit_compile=False)
    pictures, labels, weights = images(examples)
    if micro_batches:
        options = {"cost_model": "roofline", "verbose": False}
        checkmate.tf2.rematerialize(model, budget=budget, micro_batches=micro_batches, **options)
    history = model.fit(
        pictures, labels, sample_weight=weights, batch_size=16, epochs=2, shuffle=False, verbose=0
    ).history
    return model, history


def adam(**more):
    return keras.optimizers.Adam(0.01, **more)


def scaled():
    return keras.optimizers.LossScaleOptimizer(adam())


CASES = {
    "clipping and averages of weights": (lambda: adam(global_clipnorm=0.5, use_ema=True), {}),
    "Keras's own accumulation": (lambda: adam(gradient_accumulation_steps=2), {}),
    "loss scaling": (scaled, {"dtype": "mixed_float16"}),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case == "loss scaling" else pytest.mark.long)
        for case in CASES
    ],
)
def test_fit_in_slices_is_fit(case):
    make, more = CASES[case]
    ours, history = fitted(make(), 4, **more)
    plain, expected = fitted(make(), None, **more)
    tolerance = 1e-2 if more else 2e-5
    assert history.keys() == expected.keys()
    for key, values in history.items():
        np.testing.assert_allclose(values, expected[key], rtol=tolerance, err_msg=key)
    micro = checkmate.tf2.planned(ours).report().micro_batches
    assert (micro.count, micro.size) == (4, 4)
    iterations = [int(each.optimizer.iterations) for each in (ours, plain)]
    assert iterations[0] == iterations[1]
    for one, other in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=tolerance)
