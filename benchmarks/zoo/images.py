"""Models on images."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import CROSS_ENTROPY, normal, whole
from checkmate.tf2.models import Workload


def siamese(batch: int = 16, size: int = 48) -> Workload:
    """One tower for two images, and the distance of its two outputs."""
    tower = keras.Sequential([keras.Input((size, size, 3))])
    for width in (16, 32, 64):
        tower.add(L.Conv2D(width, 3, padding="same", activation="relu"))
        tower.add(L.BatchNormalization())
        tower.add(L.MaxPooling2D())
    tower.add(L.GlobalAveragePooling2D())
    left, right = keras.Input((size, size, 3)), keras.Input((size, size, 3))
    distance = keras.ops.abs(tower(left) - tower(right))
    model = keras.Model([left, right], L.Dense(1, activation="sigmoid")(distance), name="siamese")
    labels = tf.cast(whole(batch, 1, below=2), tf.float32)
    return Workload(
        model,
        keras.losses.BinaryCrossentropy(),
        [normal(batch, size, size, 3), normal(batch, size, size, 3, seed=7)],
        labels,
    )


def multi_output(batch: int = 16, size: int = 48) -> Workload:
    """A box, a class and a mask from one backbone, each with its loss, in a dict."""
    image = keras.Input((size, size, 3))
    x = image
    for width in (16, 32):
        x = L.Conv2D(width, 3, padding="same")(x)
        x = L.LeakyReLU()(L.GroupNormalization(8)(x))
    pooled = L.Dropout(0.2)(L.GlobalAveragePooling2D()(x))
    outputs = {
        "box": L.Dense(4, name="box")(pooled),
        "kind": L.Dense(5, name="kind")(pooled),
        "mask": L.Conv2D(1, 1, activation="sigmoid", name="mask")(x),
    }

    def loss(labels, found):
        box = keras.losses.Huber()(labels["box"], found["box"])
        mask = keras.losses.Dice()(labels["mask"], found["mask"])
        return box + CROSS_ENTROPY(labels["kind"], found["kind"]) + mask

    labels = {
        "box": normal(batch, 4),
        "kind": whole(batch, below=5),
        "mask": tf.cast(whole(batch, size, size, 1, below=2), tf.float32),
    }
    return Workload(
        keras.Model(image, outputs, name="multi_output"), loss, normal(batch, size, size, 3), labels
    )


def vit(
    batch: int = 8, size: int = 64, patch: int = 8, width: int = 96, depth: int = 3
) -> Workload:
    """A vision transformer with a class token (Dosovitskiy et al., 2021), under the optimizer
    Lion."""
    count = (size // patch) ** 2

    class ClassToken(L.Layer):
        def build(self, shape):
            self.token = self.add_weight(shape=(1, 1, width), initializer="zeros")
            self.places = self.add_weight(shape=(1, count + 1, width), initializer="normal")

        def call(self, x):
            token = keras.ops.broadcast_to(self.token, (keras.ops.shape(x)[0], 1, width))
            return keras.ops.concatenate([token, x], 1) + self.places

    image = keras.Input((size, size, 3))
    x = ClassToken()(L.Reshape((count, width))(L.Conv2D(width, patch, strides=patch)(image)))
    for _ in range(depth):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = x + L.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        x = x + L.Dense(width)(
            L.Dropout(0.1)(
                L.Dense(4 * width, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x))
            )
        )
    model = keras.Model(image, L.Dense(10)(x[:, 0]), name="vit")
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), "lion"
    )


def mixer(batch: int = 8, size: int = 64, patch: int = 8, width: int = 96) -> Workload:
    """MLP-Mixer (Tolstikhin et al., 2021): dense layers across channels and, transposed, across
    patches."""
    image = keras.Input((size, size, 3))
    x = L.Reshape((-1, width))(L.Conv2D(width, patch, strides=patch)(image))
    for _ in range(3):
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        x = x + L.Permute((2, 1))(L.Dense((size // patch) ** 2)(L.Dense(128, activation="gelu")(y)))
        x = x + L.Dense(width)(L.Dense(256, activation="gelu")(L.LayerNormalization()(x)))
    model = keras.Model(image, L.Dense(10)(L.GlobalAveragePooling1D()(x)), name="mixer")
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), "nadam"
    )


class Autoencoder(keras.Model):
    """A variational autoencoder: a sample between two networks, and a loss of its own (Kingma &
    Welling, 2014)."""

    def __init__(self, latent: int = 16):
        super().__init__(name="vae")
        self.encode = keras.Sequential(
            [L.Conv2D(w, 3, 2, padding="same", activation="relu") for w in (16, 32)] + [L.Flatten()]
        )
        self.mean, self.log_variance = L.Dense(latent), L.Dense(latent)
        self.decode = keras.Sequential(
            [L.Dense(12 * 12 * 32, activation="relu"), L.Reshape((12, 12, 32))]
            + [L.Conv2DTranspose(w, 3, 2, padding="same", activation="relu") for w in (32, 16)]
            + [L.Conv2D(3, 3, padding="same", activation="sigmoid")]
        )
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, images, training=False):
        x = self.encode(images)
        mean, log_variance = self.mean(x), self.log_variance(x)
        self.add_loss(
            -0.5 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance))
        )
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return self.decode(mean + keras.ops.exp(0.5 * log_variance) * noise)


def vae(batch: int = 32) -> Workload:
    """The autoencoder above."""
    images = tf.sigmoid(normal(batch, 48, 48, 3))
    return Workload(Autoencoder(), keras.losses.MeanSquaredError(), images, images)


def diffusion_unet(batch: int = 8, size: int = 32, width: int = 32) -> Workload:
    """The noise predictor of a diffusion model: residual blocks with the time as input, attention
    at the bottom (Ho et al., 2020)."""

    def block(x, time, width):
        y = L.Conv2D(width, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(x)))
        y = y + L.Reshape((1, 1, width))(L.Dense(width)(time))
        y = L.Conv2D(width, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(y)))
        return y + (x if x.shape[-1] == width else L.Conv2D(width, 1)(x))

    image, when = keras.Input((size, size, 3)), keras.Input((), dtype="int32")
    angles = keras.ops.cast(when, "float32")[:, None] * keras.ops.exp(
        -keras.ops.arange(16, dtype="float32") / 2
    )
    time = L.Dense(64, activation="swish")(
        keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], -1)
    )
    x = first = block(L.Conv2D(width, 3, padding="same")(image), time, width)
    x = second = block(L.AveragePooling2D(2)(x), time, 2 * width)
    y = L.Reshape((-1, 2 * width))(L.GroupNormalization(8)(x))
    x = x + L.Reshape(x.shape[1:])(L.MultiHeadAttention(2, width)(y, y))
    x = block(L.Concatenate()([x, second]), time, 2 * width)
    x = block(L.Concatenate()([L.UpSampling2D(interpolation="bilinear")(x), first]), time, width)
    model = keras.Model([image, when], L.Conv2D(3, 3, padding="same")(x), name="diffusion_unet")
    return Workload(
        model,
        "mse",
        [normal(batch, size, size, 3), whole(batch, below=1000)],
        normal(batch, size, size, 3, seed=9),
    )


def segmentation(batch: int = 4, size: int = 96) -> Workload:
    """Parallel dilated convolutions and a pooled branch, upsampled (Chen et al., 2017)."""
    image = keras.Input((size, size, 3))
    x = L.Conv2D(16, 3, 2, padding="same", activation="relu")(image)
    x = low = L.SeparableConv2D(32, 3, padding="same", activation="relu")(x)
    x = L.SeparableConv2D(64, 3, 2, padding="same", activation="relu")(x)
    side = size // 4
    branches = [
        L.ReLU(max_value=6)(
            L.BatchNormalization()(L.Conv2D(32, 3, padding="same", dilation_rate=rate)(x))
        )
        for rate in (1, 2, 4)
    ]
    pooled = L.Conv2D(32, 1)(L.GlobalAveragePooling2D(keepdims=True)(x))
    branches.append(L.UpSampling2D(side, interpolation="bilinear")(pooled))
    x = L.SpatialDropout2D(0.1)(L.Conv2D(32, 1)(L.Concatenate()(branches)))
    x = L.Concatenate()([L.Resizing(2 * side, 2 * side)(x), low])
    x = L.Resizing(size, size, interpolation="bilinear")(L.Conv2D(5, 3, padding="same")(x))
    model = keras.Model(image, x, name="segmentation")
    return Workload(
        model,
        CROSS_ENTROPY,
        normal(batch, size, size, 3),
        whole(batch, size, size, below=5),
        keras.optimizers.SGD(0.01, 0.9, True),
    )


def super_resolution(batch: int = 4, size: int = 48) -> Workload:
    """Residual blocks and sub-pixel upsampling (Shi et al., 2016), with a structural similarity in
    the loss."""
    image = keras.Input((size, size, 3))
    x = L.Conv2D(32, 3, padding="same")(image)
    for _ in range(3):
        x = x + L.Conv2D(32, 3, padding="same")(
            L.PReLU(shared_axes=[1, 2])(L.Conv2D(32, 3, padding="same")(x))
        )
    x = L.Lambda(lambda x: tf.nn.depth_to_space(x, 2), output_shape=(2 * size, 2 * size, 12))(
        L.Conv2D(48, 3, padding="same")(x)
    )
    model = keras.Model(
        image, L.Conv2D(3, 3, padding="same", activation="sigmoid")(x), name="super_resolution"
    )

    def loss(labels, found):
        return (
            tf.reduce_mean(tf.abs(labels - found))
            + 1
            - tf.reduce_mean(tf.image.ssim(labels, found, 1.0))
        )

    return Workload(
        model,
        loss,
        normal(batch, size, size, 3),
        tf.sigmoid(normal(batch, 2 * size, 2 * size, 3, seed=5)),
    )


MODELS = (
    siamese,
    multi_output,
    vit,
    mixer,
    vae,
    diffusion_unet,
    segmentation,
    super_resolution,
)
