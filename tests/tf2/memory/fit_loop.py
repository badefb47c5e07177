"""A program of its own: `fit` of a model whose optimizer is not built, under a budget; prints as
JSON what the allocator counted.

Arguments: which optimizer ("adam", "ema", "accumulated" or "two outputs"), what feeds it ("arrays",
"dataset" or "generator"), and the budget.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import numpy as np
import tensorflow as tf

import checkmate

BATCH, WIDTH, FEATURES = 1024, 512, 64
EXAMPLES = 3 * BATCH + 100  # the last batch is smaller


def compiled(kind: str) -> keras.Model:
    inputs = x = keras.Input((FEATURES,))
    for _ in range(4):
        x = keras.layers.Dense(WIDTH, activation="gelu")(x)
    outputs = [keras.layers.Dense(4)(x) for _ in range(2 if kind == "two outputs" else 1)]
    options = {"ema": {"use_ema": True}, "accumulated": {"gradient_accumulation_steps": 2}}.get(
        kind, {}
    )
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(**options),
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in outputs],
    )
    return model


def fed(kind: str, feed: str) -> dict:
    chance = np.random.default_rng(0)
    x, y = (
        chance.normal(size=(EXAMPLES, FEATURES)).astype("float32"),
        chance.integers(0, 4, EXAMPLES),
    )
    labels = (y, y) if kind == "two outputs" else y
    if feed == "arrays":
        return {
            "x": x,
            "y": list(labels) if isinstance(labels, tuple) else labels,
            "batch_size": BATCH,
        }
    if feed == "dataset":
        return {
            "x": tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH).repeat().prefetch(4),
            "steps_per_epoch": 4,
        }

    def batches():
        while True:
            for k in range(0, EXAMPLES, BATCH):
                yield (
                    x[k : k + BATCH],
                    tf.nest.map_structure(lambda each, k=k: each[k : k + BATCH], labels),
                )

    return {"x": batches(), "steps_per_epoch": 4}


class AfterPlanning(keras.callbacks.Callback):
    """Counts from the second batch on: the first one is planned for, which runs other things than
    training."""

    counted = False

    def on_train_batch_end(self, batch, logs=None):
        if not self.counted:
            tf.config.experimental.reset_memory_stats("CPU:0")
            self.counted = True


def main() -> None:
    kind, feed, budget = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = compiled(kind)
    checkmate.tf2.rematerialize(model, budget=budget, cost_model="roofline", verbose=False)
    model.fit(**fed(kind, feed), epochs=3, verbose=0, callbacks=[AfterPlanning()])
    report, info = (
        checkmate.tf2.planned(model).report(),
        tf.config.experimental.get_memory_info("CPU:0"),
    )
    found = {
        name: getattr(report, name)
        for name in ("budget_bytes", "outside_bytes", "plain_peak_bytes", "measured_peak_bytes")
    }
    print(
        "FOUND "
        + json.dumps(
            found
            | {
                "peak_bytes": info["peak"],
                "recomputed": bool(report.result and report.result.plan.recomputed),
            }
        )
    )


if __name__ == "__main__":
    main()
