"""Training code in the style of published Keras examples: models with a `train_step` of their
own."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers as L
from keras import ops

from benchmarks.clients.program import Program
from benchmarks.zoo.batches import CROSS_ENTROPY, normal, whole

BINARY = keras.losses.BinaryCrossentropy(from_logits=True)


def _generator(latent: int, side: int) -> keras.Model:
    return keras.Sequential(
        [keras.Input((latent,)), L.Dense(side // 4 * (side // 4) * 64)]
        + [L.Reshape((side // 4, side // 4, 64))]
        + [
            layer
            for width in (64, 32)
            for layer in (
                L.Conv2DTranspose(width, 4, 2, padding="same", use_bias=False),
                L.BatchNormalization(),
                L.LeakyReLU(0.2),
            )
        ]
        + [L.Conv2D(3, 5, padding="same", activation="tanh")],
        name="generator",
    )


def _discriminator(side: int) -> keras.Model:
    return keras.Sequential(
        [keras.Input((side, side, 3))]
        + [
            layer
            for width in (32, 64, 64)
            for layer in (L.Conv2D(width, 4, 2, padding="same"), L.LeakyReLU(0.2), L.Dropout(0.2))
        ]
        + [L.Flatten(), L.Dense(1)],
        name="discriminator",
    )


class DCGAN(keras.Model):
    """Two networks that train against each other (Radford et al., 2016)."""

    def __init__(self, latent: int, side: int):
        super().__init__(name="dcgan")
        self.latent = latent
        self.generator, self.discriminator = _generator(latent, side), _discriminator(side)
        self.seeds = keras.random.SeedGenerator(1)
        self.d_mean = keras.metrics.Mean(name="d_loss")
        self.g_mean = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        """Takes an optimizer for each network."""
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)

    def d_loss(self, real: Any, fake: Any) -> Any:
        """The loss of the discriminator for real and generated images."""
        opinions = self.discriminator(ops.concatenate([fake, real]), training=True)
        count = ops.shape(real)[0]
        return BINARY(ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))]), opinions)

    def g_loss(self, fake: Any) -> Any:
        """The loss of the generator for what it made."""
        return BINARY(ops.zeros((ops.shape(fake)[0], 1)), self.discriminator(fake, training=True))

    def train_step(self, images: Any) -> dict[str, Any]:
        """Updates the discriminator, then the generator."""
        shape = (ops.shape(images)[0], self.latent)
        fake = self.generator(keras.random.normal(shape, seed=self.seeds), training=True)
        with tf.GradientTape() as tape:
            d_loss = self.d_loss(images, fake)
        variables = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, variables), variables)
        with tf.GradientTape() as tape:
            noise = keras.random.normal(shape, seed=self.seeds)
            g_loss = self.g_loss(self.generator(noise, training=True))
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)
        self.d_mean.update_state(d_loss)
        self.g_mean.update_state(g_loss)
        return {"d_loss": self.d_mean.result(), "g_loss": self.g_mean.result()}


class WassersteinGAN(DCGAN):
    """A Wasserstein GAN with a penalty on the gradient (Gulrajani et al., 2017)."""

    def d_loss(self, real: Any, fake: Any) -> Any:
        """The distance, and the penalty between real and generated images."""
        share = keras.random.uniform((ops.shape(real)[0], 1, 1, 1), seed=self.seeds)
        between = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            opinion = self.discriminator(between, training=True)
        slope = tf.sqrt(tf.reduce_sum(tape.gradient(opinion, between) ** 2, [1, 2, 3]) + 1e-12)
        return (
            tf.reduce_mean(self.discriminator(fake, training=True))
            - tf.reduce_mean(self.discriminator(real, training=True))
            + 10.0 * tf.reduce_mean((slope - 1.0) ** 2)
        )

    def g_loss(self, fake: Any) -> Any:
        """What the critic says of generated images."""
        return -tf.reduce_mean(self.discriminator(fake, training=True))


def _gan(kind: type[DCGAN], batch: int, side: int) -> Program:
    model = kind(64, side)
    rates = (keras.optimizers.Adam(1e-4, beta_1=0.5), keras.optimizers.Adam(1e-4, beta_1=0.5))
    model.compile(*rates)
    return Program(model, tf.tanh(normal(batch, side, side, 3)))


def dcgan(batch: int = 32, side: int = 32) -> Program:
    """A DCGAN."""
    return _gan(DCGAN, batch, side)


def wgan_gp(batch: int = 32, side: int = 32) -> Program:
    """A Wasserstein GAN."""
    return _gan(WassersteinGAN, batch, side)


def _translator(width: int, side: int, name: str) -> keras.Model:
    image = keras.Input((side, side, 3))
    x = L.Activation("relu")(L.GroupNormalization(-1)(L.Conv2D(width, 7, padding="same")(image)))
    x = L.Conv2D(2 * width, 3, 2, padding="same", activation="relu")(x)
    for _ in range(3):
        y = L.GroupNormalization(-1)(L.Conv2D(2 * width, 3, padding="same")(x))
        y = L.Conv2D(2 * width, 3, padding="same")(L.Activation("relu")(y))
        x = x + L.GroupNormalization(-1)(y)
    x = L.Conv2DTranspose(width, 3, 2, padding="same", activation="relu")(x)
    return keras.Model(image, L.Conv2D(3, 7, padding="same", activation="tanh")(x), name=name)


class CycleGAN(keras.Model):
    """Two generators, two discriminators, one persistent tape (Zhu et al., 2017)."""

    def __init__(self, side: int, width: int = 16):
        super().__init__(name="cyclegan")
        self.there = _translator(width, side, "there")
        self.back = _translator(width, side, "back")
        self.of_x, self.of_y = _discriminator(side), _discriminator(side)
        self.networks = (self.there, self.back, self.of_x, self.of_y)

    def compile(self, optimizers: Any) -> None:
        """Takes an optimizer for each network."""
        super().compile()
        self.optimizers = optimizers
        for network, optimizer in zip(self.networks, optimizers, strict=True):
            optimizer.build(network.trainable_variables)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """Updates all four networks."""
        x, y = batch
        mse = keras.losses.MeanSquaredError()
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = self.there(x, training=True), self.back(y, training=True)
            cycle = tf.reduce_mean(tf.abs(self.back(fake_y, training=True) - x)) + tf.reduce_mean(
                tf.abs(self.there(fake_x, training=True) - y)
            )
            same = tf.reduce_mean(tf.abs(self.there(y, training=True) - y)) + tf.reduce_mean(
                tf.abs(self.back(x, training=True) - x)
            )
            opinions = [
                network(image, training=True)
                for network, image in (
                    *((self.of_x, x), (self.of_x, fake_x)),
                    *((self.of_y, y), (self.of_y, fake_y)),
                )
            ]
            real_x, made_x, real_y, made_y = opinions
            one, none = tf.ones_like(real_x), tf.zeros_like(real_x)
            losses = [
                mse(one, made_y) + 10 * cycle + 5 * same,
                mse(one, made_x) + 10 * cycle + 5 * same,
                mse(one, real_x) + mse(none, made_x),
                mse(one, real_y) + mse(none, made_y),
            ]
        for network, optimizer, loss in zip(self.networks, self.optimizers, losses, strict=True):
            variables = network.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {f"loss_{k}": loss for k, loss in enumerate(losses)}


def cyclegan(batch: int = 2, side: int = 64) -> Program:
    """A CycleGAN."""
    model = CycleGAN(side)
    model.compile([keras.optimizers.Adam(2e-4, beta_1=0.5) for _ in range(4)])
    x, y = (tf.tanh(normal(batch, side, side, 3, seed=seed)) for seed in (1, 7))
    return Program(model, x, y)


class SimCLR(keras.Model):
    """Contrastive learning of two views of each image, augmented in the step (Chen et al.,
    2020)."""

    def __init__(self, side: int, width: int = 64):
        super().__init__(name="simclr")
        self.augment = keras.Sequential(
            [L.RandomFlip(), L.RandomTranslation(0.2, 0.2), L.RandomZoom(0.2)]
        )
        self.encoder = keras.Sequential(
            [keras.Input((side, side, 3))]
            + [L.Conv2D(width, 3, 2, padding="same", activation="relu") for _ in range(3)]
            + [L.Flatten(), L.Dense(width, activation="relu")]
        )
        self.head = keras.Sequential(
            [keras.Input((width,)), L.Dense(width, activation="relu"), L.Dense(width)]
        )
        self.mean_loss = keras.metrics.Mean(name="loss")

    def train_step(self, images: Any) -> dict[str, Any]:
        """Pulls the two views of an image together."""
        views = [self.augment(images, training=True) for _ in range(2)]
        with tf.GradientTape() as tape:
            first, second = (
                ops.normalize(self.head(self.encoder(view, training=True)), axis=1)
                for view in views
            )
            close = ops.matmul(first, ops.transpose(second)) / 0.1
            labels = ops.arange(ops.shape(images)[0])
            loss = CROSS_ENTROPY(labels, close) + CROSS_ENTROPY(labels, ops.transpose(close))
        variables = self.encoder.trainable_variables + self.head.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def simclr(batch: int = 64, side: int = 48) -> Program:
    """SimCLR."""
    model = SimCLR(side)
    model.compile("adam")
    model.optimizer.build(model.encoder.trainable_variables + model.head.trainable_variables)
    return Program(model, tf.sigmoid(normal(batch, side, side, 3)))


def esrgan(batch: int = 2, side: int = 48, width: int = 32) -> Program:
    """Super-resolution with residual dense blocks (Wang et al., 2018), and a loss on features of
    a frozen network."""
    image = keras.Input((side, side, 3))
    x = first = L.Conv2D(width, 3, padding="same")(image)
    for _ in range(3):
        parts = [x]
        for _ in range(3):
            joined = L.Concatenate()(parts) if len(parts) > 1 else parts[0]
            y = L.Conv2D(width, 3, padding="same")(joined)
            parts.append(L.LeakyReLU(0.2)(y))
        x = x + 0.2 * L.Conv2D(width, 3, padding="same")(L.Concatenate()(parts))
    x = L.UpSampling2D(2)(first + x)
    made = L.Conv2D(3, 3, padding="same")(L.Conv2D(width, 3, padding="same")(x))
    model = keras.Model(image, made, name="esrgan")
    features = keras.Sequential(
        [keras.Input((2 * side, 2 * side, 3))]
        + [L.Conv2D(width, 3, padding="same", activation="relu") for _ in range(2)]
    )
    features.trainable = False

    def loss(wanted: Any, found: Any) -> Any:
        seen = ops.mean(ops.abs(features(wanted) - features(found)))
        return seen + 0.01 * ops.mean(ops.abs(wanted - found))

    model.compile("adam", loss)
    return Program(model, normal(batch, side, side, 3), normal(batch, 2 * side, 2 * side, 3))


def fine_tuning(batch: int = 8, size: int = 96) -> Program:
    """A frozen application, its last blocks trained, with augmentation and mixed metrics."""
    base = keras.applications.MobileNetV2((size, size, 3), include_top=False, weights=None)
    for layer in base.layers[:-40]:
        layer.trainable = False
    inputs = keras.Input((size, size, 3))
    x = base(L.RandomRotation(0.1)(L.RandomFlip("horizontal")(inputs)))
    x = L.Dropout(0.2)(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(10)(x), name="fine_tuning")
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 100)
    model.compile(keras.optimizers.AdamW(schedule), CROSS_ENTROPY, metrics=["accuracy"])
    return Program(model, normal(batch, size, size, 3), whole(batch, below=10))


MODELS = (dcgan, wgan_gp, cyclegan, simclr, esrgan, fine_tuning)
