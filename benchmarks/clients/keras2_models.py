"""Models of tf_keras (Keras 2)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras import layers as L

from benchmarks.clients.program import Program
from benchmarks.zoo.batches import normal, whole

LOSS = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def keras2_mobilenet(batch: int = 8, size: int = 96) -> Program:
    """MobileNetV2 of its applications."""
    model = tf_keras.applications.MobileNetV2((size, size, 3), weights=None, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Program(model, normal(batch, size, size, 3), whole(batch, below=10))


def keras2_bert(batch: int = 8, length: int = 64, width: int = 128, depth: int = 4) -> Program:
    """A subclassed encoder with masked-token prediction in a `train_step` of its own."""

    class Encoder(tf_keras.Model):
        def __init__(self) -> None:
            super().__init__(name="encoder")
            self.tokens, self.places = L.Embedding(1000, width), L.Embedding(length, width)
            self.attentions = [L.MultiHeadAttention(4, width // 4) for _ in range(depth)]
            self.expand = [L.Dense(4 * width, activation="gelu") for _ in range(depth)]
            self.narrow = [L.Dense(width) for _ in range(depth)]
            self.norms = [L.LayerNormalization() for _ in range(2 * depth)]
            self.drop, self.head = L.Dropout(0.1), L.Dense(1000)
            self.mean_loss = tf_keras.metrics.Mean(name="loss")

        def call(self, tokens: Any, training: bool = False) -> Any:
            x = self.tokens(tokens) + self.places(tf.range(length))
            for k, attention in enumerate(self.attentions):
                y = self.norms[2 * k](x)
                x = x + self.drop(attention(y, y), training=training)
                y = self.narrow[k](self.expand[k](self.norms[2 * k + 1](x)))
                x = x + self.drop(y, training=training)
            return self.head(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            tokens, hidden = data
            with tf.GradientTape() as tape:
                found = self(tf.where(hidden, 0, tokens), training=True)
                loss = LOSS(tokens, found, sample_weight=tf.cast(hidden, tf.float32))
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.mean_loss.update_state(loss)
            return {"loss": self.mean_loss.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.mean_loss]

    model = Encoder()
    model.compile(tf_keras.optimizers.Adam(1e-4))
    tokens = whole(batch, length, below=1000)
    return Program(model, tokens, whole(batch, length, below=7, seed=5) == 0)


def keras2_unet(batch: int = 4, size: int = 96) -> Program:
    """A U-Net with transposed convolutions."""
    image = L.Input((size, size, 3))
    x, skips = image, []
    for width in (16, 32, 64):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
        skips.append(x)
        x = L.MaxPooling2D()(x)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = L.Concatenate()([L.Conv2DTranspose(width, 2, 2)(x), skip])
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
    model = tf_keras.Model(image, L.Conv2D(5, 1)(x), name="keras2_unet")
    model.compile("adam", LOSS)
    return Program(model, normal(batch, size, size, 3), whole(batch, size, size, below=5))


MODELS = (keras2_mobilenet, keras2_bert, keras2_unet)
