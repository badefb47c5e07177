"""The workloads: those without BatchNormalization, and the shapes of predictions."""

import keras
import numpy as np
import pytest

from benchmarks.models import layer_normalized, super_resolution
from checkmate.demo import models


def small_unet(normalized):
    return models.unet(batch=2, size=32, widths=(4, 8), normalized=normalized)


@pytest.mark.parametrize(
    ("make", "alone"),
    [
        (lambda: layer_normalized("MobileNet", batch=2, size=32), True),
        (lambda: models.application("MobileNet", batch=2, size=32), False),
        (lambda: small_unet(False), True),
        (lambda: small_unet(True), False),
    ],
)
def test_without_batch_normalization_no_example_changes_another(tensorflow, make, alone):
    """While it trains; with BatchNormalization each one does."""
    keras.utils.set_random_seed(0)
    work = make()
    for layer in work.model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    both = work.model(work.inputs, training=True)[:1]
    one = work.model(work.inputs[:1], training=True)
    assert np.allclose(both, one, rtol=1e-3, atol=1e-6) == alone


def test_a_classifier_predicts_once_for_the_whole_sequence(tensorflow):
    work = models.transformer(batch=2, length=6, width=64, depth=1, words=20, classes=3)
    assert work.model(work.inputs).shape == (2, 3)
    assert work.labels.shape == (2,)
    assert int(tensorflow.reduce_max(work.labels)) < 3


def test_super_resolution_predicts_an_image_of_the_labels_size(tensorflow):
    work = super_resolution(batch=2, size=8, scale=4)
    assert work.model(work.inputs).shape == work.labels.shape == (2, 32, 32, 3)
