"""`checkmate bench workers`: two workers of a MultiWorkerMirroredStrategy on this machine, plain
and planned.

Twenty steps of a small convolutional net with BatchNormalization and Dropout; each worker trains on
its half of every batch. The losses are compared step by step, and each worker's measured peak with
the budget.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from checkmate.bench.training import MIB
from checkmate.errors import CheckmateError

COLUMNS = (
    "graph optimizer",
    "worker",
    "losses differ by",
    "plain MiB",
    "planned MiB",
    "budget MiB",
    "recomputed",
)
WORKERS, STEPS, BATCH, SIZE, EXAMPLES = 2, 20, 16, 64, 256


def measure(budget: str) -> Iterator[dict[str, Any]]:
    """Yields a row per worker, with TensorFlow's graph optimizer (which fuses ops of the two kinds
    of steps differently) and without.

    difference is the largest relative difference of a loss; plain_bytes and planned_bytes are peaks
    over all steps but the first.
    """
    for optimized in (True, False):
        plain, planned = (_cluster(optimized, each) for each in ("", budget))
        for k, (a, b) in enumerate(zip(plain, planned, strict=True)):
            yield {
                "optimized": optimized,
                "worker": k,
                "difference": max(
                    abs(x - y) / abs(x) for x, y in zip(a["losses"], b["losses"], strict=True)
                ),
                "plain_bytes": a["peak_bytes"],
                "planned_bytes": b["peak_bytes"],
                "budget_bytes": b["budget_bytes"],
                "recomputed": b["recomputed"],
            }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    return (
        "on" if row["optimized"] else "off",
        str(row["worker"]),
        f"{row['difference']:.1e}" if row["difference"] else "nothing",
        *(f"{row[key] / MIB:.1f}" for key in ("plain_bytes", "planned_bytes", "budget_bytes")),
        str(row["recomputed"]),
    )


def _cluster(optimized: bool, budget: str, *, timeout_s: float = 900) -> list[dict[str, Any]]:
    """Returns the figures of each worker of a new cluster; plain without a budget."""
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(WORKERS)]
    workers = []
    for k in range(WORKERS):
        tasks = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(tasks),
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [sys.executable, "-m", "checkmate.bench.workers", str(int(optimized)), budget]
        workers.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    found = []
    try:
        for k, worker in enumerate(workers):
            said, errors = worker.communicate(timeout=timeout_s)
            if worker.returncode:
                tail = "\n".join(errors.strip().splitlines()[-6:])
                raise CheckmateError(f"Worker {k} ended with status {worker.returncode}:\n{tail}")
            found.append(json.loads(said.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired as error:
        raise CheckmateError(f"The workers were stopped after {timeout_s:.0f} s.") from error
    finally:
        for worker in workers:
            worker.kill()
    return found


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def work(optimized: bool, budget: str) -> dict[str, Any]:
    """Trains as one of the workers that TF_CONFIG names."""
    import numpy as np
    import tensorflow as tf

    import checkmate

    tf.config.experimental.enable_op_determinism()
    if not optimized:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    step, optimizer = replica_step(strategy)
    planned: Any = None
    run: Any = tf.function(lambda *batch: strategy.run(step, args=batch))
    if budget:
        run = planned = checkmate.tf2.function(
            step, budget=budget, strategy=strategy, optimizer=optimizer
        )
    random = np.random.default_rng(0)
    images = random.normal(size=(EXAMPLES, SIZE, SIZE, 3)).astype("float32")
    labels = random.integers(0, 10, EXAMPLES)
    losses, device, task = [], "CPU:0", strategy.cluster_resolver.task_id
    for k in range(STEPS):
        own = (np.arange(BATCH) + (k * WORKERS + task) * BATCH) % EXAMPLES
        loss = run(tf.constant(images[own]), tf.constant(labels[own]))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
        if not k:  # the first step plans
            tf.config.experimental.reset_memory_stats(device)
    return {
        "losses": losses,
        "peak_bytes": tf.config.experimental.get_memory_info(device)["peak"],
        "budget_bytes": planned.budget_bytes if planned else None,
        "recomputed": len(planned.plan.recomputed) if planned else 0,
    }


def replica_step(strategy: Any) -> tuple[Any, Any]:
    """Returns a worker's training step of a small convolutional net, and the optimizer."""
    import keras
    import tensorflow as tf

    layers = keras.layers
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = x = keras.Input((SIZE, SIZE, 3))
        for width in (32, 32, 64, 64):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.Dropout(0.1)(layers.ReLU()(layers.BatchNormalization()(x)))
        model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses) / WORKERS
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, optimizer


if __name__ == "__main__":
    print(json.dumps(work(bool(int(sys.argv[1])), sys.argv[2])))
