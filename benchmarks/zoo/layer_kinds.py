"""Small models, one for each kind of layer, of number and of optimizer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import (
    CROSS_ENTROPY,
    convolutions,
    normal,
    on_images,
    on_vectors,
    whole,
)
from checkmate.tf2.models import Workload


def normalizations() -> Workload:
    """Separable and depthwise convolutions with group, spectral, unit and layer normalization."""
    layers = [
        L.SpectralNormalization(L.Conv2D(16, 3, padding="same")),
        L.ELU(),
        L.SeparableConv2D(32, 3, padding="same"),
        L.GroupNormalization(8),
        L.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
        L.LayerNormalization(),
        L.Activation("mish"),
        L.UnitNormalization(),
        L.Conv2D(32, 3, padding="same", groups=4),
        L.BatchNormalization(renorm=False),
        L.Activation("hard_swish"),
        L.AveragePooling2D(2),
    ]
    return on_images(layers, name="normalizations")


def shapes(batch: int = 64) -> Workload:
    """Layers that reshape and combine: Lambda, Permute, RepeatVector, Dot, Reshape, cropping,
    padding, slices, stacks, Masking."""
    sequence = keras.Input((20, 16))
    x = L.Masking()(sequence)
    x = L.Lambda(lambda x: x - tf.reduce_mean(x, 1, keepdims=True))(x)
    y = L.Permute((2, 1))(L.ZeroPadding1D(2)(L.Cropping1D(2)(x)))
    z = L.Dot(axes=(2, 1))([x, y])
    z = L.Concatenate()(
        [
            z,
            L.RepeatVector(20)(L.GlobalAveragePooling1D()(x)),
            keras.ops.flip(x, 1),
            keras.ops.stack([x, x + 1], -1)[..., 0],
        ]
    )
    z = L.Activation("softmax")(L.Reshape((40, -1))(L.Dense(64)(z)))
    z = keras.ops.concatenate(
        [part * k for k, part in enumerate(keras.ops.split(z, 4, axis=1), start=1)], axis=-1
    )
    z = keras.ops.where(z > 0.01, z, keras.ops.sqrt(keras.ops.abs(z) + 1e-3))
    model = keras.Model(sequence, L.Dense(10)(L.Flatten()(L.AveragePooling1D(2)(z))), name="shapes")
    return Workload(model, CROSS_ENTROPY, normal(batch, 20, 16), whole(batch, below=10))


def stateful_rnn(batch: int = 32) -> Workload:
    """Stateful LSTM and GRU, and an unrolled LSTM."""
    sequence = keras.Input((16, 8), batch_size=batch)
    x = L.LSTM(32, return_sequences=True, stateful=True)(sequence)
    x = L.Dense(256, activation="tanh")(x)
    x = L.GRU(32, return_sequences=True, stateful=True, reset_after=False)(x)
    x = L.Dense(256, activation="tanh")(x)
    x = L.LSTM(16, unroll=True, dropout=0.1, recurrent_dropout=0.1)(x)
    model = keras.Model(sequence, L.Dense(10)(x), name="stateful_rnn")
    return Workload(
        model,
        CROSS_ENTROPY,
        normal(batch, 16, 8),
        whole(batch, below=10),
        keras.optimizers.Adam(clipnorm=1.0),
    )


def stacked_cells(batch: int = 32) -> Workload:
    """RNN over stacked cells, one of them custom."""

    class Cell(L.Layer):
        state_size = output_size = 24

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 24))
            self.again = self.add_weight(shape=(24, 24), initializer="orthogonal")

        def call(self, x: Any, states: Any) -> Any:
            state = keras.ops.tanh(x @ self.kernel + states[0] @ self.again)
            return state, [state]

    sequence = keras.Input((20, 16))
    x = L.RNN([L.LSTMCell(32), Cell(), L.GRUCell(16)], return_sequences=True)(
        L.Dense(128, activation="relu")(sequence)
    )
    model = keras.Model(
        sequence,
        L.Dense(10)(L.SimpleRNN(16, go_backwards=True)(L.Dense(128, activation="relu")(x))),
        name="stacked_cells",
    )
    return Workload(model, CROSS_ENTROPY, normal(batch, 20, 16), whole(batch, below=10))


class _policy:
    """The dtype policy of the layers built in the block."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(self.name)

    def __exit__(self, *exception: Any) -> None:
        keras.mixed_precision.set_dtype_policy(self.before)


def mixed_float16() -> Workload:
    """Half precision with a scaled loss."""
    with _policy("mixed_float16"):
        return on_images(
            convolutions(),
            name="mixed_float16",
            optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        )


def mixed_bfloat16() -> Workload:
    """bfloat16 with float32 variables."""
    with _policy("mixed_bfloat16"):
        return on_images(convolutions(), name="mixed_bfloat16")


def float64() -> Workload:
    """Double precision throughout."""
    with _policy("float64"):
        return on_vectors([L.Dense(128, activation="tanh") for _ in range(3)], name="float64")


def preprocessing() -> Workload:
    """Random crops, flips, turns and contrasts within the model, and normalization."""
    normalization = L.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0])
    layers = [
        L.Rescaling(0.5, 0.1),
        normalization,
        L.RandomFlip(seed=1),
        L.RandomRotation(0.1, seed=2),
        L.RandomTranslation(0.1, 0.1, seed=3),
        L.RandomZoom(0.1, seed=4),
        L.RandomContrast(0.1, seed=5),
        L.RandomCrop(40, 40, seed=6),
        *convolutions(),
        L.GaussianNoise(0.1, seed=7),
        L.GaussianDropout(0.1, seed=8),
        L.AlphaDropout(0.1, seed=9),
    ]
    return on_images(layers, name="preprocessing", size=48)


def regularized() -> Workload:
    """Regularizers of weights and activities, constraints, and an optimizer that clips, averages
    and accumulates."""
    options = {
        "kernel_regularizer": keras.regularizers.L1L2(1e-4, 1e-4),
        "kernel_constraint": keras.constraints.MaxNorm(2.0),
    }
    layers = [
        L.Dense(128, activation="relu", **options),
        L.ActivityRegularization(1e-5, 1e-5),
        L.Dense(128, activation="selu", bias_regularizer="l2", kernel_constraint="unit_norm"),
        L.Dense(128, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(1e-3)),
        L.Activation("softplus"),
    ]
    optimizer = keras.optimizers.Adam(
        global_clipnorm=1.0, use_ema=True, gradient_accumulation_steps=2, weight_decay=1e-3
    )
    return on_vectors(layers, name="regularized", optimizer=optimizer)


def frozen() -> Workload:
    """A backbone of which only the last block is trained, and a decaying learning rate."""
    layers = convolutions()
    for layer in layers[:-3]:
        layer.trainable = False
    rate = keras.optimizers.schedules.CosineDecay(1e-3, 100)
    return on_images(layers, name="frozen", optimizer=keras.optimizers.SGD(rate, momentum=0.9))


MODELS = (
    normalizations,
    shapes,
    stateful_rnn,
    stacked_cells,
    mixed_float16,
    mixed_bfloat16,
    float64,
    preprocessing,
    regularized,
    frozen,
)
