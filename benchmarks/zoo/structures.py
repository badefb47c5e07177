"""Models on tables, graphs, videos and volumes."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import CROSS_ENTROPY, normal, whole
from checkmate.tf2.models import Workload


def recommender(batch: int = 2048, fields: int = 8, words: int = 400, width: int = 16) -> Workload:
    """Many sparse fields, a cross network and a deep one (Wang et al., 2017), under Adagrad."""
    ids, numbers = (
        keras.Input((fields,), dtype="int32", name="ids"),
        keras.Input((6,), name="numbers"),
    )
    x0 = x = L.Concatenate()(
        [
            *(L.Flatten()(L.Embedding(words, width)(ids[:, k : k + 1])) for k in range(fields)),
            L.Normalization()(numbers),
        ]
    )
    for _ in range(3):
        x = x0 * L.Dense(x0.shape[-1])(x) + x
    deep = x0
    for _ in range(3):
        deep = L.Dropout(0.1)(L.BatchNormalization()(L.Dense(128, activation="relu")(deep)))
    model = keras.Model(
        {"ids": ids, "numbers": numbers}, L.Dense(1)(L.Concatenate()([x, deep])), name="recommender"
    )
    labels = tf.cast(whole(batch, 1, below=2), tf.float32)
    data = {"ids": whole(batch, fields, below=words), "numbers": normal(batch, 6)}
    return Workload(
        model, keras.losses.BinaryCrossentropy(from_logits=True), data, labels, "adagrad"
    )


def graph_network(batch: int = 8, nodes: int = 200, edges: int = 800, width: int = 64) -> Workload:
    """Message passing: states are gathered along edges, transformed, and summed at the target."""

    class Message(L.Layer):
        def __init__(self):
            super().__init__()
            self.change, self.update = L.Dense(width, activation="relu"), L.GRUCell(width)

        def call(self, inputs):
            state, source, target = inputs
            sent = self.change(
                tf.concat(
                    [
                        tf.gather(state, source, batch_dims=1),
                        tf.gather(state, target, batch_dims=1),
                    ],
                    -1,
                )
            )
            flat = tf.reshape(target + tf.range(tf.shape(target)[0])[:, None] * nodes, [-1])
            arrived = tf.math.unsorted_segment_sum(
                tf.reshape(sent, [-1, width]), flat, batch * nodes
            )
            return tf.reshape(
                self.update(arrived, [tf.reshape(state, [-1, width])])[0], tf.shape(state)
            )

        def compute_output_shape(self, shapes):
            return shapes[0]

    state, source, target = (
        keras.Input((nodes, 16)),
        keras.Input((edges,), dtype="int32"),
        keras.Input((edges,), dtype="int32"),
    )
    x = L.Dense(width)(state)
    for _ in range(3):
        x = Message()([x, source, target])
    model = keras.Model(
        [state, source, target], L.Dense(1)(L.GlobalAveragePooling1D()(x)), name="graph_network"
    )
    data = [
        normal(batch, nodes, 16),
        whole(batch, edges, below=nodes),
        whole(batch, edges, below=nodes, seed=5),
    ]
    return Workload(model, "mse", data, normal(batch, 1))


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


def conv_lstm(batch: int = 4) -> Workload:
    """ConvLSTM2D and BatchNormalization on a video."""
    film = keras.Input((6, 24, 24, 2))
    x = L.BatchNormalization()(L.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(film))
    x = L.Conv3D(8, 3, padding="same", activation="relu")(
        L.ConvLSTM2D(12, 3, padding="same", return_sequences=True)(x)
    )
    model = keras.Model(film, L.Conv3D(2, 3, padding="same")(x), name="conv_lstm")
    return Workload(model, "mse", normal(batch, 6, 24, 24, 2), normal(batch, 6, 24, 24, 2, seed=5))


def time_distributed(batch: int = 8) -> Workload:
    """The same convolutions on every image of a video, then an LSTM."""
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


MODELS = (
    recommender,
    graph_network,
    bag_of_words,
    conv_lstm,
    time_distributed,
    conv3d,
    conv1d,
)
