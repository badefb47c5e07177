"""The nets that the tests marked `gpu` train: small enough for two cores of a CPU, with larger
batches on a GPU.

TensorFlow is imported on the first call.
"""

from __future__ import annotations

from typing import Any

NETS = ("cnn", "cnn_bf16", "transformer_fp16", "lstm")
"""A U-Net in float32 and in bfloat16, a transformer in float16, stacked LSTMs. On a GPU each runs
other kernels, and TensorFlow's layout pass rewrites only the first."""

_BATCHES = {"cnn": 32, "cnn_bf16": 32, "transformer_fp16": 32, "lstm": 64}
_ON_GPU = 8
"""How many times as large a batch is on a GPU, where the kernels of a small one take less time than
starting them."""

_POLICIES = {"cnn_bf16": "mixed_bfloat16", "transformer_fp16": "mixed_float16"}


def net(name: str, batch: int | None = None) -> Any:
    """Builds a net of `NETS` and a made-up batch, both the same each time, of 32 or 64 examples, on
    a GPU eight times as many. Keras's dtype policy stays as it was."""
    import keras

    from benchmarks.models import lstm
    from checkmate.demo import models
    from checkmate.tf2 import device as devices

    times = _ON_GPU if devices.training_device().startswith("GPU") else 1
    size = batch or times * _BATCHES[name]
    policy = keras.config.dtype_policy()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(_POLICIES.get(name, "float32"))
    try:
        if name.startswith("cnn"):
            return models.unet(batch=size, size=64, widths=(16, 32, 64))
        if name == "lstm":
            return lstm(batch=size, length=32, depth=2)
        return models.transformer(batch=size, length=64, width=128, depth=3)
    finally:
        keras.config.set_dtype_policy(policy)
