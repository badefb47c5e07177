"""A program of its own: trains with a strategy, plain and in micro-batches, and prints as JSON what
it found.

Logical devices and the workers of a cluster must be set up before TensorFlow starts, hence not in
the tests' process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2 import device as devices

WIDTH, CLASSES = 128, 4
peaks: list[int] = []
"""The most bytes in use in a whole step, planned and plain."""


def model_of(strategy, norm):
    """Activations of 1 MiB and more for 2048 examples, and weights that are small to them."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = x = keras.Input((WIDTH,))
        for _ in range(3):
            x = getattr(keras.layers, norm)()(keras.layers.Dense(2 * WIDTH)(x))
            x = keras.layers.Dropout(0.2)(keras.layers.Activation("gelu")(x))
        model = keras.Model(inputs, keras.layers.Dense(CLASSES)(x), name="replicated")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0), loss, metrics=["accuracy"]
        )
    return model


def fit(strategy, model, options, x, y, batch):
    """Keras's own loop, of two epochs."""
    if options:
        checkmate.tf2.rematerialize(model, **options)
    losses: list[float] = []
    each = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: losses.append(float(logs["loss"]))
    )
    model.fit(x, y, batch_size=batch, epochs=2, verbose=0, shuffle=False, callbacks=[each])
    return losses, checkmate.tf2.planned(model) if options else None


def loop(strategy, model, options, x, y, batch):
    """A loop of one's own in the scope of the strategy, each worker with its part of each batch."""
    optimizer, replicas = model.optimizer, strategy.num_replicas_in_sync
    resolver = strategy.cluster_resolver
    workers, task = (1, 0)
    if resolver is not None and resolver.task_type:
        workers, task = len(resolver.cluster_spec().as_dict()["worker"]), resolver.task_id

    def step(x, y):
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            loss = tf.reduce_mean(each) / replicas
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    with strategy.scope():
        optimizer.build(model.trainable_variables)
        planned = options and checkmate.tf2.function(
            step, strategy=strategy, optimizer=optimizer, **options
        )
        run = planned or tf.function(lambda x, y: strategy.run(step, args=(x, y)))
        losses = []
        for k in [*range(0, len(x), batch)] * 2:
            own = slice(k + task * batch // workers, k + (task + 1) * batch // workers)
            found = run(tf.constant(x[own]), tf.constant(y[own]))
            losses.append(float(strategy.reduce("SUM", found, axis=None)))
        first = tf.constant(x[:batch]), tf.constant(y[:batch])
        if workers == 1:
            peaks.append(devices.peak_above("CPU:0", lambda: run(*first))[2])
    return losses, planned or None


def trained(train, strategy, norm, options, x, y, batch):
    model = model_of(strategy, norm)
    losses, step = train(strategy, model, options, x, y, batch)
    weights = [float(np.abs(each).sum(dtype=np.float64)) for each in model.get_weights()]
    updates = int(model.optimizer.iterations.numpy())
    return {"losses": losses, "weights": weights, "updates": updates}, step


def kept_on(step):
    """The devices on which each replica of the first step keeps sums."""
    run = step.steps[0].planned.run
    if not hasattr(run, "in_slices"):
        return None
    return [
        sorted({variable.device.rpartition("device:")[2] for variable in each.kept})
        for each in (run.in_slices, *run.others)
    ]


def shared(step):
    """How many variables of the second replica all sizes of a batch have in common."""
    runs = [each.planned.run for each in step.steps]
    kept = [{id(each) for each in r.others[0].kept} for r in runs if hasattr(r, "others")]
    return len(set.intersection(*kept)) if kept else 0


def main(kind: str, batch: int, examples: int, budget: str, micro: str, norm: str) -> None:
    if kind != "workers":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy()
        if kind == "workers"
        else tf.distribute.MirroredStrategy(["CPU:0"] if kind == "alone" else ["CPU:0", "CPU:1"])
    )
    chance = np.random.default_rng(0)
    x = chance.normal(size=(examples, WIDTH)).astype("float32")
    y = chance.integers(0, CLASSES, examples)
    train = fit if kind == "fit" else loop
    options = {
        "budget": budget,
        "micro_batches": micro if micro == "auto" else int(micro),
        "cost_model": "roofline",
        "solver": UNHURRIED,
    }
    try:
        found, step = trained(train, strategy, norm, options, x, y, batch)
    except checkmate.TraceError as error:
        print("FOUND " + json.dumps({"refused": str(error)}), flush=True)
        return
    plain, _ = trained(train, strategy, norm, None, x, y, batch)
    report = step.report()
    result = {
        "plain": plain,
        "planned": found,
        "slices": [[m.count, m.size] for m in (s.report().micro_batches for s in step.steps) if m],
        "recomputed": len(step.plan.recomputed),
        "kept_on": kept_on(step),
        "shared": shared(step) if len(strategy.extended.worker_devices) > 1 else 0,
        "notes": report.notes,
        "peaks": [report.expected_peak_bytes, report.plain_peak_bytes, step.budget_bytes],
        "steps": [[type(each).__name__, each.op] for each in step.plan.steps],
        "whole_steps": peaks,
    }
    print("FOUND " + json.dumps(result), flush=True)


if __name__ == "__main__":
    # fit or loop on two devices, alone: a loop on one, workers: a loop of two processes
    kind, batch, examples, *rest = sys.argv[1:]
    main(kind, int(batch), int(examples), *rest)
