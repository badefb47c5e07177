"""Traces the training steps of small Keras MLPs with Adam, and saves their graphs beside this file.

`python tests/graphs/trace_mlps.py` writes them anew: costs in seconds by the roofline of a CPU,
sizes of float32 values, weights that the update overwrites. Nothing is run.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from dataclasses import replace
from pathlib import Path

FOLDER = Path(__file__).parent
MODELS = {
    "mlp_8x256": {"layers": 8, "width": 256, "batch": 8192, "fused": False},
    "mlp_12x512": {"layers": 12, "width": 512, "batch": 8192, "fused": True},
    "mlp_12x512_small_batch": {"layers": 12, "width": 512, "batch": 1024, "fused": True},
    "mlp_6x64_dropout": {"layers": 6, "width": 64, "batch": 256, "fused": False, "dropout": 0.1},
}
"""What each is: hidden layers, their width, examples in a batch, share that dropout takes out, and
whether TensorFlow's graph optimizer fused ops."""


def traced(name: str, layers: int, width: int, batch: int, fused: bool, dropout: float = 0.0):
    """The graph of one step: `layers` dense layers with ReLU, ten classes, cross-entropy, Adam."""
    import keras
    import tensorflow as tf

    from checkmate.tf2 import trace
    from checkmate.tf2.compile import training_step
    from checkmate.tf2.costs.measured import with_costs

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not fused})
    keras.backend.clear_session()
    hidden: list = []
    for _ in range(layers):
        hidden.append(keras.layers.Dense(width, activation="relu"))
        hidden += [keras.layers.Dropout(dropout)] if dropout else []
    head = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input((width,)), *hidden, head])
    loss = keras.losses.SparseCategoricalCrossentropy()
    specs = tf.TensorSpec((batch, width)), tf.TensorSpec((batch,), tf.int32)
    step, arguments = training_step(model, loss, "adam", *specs)
    return replace(with_costs(trace(step, *arguments), "roofline"), name=name)


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    for name, facts in MODELS.items():
        graph = traced(name, **facts)
        with tempfile.TemporaryDirectory() as folder:
            graph.save(Path(folder) / "graph.json")
            text = (Path(folder) / "graph.json").read_bytes()
        packed = gzip.compress(text, 9, mtime=0)
        (FOLDER / f"{name}.json.gz").write_bytes(packed)
        print(f"{name}: {len(graph)} ops, {len(packed):,} bytes")
