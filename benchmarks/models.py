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
    return _of_words(model, batch, length, words)


class CausalAttention(keras.layers.Layer):
    """Attention to what came before, as plain ops. `by_hand` is how a user would write it for less
    memory: "remat", computed again as a whole in the backward pass, or "heads", one by one."""

    def __init__(self, heads: int, **options: Any):
        super().__init__(**options)
        self.heads, self.by_hand = heads, ""

    def call(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        length, width = queries.shape[1:]
        split = (-1, length, self.heads, width // self.heads)
        q, k, v = (
            tf.transpose(tf.reshape(each, split), (0, 2, 1, 3)) for each in (queries, keys, values)
        )
        if self.by_hand == "heads":
            one = tf.recompute_grad(_attend)
            parts = zip(*(tf.unstack(each, axis=1) for each in (q, k, v)), strict=True)
            found = tf.stack([one(*part) for part in parts], axis=1)
        else:
            found = (keras.remat(_attend) if self.by_hand else _attend)(q, k, v)
        return tf.reshape(tf.transpose(found, (0, 2, 1, 3)), (-1, length, width))

    def compute_output_shape(self, queries_shape: Any, **_: Any) -> Any:
        return queries_shape


def _attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5
    ahead = tf.linalg.band_part(tf.ones(scores.shape[-2:], tf.bool), -1, 0)
    return tf.matmul(tf.nn.softmax(tf.where(ahead, scores, -1e9)), v)


def gpt(
    *,
    batch: int,
    length: int | None = 2048,
    width: int = 256,
    heads: int = 8,
    depth: int = 4,
    words: int = 512,
) -> Workload:
    """A GPT (Radford et al., 2018) without names of places, whose scores are its largest values."""
    layers = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = CausalAttention(heads)(*(layers.Dense(width)(y) for _ in range(3)))
        x = layers.Add()([x, layers.Dense(width)(y)])
        y = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    model = keras.Model(tokens, layers.Dense(words)(x), name="gpt")
    return _of_words(model, batch, length or 512, words)


def vocabulary(*, batch: int, length: int = 128, width: int = 128, words: int = 32000) -> Workload:
    """A small language model of many words: the scores of all words are its largest values."""
    layers = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Dense(width, activation="gelu")(layers.Embedding(words, width)(tokens))
    model = keras.Model(tokens, layers.Dense(words)(x), name="vocabulary")
    return _of_words(model, batch, length, words)


def recurrent(kind: str, *, batch: int, length: int = 256, width: int = 128) -> Workload:
    """Two recurrent layers and one number for each sequence."""
    layers = keras.layers
    layer = getattr(layers, kind)
    x = inputs = keras.Input((length, 64))
    for last in (False, True):
        x = layer(width, return_sequences=not last)(x)
    model = keras.Model(inputs, layers.Dense(1)(x), name=f"two_{kind.lower()}s")
    sequences = tf.random.stateless_normal((batch, length, 64), seed=(1, 2))
    labels = tf.random.stateless_normal((batch, 1), seed=(3, 4))
    return Workload(model, keras.losses.MeanSquaredError(), sequences, labels)


def _of_words(model: keras.Model, batch: int, length: int, words: int) -> Workload:
    drawn = partial(tf.random.stateless_uniform, (batch, length), maxval=words, dtype=tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Workload(model, loss, drawn(seed=(1, 2)), drawn(seed=(3, 4)))


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
    "gpt": (gpt, 1),
    "vocabulary": (vocabulary, 4),
    "two_lstms": (partial(recurrent, "LSTM"), 32),
    "two_grus": (partial(recurrent, "GRU"), 32),
}
"""Name of a workload -> the function that makes it, and examples in its batch."""
