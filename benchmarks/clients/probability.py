"""Programs with TensorFlow Probability."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras
from tf_keras import layers as L

from benchmarks.clients.program import Program
from benchmarks.zoo.batches import Task, normal, whole


def bayesian_network(batch: int = 512, width: int = 256) -> Program:
    """Dense layers with a distribution over their weights (Flipout)."""
    layers = tfp.layers
    model = tf_keras.Sequential(
        [
            L.Input((64,)),
            *(layers.DenseFlipout(width, activation="relu") for _ in range(3)),
            layers.DenseFlipout(10),
        ]
    )
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(1e-3), loss)
    return Program(model, normal(batch, 64), whole(batch, below=10))


def normalizing_flow(batch: int = 1024, depth: int = 6, width: int = 128) -> Task:
    """A masked autoregressive flow, trained by its likelihood (Papamakarios et al., 2017)."""
    bijectors, distributions = tfp.bijectors, tfp.distributions
    chain = []
    for _ in range(depth):
        chain += [
            bijectors.MaskedAutoregressiveFlow(
                bijectors.AutoregressiveNetwork(2, hidden_units=[width, width], activation="relu")
            ),
            bijectors.Permute(list(range(15, -1, -1))),
        ]
    flow = distributions.TransformedDistribution(
        distributions.MultivariateNormalDiag(tf.zeros(16)), bijectors.Chain(chain)
    )
    x = normal(batch, 16)
    flow.log_prob(x)  # makes the variables
    variables = flow.trainable_variables
    optimizer = tf_keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(flow.log_prob(x))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return Task(step, (x,))


def gaussian_mixture(batch: int = 4096, components: int = 64) -> Task:
    """A mixture density network: a distribution as a layer's output."""
    distributions = tfp.distributions
    hidden = [L.Dense(256, activation="tanh") for _ in range(3)]
    network = tf_keras.Sequential([L.Input((16,)), *hidden, L.Dense(3 * components)])
    optimizer = tf_keras.optimizers.Adam(1e-3)
    optimizer.build(network.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            weights, means, scales = tf.split(network(x, training=True), 3, axis=-1)
            mixture = distributions.MixtureSameFamily(
                distributions.Categorical(logits=weights),
                distributions.Normal(means, tf.nn.softplus(scales) + 1e-3),
            )
            loss = -tf.reduce_mean(mixture.log_prob(y))
        variables = network.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return Task(step, (normal(batch, 16), normal(batch, seed=5)))


MODELS = (bayesian_network, normalizing_flow, gaussian_mixture)
