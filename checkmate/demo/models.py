"""The models that the demo trains, on made-up batches: one function per kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import keras
import tensorflow as tf

from checkmate.tf2.models import Workload


def application(name: str, *, batch: int, size: int = 224, classes: int = 1000) -> Workload:
    """A model of keras.applications by its class name, untrained, on random images."""
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=classes
    )
    images = tf.random.stateless_normal((batch, size, size, 3), seed=(1, 2))
    labels = tf.random.stateless_uniform((batch,), seed=(3, 4), maxval=classes, dtype=tf.int32)
    return Workload(model, keras.losses.SparseCategoricalCrossentropy(), images, labels)


def unet(
    *,
    batch: int,
    size: int = 160,
    classes: int = 10,
    widths: tuple[int, ...] = (32, 64, 128, 256, 512),
    normalized: bool = True,
) -> Workload:
    """A U-Net (Ronneberger et al., 2015) with a prediction per pixel, and where `normalized` with
    BatchNormalization after each convolution of 3 x 3."""
    layers = keras.layers

    def block(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=not normalized)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x) if normalized else x)
        return x

    inputs = keras.Input((size, size, 3))
    x, skips = inputs, []
    for width in widths[:-1]:
        x = block(x, width)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, widths[-1])
    for width, skip in zip(widths[-2::-1], reversed(skips), strict=True):
        x = block(
            layers.Concatenate()([layers.Conv2DTranspose(width, 2, strides=2)(x), skip]), width
        )
    model = keras.Model(inputs, layers.Conv2D(classes, 1, activation="softmax")(x), name="unet")
    images = tf.random.stateless_normal((batch, size, size, 3), seed=(1, 2))
    labels = tf.random.stateless_uniform(
        (batch, size, size), seed=(3, 4), maxval=classes, dtype=tf.int32
    )
    return Workload(model, keras.losses.SparseCategoricalCrossentropy(), images, labels)


def transformer(
    *,
    batch: int,
    length: int = 128,
    width: int = 256,
    depth: int = 6,
    words: int = 1000,
    classes: int | None = None,
    variant: str = "",
) -> Workload:
    """A pre-norm transformer encoder (Vaswani et al., 2017) with attention and dropout; each head
    has 32 dimensions.

    Args:
      classes: Of a prediction for the whole sequence; None for a prediction per token.
      variant: "tanh" for GELU by tanh; "causal" if a token attends to itself and those before it
        only, as in a decoder.
    """
    layers = keras.layers
    gelu = partial(keras.activations.gelu, approximate=variant == "tanh")
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(width // 32, 32, dropout=0.1)(
            y, y, use_causal_mask=variant == "causal"
        )
        x = layers.Add()([x, layers.Dropout(0.1)(y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation=gelu)(y)
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(y))])
    x = layers.LayerNormalization()(x)
    if classes:
        x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(tokens, layers.Dense(classes or words)(x), name="transformer")
    inputs = tf.random.stateless_uniform((batch, length), seed=(1, 2), maxval=words, dtype=tf.int32)
    labels = tf.random.stateless_uniform(
        (batch,) if classes else (batch, length),
        seed=(3, 4),
        maxval=classes or words,
        dtype=tf.int32,
    )
    return Workload(
        model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), inputs, labels
    )


_WORKLOADS: dict[str, tuple[Callable[..., Workload], int]] = {
    "mobilenet": (partial(application, "MobileNet"), 16),
    "resnet50": (partial(application, "ResNet50"), 8),
    "unet": (unet, 4),
    "vgg16": (partial(application, "VGG16"), 16),
    "transformer": (transformer, 16),
}


def workload(name: str) -> Workload:
    """A model of `demo.WORKLOADS`, with its batch."""
    make, batch = _WORKLOADS[name]
    return make(batch=batch)
