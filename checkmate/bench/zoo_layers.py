"""What else models are made of: a small one for each kind of layer, of number and of optimizer that
training has to get right."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers as L

from checkmate.bench.zoo_models import CROSS_ENTROPY, normal, whole
from checkmate.tf2.models import Workload


def on_images(
    layers: list[Any], *, name: str, batch: int = 8, size: int = 48, optimizer: Any = "adam"
) -> Workload:
    """Layers on images, pooled into a class."""
    model = keras.Sequential(
        [keras.Input((size, size, 3)), *layers, L.GlobalAveragePooling2D(), L.Dense(10)], name=name
    )
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), optimizer
    )


def on_vectors(
    layers: list[Any], *, name: str, batch: int = 1024, optimizer: Any = "adam"
) -> Workload:
    """Layers on vectors, and a class."""
    model = keras.Sequential([keras.Input((64,)), *layers, L.Dense(10)], name=name)
    return Workload(model, CROSS_ENTROPY, normal(batch, 64), whole(batch, below=10), optimizer)


def conv_lstm(batch: int = 4) -> Workload:
    """ConvLSTM2D and BatchNormalization on a film."""
    film = keras.Input((6, 24, 24, 2))
    x = L.BatchNormalization()(L.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(film))
    x = L.Conv3D(8, 3, padding="same", activation="relu")(
        L.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(x)
    )
    model = keras.Model(film, L.Conv3D(2, 3, padding="same")(x), name="conv_lstm")
    return Workload(model, "mse", normal(batch, 6, 24, 24, 2), normal(batch, 6, 24, 24, 2, seed=5))


def time_distributed(batch: int = 8) -> Workload:
    """The same convolutions on every image of a film, then an LSTM."""
    tower = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            L.Conv2D(16, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Conv2D(16, 3),
            L.Flatten(),
        ]
    )
    film = keras.Input((5, 32, 32, 3))
    model = keras.Model(
        film, L.Dense(10)(L.LSTM(32)(L.TimeDistributed(tower)(film))), name="time_distributed"
    )
    return Workload(model, CROSS_ENTROPY, normal(batch, 5, 32, 32, 3), whole(batch, below=10))


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


def conv3d(batch: int = 2) -> Workload:
    """A volumetric autoencoder."""
    volume = keras.Input((16, 32, 32, 1))
    x = L.MaxPooling3D()(
        L.BatchNormalization()(L.Conv3D(16, 3, padding="same", activation="relu")(volume))
    )
    x = L.Conv3D(32, 3, padding="same", activation="relu")(x)
    x = L.Conv3D(16, 3, padding="same", activation="relu")(
        L.UpSampling3D()(L.Conv3DTranspose(16, 3, padding="same")(x))
    )
    model = keras.Model(
        volume, L.Conv3D(1, 1)(L.ZeroPadding3D(1)(L.Cropping3D(1)(x))), name="conv3d"
    )
    return Workload(
        model, "mae", normal(batch, 16, 32, 32, 1), normal(batch, 16, 32, 32, 1, seed=5)
    )


def conv1d(batch: int = 8) -> Workload:
    """Dilated causal convolutions with gates and skips (van den Oord et al., 2016), and
    Conv1DTranspose."""
    sound = keras.Input((512, 1))
    x, skips = L.Conv1D(32, 3, padding="causal")(sound), []
    for rate in (1, 2, 4):
        gate = L.Conv1D(32, 2, dilation_rate=rate, padding="causal", activation="sigmoid")(x)
        y = L.Multiply()(
            [gate, L.Conv1D(32, 2, dilation_rate=rate, padding="causal", activation="tanh")(x)]
        )
        skips.append(L.Conv1D(32, 1)(y))
        x = L.Add()([x, skips[-1]])
    x = L.Conv1DTranspose(16, 4, 2, padding="same")(L.MaxPooling1D()(L.ReLU()(L.Add()(skips))))
    model = keras.Model(
        sound, L.Conv1D(1, 1)(L.SeparableConv1D(16, 3, padding="same")(x)), name="conv1d"
    )
    return Workload(
        model, keras.losses.LogCosh(), normal(batch, 512, 1), normal(batch, 512, 1, seed=5)
    )


def shapes(batch: int = 64) -> Workload:
    """Layers that move numbers about: Lambda, Permute, RepeatVector, Dot, Reshape, cropping,
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
    """LSTM and GRU that go on where the batch before ended, and one that is unrolled."""
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


def convolutions() -> list[Any]:
    """Three convolutions with BatchNormalization."""
    return [
        layer
        for width in (16, 32, 32)
        for layer in (L.Conv2D(width, 3, padding="same"), L.BatchNormalization(), L.ReLU())
    ]


class _policy:
    """The dtype policy of what is built within."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(self.name)

    def __exit__(self, *exception: Any) -> None:
        keras.mixed_precision.set_dtype_policy(self.before)


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
    """A backbone that is not trained, but for its last layer, and a learning rate that falls."""
    layers = convolutions()
    for layer in layers[:-3]:
        layer.trainable = False
    rate = keras.optimizers.schedules.CosineDecay(1e-3, 100)
    return on_images(layers, name="frozen", optimizer=keras.optimizers.SGD(rate, momentum=0.9))


def bag_of_words(batch: int = 256) -> Workload:
    """Integer inputs in a dict: embeddings, pooling, categories as one-hot and by hash."""
    words, kind, count = (
        keras.Input((50,), dtype="int64", name="words"),
        keras.Input((), dtype="int32", name="kind"),
        keras.Input((1,), name="count"),
    )
    x = L.GlobalAveragePooling1D()(L.Embedding(1000, 64, mask_zero=True)(words))
    one_hot = L.CategoryEncoding(8, output_mode="one_hot")(kind)
    buckets = L.Embedding(6, 4)(L.Discretization(bin_boundaries=[-1.0, 0.0, 0.5, 1.0])(count))
    x = L.Concatenate()(
        [x, one_hot, L.Flatten()(buckets), L.Flatten()(L.Embedding(16, 8)(L.Hashing(16)(kind)))]
    )
    x = L.Dense(256, activation="relu")(L.Dense(256, activation="relu")(x))
    model = keras.Model(
        {"words": words, "kind": kind, "count": count}, L.Dense(10)(x), name="bag_of_words"
    )
    data = {
        "words": whole(batch, 50, below=1000, dtype=tf.int64),
        "kind": whole(batch, below=8),
        "count": normal(batch, 1),
    }
    return Workload(model, CROSS_ENTROPY, data, whole(batch, below=10, dtype=tf.int64), "ftrl")


def text(batch: int = 64) -> Workload:
    """Sentences as strings: words looked up within the model, then convolutions and pooling."""
    words = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "was",
        "it",
        "for",
        "as",
        "with",
        "that",
        "be",
        "by",
        "on",
    ]
    sentences = keras.Input((), dtype="string")
    x = L.TextVectorization(vocabulary=words, output_sequence_length=40)(sentences)
    x = L.Conv1D(64, 3, padding="same", activation="relu")(L.Embedding(len(words) + 2, 64)(x))
    x = L.Conv1D(64, 3, padding="same", activation="relu")(L.SpatialDropout1D(0.1)(x))
    model = keras.Model(sentences, L.Dense(2)(L.GlobalMaxPooling1D()(x)), name="text")
    data = tf.constant(
        [" ".join(words[(k + j) % len(words)] for j in range(20 + k % 20)) for k in range(batch)]
    )
    return Workload(model, CROSS_ENTROPY, data, whole(batch, below=2))


def fourier(batch: int = 16) -> Workload:
    """FNet (Lee-Thorp et al., 2021): complex numbers in the middle, sines by hand, einsum dense."""
    tokens = keras.Input((64,), dtype="int32")
    x = L.Embedding(200, 64)(tokens)
    for _ in range(2):
        x = L.LayerNormalization()(
            x + L.Lambda(lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))))(x)
        )
        x = L.LayerNormalization()(
            x
            + L.EinsumDense("bld,de->ble", (None, 64))(
                L.EinsumDense("bld,de->ble", (None, 256), activation="gelu")(x)
            )
        )
    return Workload(
        keras.Model(tokens, L.Dense(200)(x), name="fourier"),
        CROSS_ENTROPY,
        whole(batch, 64, below=200),
        whole(batch, 64, below=200, seed=5),
    )


MODELS = {
    each.__name__: each
    for each in (
        conv_lstm,
        time_distributed,
        normalizations,
        conv3d,
        conv1d,
        shapes,
        stateful_rnn,
        stacked_cells,
        mixed_float16,
        mixed_bfloat16,
        float64,
        preprocessing,
        regularized,
        frozen,
        bag_of_words,
        text,
        fourier,
    )
}
"""Name -> what makes the workload."""
