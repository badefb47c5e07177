"""The models of the zoo in slices: each gives the results of the whole batch, or names what binds
its examples together."""

from __future__ import annotations

import contextlib

import pytest
import tensorflow as tf
from programs import double
from slices_oracle import in_slices
from zoo_steps import step_and_batch

IN_CI = ("super_resolution", "siamese")
"""Of the others there are many: they are marked long."""

SPLIT = (
    *("encoder", "lstm", "decoder", "seq2seq", "bidirectional_gru", "attention_lstm", "fourier"),
    *("vit", "mixer", "vae", "diffusion_unet", "super_resolution", "bag_of_words"),
    *("time_distributed", "conv1d", "shapes", "stacked_cells", "float64", "regularized"),
    *("branching", "keras2_lstm", "text"),
)

BOUND = {
    "unet": "batch_normalization",
    "siamese": "sequential",
    "segmentation": "batch_normalization",
    "recommender": "batch_normalization",
    "conv_lstm": "batch_normalization",
    "conv3d": "batch_normalization",
    "normalizations": "batch_normalization",
    "mixed_float16": "batch_normalization",
    "mixed_bfloat16": "batch_normalization",
    "preprocessing": "batch_normalization",
    "frozen": "batch_normalization",
    "codebook": "batch_normalization",
    "keras2_images": "batch_normalization",
    "experts": "experts",  # the mean over all examples, squared
    "multi_output": "",  # a quotient of sums over all examples
    "custom_gradients": "dense",  # a norm of all examples' gradients
    "loops": "loops",  # a condition on a mean, and a scan over examples
    "linear_algebra": "",  # losses sorted
    "dynamic_shapes": "",  # sizes known only when the step runs
    "python_calls": "lambda",  # a function of NumPy
    "module": "network",  # a moving average, read after it is written
    "gan": "conv2d",  # a network that has been updated in the same step
    "speech": "ctc",  # a loop for which there is no rule
}
"""Model -> part of the name of the layer that binds its examples together."""


def doubled(leaf):
    return tf.cast(leaf, tf.float64) if leaf.dtype.is_floating else leaf


def marked(names):
    """The names, each marked as slow, or as long."""
    marks = {name: pytest.mark.slow if name in IN_CI else pytest.mark.long for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", marked(SPLIT))
def test_a_model_gives_the_results_of_the_whole_batch(tensorflow, name):
    """In float64, as some gradients are zero but for rounding. An optimizer that takes signs or
    quotients of such a gradient has any result, so updates are not compared."""
    in_float32 = name in (
        "regularized",
        "super_resolution",
        "keras2_lstm",
    )  # numbers of their own in float32
    with contextlib.nullcontext() if in_float32 else double():
        step, batch = step_and_batch(name)
        if not in_float32:
            batch = tensorflow.nest.map_structure(doubled, batch)
        found = in_slices(step, batch, 2, tolerance=1e-4 if in_float32 else 1e-5)
    wrong = [line for line in found.errors if " results: " in line]
    assert found.binding is None and found.compared > 10
    assert not wrong


@pytest.mark.own_process  # the zoo's losses keep the type of numbers of the test that loads them
@pytest.mark.parametrize("name", marked(BOUND))
def test_a_model_names_what_binds_its_examples(tensorflow, name):
    found = in_slices(*step_and_batch(name), 2)
    assert BOUND[name] in found.binding.layer
