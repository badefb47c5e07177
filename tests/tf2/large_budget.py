"""A program of its own: `fit`, plain or under a budget that holds all; prints as JSON what the allocator saw of each step.

What else is in a process, and in what pieces its allocator's memory lies, is part of a peak. Hence not in the tests' process.
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

BATCH, STEPS = 64, 8


def main(kind: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(3)
    inputs = x = keras.Input((32, 32, 3))
    for width in (16, 32):
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(keras.layers.Conv2D(width, 3, padding="same")(x)))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"], jit_compile=False)
    if kind == "planned":
        checkmate.tf2.rematerialize(model, budget="64GiB", cost_model="roofline")
    peaks: list[int] = []

    def begin(batch, logs):
        tf.config.experimental.reset_memory_stats("CPU:0")

    def end(batch, logs):
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])

    chance = np.random.default_rng(0)
    images, labels = chance.normal(size=(BATCH * STEPS, 32, 32, 3)).astype("float32"), chance.integers(0, 4, BATCH * STEPS)
    each = keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)
    history = model.fit(images, labels, batch_size=BATCH, verbose=0, callbacks=[each]).history
    print("FOUND " + json.dumps({"peaks": peaks, "loss": history["loss"]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
