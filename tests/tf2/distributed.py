"""A program of its own: trains with a strategy, plain and under a budget, and prints as JSON what
it found.

Logical devices and the workers of a cluster must be set up before TensorFlow starts, hence not in
the tests' process.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import numpy as np
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2 import device as devices

WIDTH = 32
FAST = {"cost_model": "roofline", "solver": UNHURRIED}


def model_of(strategy):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = x = keras.Input((WIDTH,))
        for _ in range(2):
            x = keras.layers.Dense(4 * WIDTH)(x)
            x = keras.layers.Dropout(0.2)(
                keras.layers.Activation("gelu")(keras.layers.BatchNormalization()(x))
            )
        model = keras.Model(inputs, keras.layers.Dense(4)(x), name="replicated")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=1.0), loss, metrics=["accuracy"])
    return model


def fit(strategy, budget, x, y, batch, epochs):
    """Keras's own loop."""
    model = model_of(strategy)
    if budget:
        checkmate.tf2.rematerialize(model, budget=budget, **FAST)
    losses: list[float] = []
    each = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: losses.append(float(logs["loss"]))
    )
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, shuffle=False, callbacks=[each])
    return model, losses, checkmate.tf2.planned(model) if budget else None


def loop(strategy, budget, x, y, batch, epochs):
    """A loop of one's own, each worker with its part of every batch. (Keras 3.15 breaks off a `fit`
    of several workers.)"""
    model = model_of(strategy)
    optimizer, workers, task = (
        model.optimizer,
        strategy.num_replicas_in_sync,
        strategy.cluster_resolver.task_id,
    )
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses) / workers
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    planned = (
        checkmate.tf2.function(step, budget=budget, strategy=strategy, optimizer=optimizer, **FAST)
        if budget
        else None
    )
    run = planned or tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    losses = []
    for _ in range(epochs):
        for k in range(0, len(x), batch):
            own = slice(k + task * batch // workers, k + (task + 1) * batch // workers)
            losses.append(
                float(
                    strategy.reduce("SUM", run(tf.constant(x[own]), tf.constant(y[own])), axis=None)
                )
            )
    return model, losses, planned


def unbuilt(strategy, budget, x, y):
    """The losses of a model whose input shape comes with the data."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if budget:
        checkmate.tf2.rematerialize(model, budget=budget, **FAST)
    return model.fit(x, y, batch_size=64, epochs=2, verbose=0, shuffle=False).history["loss"]


def refused_in_slices(strategy, x, y):
    """The refusal of slices that would be batches of their own."""
    model = model_of(strategy)
    checkmate.tf2.rematerialize(model, budget="1GiB", micro_batches=2, **FAST)
    try:
        model.fit(x, y, batch_size=512, verbose=0)
    except checkmate.errors.TraceError as error:
        return str(error)
    return ""


def losses_of(strategy, budget, batch):
    """The losses of a few steps of a wide model, the step, and the model's weights in bytes."""
    keras.utils.set_random_seed(3)
    width = batch[0].shape[1]
    with strategy.scope():
        layers = [keras.layers.Dense(width, activation="gelu") for _ in range(3)]
        model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(4)])
        optimizer = keras.optimizers.Adam()

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses) / 2
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    if budget:
        run = checkmate.tf2.function(
            step, budget=budget, strategy=strategy, optimizer=optimizer, **FAST
        )
    else:
        with strategy.scope():
            optimizer.build(model.trainable_variables)
        run = tf.function(lambda *args: strategy.run(step, args=args))
    losses = [
        strategy.reduce("SUM", run(*batch), axis=None).numpy().tobytes().hex() for _ in range(4)
    ]
    return losses, run, 4 * model.count_params()


def memory(strategy, batch):
    """What is in use, what was counted, and whether losses are the same."""
    plain, *_ = losses_of(strategy, None, batch)
    said: list[str] = []
    logging.getLogger("checkmate").addFilter(lambda each: said.append(each.getMessage()) or True)
    before = devices.bytes_in_use("CPU:0")
    losses, step, weights = losses_of(strategy, "85%", batch)
    report = step.report()
    return {
        "same": losses == plain,
        "changes": len(set(losses)),
        "recomputed": len(step.plan.recomputed),
        "counted": report.memory.start_bytes - before,
        "in_use": devices.bytes_in_use("CPU:0") - before,
        "weights": weights,
        "notes": report.notes,
        "said": said,
    }


def main(kind: str, batch: int, examples: int, epochs: int) -> None:
    if kind != "workers":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        if kind != "workers"
        else tf.distribute.MultiWorkerMirroredStrategy()
    )
    handler = logging.handlers.BufferingHandler(1000)
    tf.get_logger().addHandler(handler)
    chance = np.random.default_rng(0)
    if kind == "memory":
        x, y = chance.normal(size=(batch, 512)).astype("float32"), chance.integers(0, 4, batch)
        print("FOUND " + json.dumps(memory(strategy, (tf.constant(x), tf.constant(y)))), flush=True)
        return
    x, y = chance.normal(size=(examples, WIDTH)).astype("float32"), chance.integers(0, 4, examples)
    found = {}
    for budget in (None, "85%"):
        model, losses, step = (fit if kind == "mirrored" else loop)(
            strategy, budget, x, y, batch, epochs
        )
        weights = float(sum(np.abs(weight).sum(dtype=np.float64) for weight in model.get_weights()))
        found["planned" if budget else "plain"] = {"losses": losses, "weights": weights}
    if kind == "mirrored":
        found["unbuilt"] = [unbuilt(strategy, budget, x, y) for budget in (None, "1GiB")]
        found["refused"] = refused_in_slices(strategy, x, y)
        found["warned"] = [record.getMessage() for record in handler.buffer]
        found["ran"] = step.report().steps, step.report().measured_peak_bytes
    found["recomputed"] = len(step.plan.recomputed)
    found["steps"] = [[type(each).__name__, each.op] for each in step.plan.steps]
    found["notes"] = step.report().notes
    runs = [each.planned.run for each in getattr(step, "steps", ())]
    found["rooms"] = [getattr(run, "buffers", None) is not None for run in runs]
    found["peaks"] = [step.report().expected_peak_bytes, step.budget_bytes]
    print("FOUND " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
