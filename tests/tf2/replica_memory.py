"""A program of its own: trains two replicas with and without a budget, and prints as JSON what is
in use, what was counted, and whether the losses are the same.

Logical devices must be set up before TensorFlow starts, hence not in the tests' process.
"""

from __future__ import annotations

import json
import logging
import os
import sys

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import numpy as np
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2 import device as devices

WIDTH, STEPS = 512, 4


def model_of(strategy, optimizer):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(3)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(4)])
        return model, keras.optimizers.get(optimizer)


def losses_of(strategy, optimizer, budget, batch):
    """The losses of a few steps, and the planned step."""
    model, chosen = model_of(strategy, optimizer)

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses) / 2
        chosen.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    if budget:
        run = checkmate.tf2.function(
            step,
            budget=budget,
            strategy=strategy,
            optimizer=chosen,
            cost_model="roofline",
            solver=UNHURRIED,
        )
    else:
        with strategy.scope():
            chosen.build(model.trainable_variables)
        run = tf.function(lambda *args: strategy.run(step, args=args))
    losses = [
        strategy.reduce("SUM", run(*batch), axis=None).numpy().tobytes().hex() for _ in range(STEPS)
    ]
    return losses, run, model.count_params()


def main(optimizer: str, budget: str, batch_size: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    chance = np.random.default_rng(0)
    batch = (
        tf.constant(chance.normal(size=(batch_size, WIDTH)).astype("float32")),
        tf.constant(chance.integers(0, 4, batch_size)),
    )
    plain, _, parameters = losses_of(strategy, optimizer, None, batch)
    said: list[str] = []
    logging.getLogger("checkmate").addFilter(lambda each: said.append(each.getMessage()) or True)
    before = devices.bytes_in_use("CPU:0")
    losses, step, _ = losses_of(strategy, optimizer, budget, batch)
    report = step.report()
    result = {
        "same": losses == plain,
        "changes": len(set(losses)),
        "recomputed": len(step.plan.recomputed),
        "counted": report.memory.start_bytes - before,
        "in_use": devices.bytes_in_use("CPU:0") - before,
        "weights": 4 * parameters,
        "notes": report.notes,
        "said": said,
    }
    print("FOUND " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]))
