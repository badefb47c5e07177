"""The models that benchmarks train, on made-up batches: those of the demo and more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate.demo.models import application, transformer, unet
from checkmate.tf2.models import Workload


def layer_normalized(name: str, *, batch: int, size: int = 224) -> Workload:
    """A model of keras.applications with LayerNormalization over channels in the place of
    BatchNormalization, so that no example changes another's values."""
    work = application(name, batch=batch, size=size)

    def replaced(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.BatchNormalization):
            return keras.layers.LayerNormalization(name=layer.name.replace("bn", "ln"))
        return type(layer).from_config(layer.get_config())

    def called(layer: keras.Layer, *inputs: tf.Tensor, **_: Any) -> tf.Tensor:
        return layer(*inputs)  # without the mask that BatchNormalization takes

    model = keras.models.clone_model(work.model, call_function=called, clone_function=replaced)
    return replace(work, model=model)


def super_resolution(*, batch: int, size: int = 256, scale: int = 4) -> Workload:
    """A net for images `scale` times as large (Shi et al., 2016), which ends in DepthToSpace: that
    op and its gradient have the largest values."""
    layers = keras.layers
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(32, 5, padding="same", activation="tanh")(inputs)
    x = layers.Conv2D(32, 3, padding="same", activation="tanh")(x)
    x = layers.Conv2D(3 * scale**2, 3, padding="same")(x)
    outputs = layers.Lambda(partial(tf.nn.depth_to_space, block_size=scale))(x)
    model = keras.Model(inputs, outputs, name="super_resolution")
    images = tf.random.stateless_normal((batch, size, size, 3), seed=(1, 2))
    labels = tf.random.stateless_normal((batch, scale * size, scale * size, 3), seed=(3, 4))
    return Workload(model, keras.losses.MeanSquaredError(), images, labels)


def lstm(
    *, batch: int, length: int = 64, width: int = 128, depth: int = 4, words: int = 1000
) -> Workload:
    """Stacked LSTMs (Hochreiter & Schmidhuber, 1997) between dense layers, with a prediction per
    token."""
    layers = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(depth):
        x = layers.Dense(width)(
            layers.Dense(4 * width, activation="gelu")(layers.LSTM(width, return_sequences=True)(x))
        )
    model = keras.Model(tokens, layers.Dense(words)(x), name="lstm")
    inputs = tf.random.stateless_uniform((batch, length), seed=(1, 2), maxval=words, dtype=tf.int32)
    labels = tf.random.stateless_uniform((batch, length), seed=(3, 4), maxval=words, dtype=tf.int32)
    return Workload(
        model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), inputs, labels
    )


_UNETS = partial(unet, normalized=False)
MODELS: dict[str, tuple[Callable[..., Workload], int]] = {
    "mobilenet": (partial(application, "MobileNet"), 16),
    "resnet50": (partial(application, "ResNet50"), 8),
    "resnet50_160": (partial(application, "ResNet50", size=160), 8),
    "unet": (unet, 4),
    "vgg16": (partial(application, "VGG16"), 16),
    "transformer": (transformer, 16),
    "tanh_transformer": (partial(transformer, variant="tanh"), 16),
    "decoder": (partial(transformer, variant="causal", words=8000), 8),
    "densenet121": (partial(application, "DenseNet121"), 4),
    "efficientnetb0": (partial(application, "EfficientNetB0"), 8),
    "lstm": (lstm, 64),
    "mobilenet_ln": (partial(layer_normalized, "MobileNet"), 16),
    "encoder": (partial(transformer, classes=10), 16),
    "unet_without_norm": (_UNETS, 8),
    "large_unet": (partial(_UNETS, size=512, widths=(32, 64, 128)), 2),
    "super_resolution": (super_resolution, 4),
}
"""Name of a workload -> the function that makes it, and examples in its batch."""
