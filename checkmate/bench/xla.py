"""`checkmate bench xla`: does recomputation survive XLA? A chain of dense layers, every second
value recomputed, in six ways.

All layers are alike, and memory holds little but activations. Each pair of layers keeps its input
only, and is computed again when its gradient arrives. `tf.recompute_grad` makes the second
evaluation depend on that gradient by arithmetic. XLA may remove that dependency and merge the two
evaluations, unless an optimization barrier (the HLO op `opt-barrier`) separates them: on the kept
input alone, or on the kept input and the arriving gradient, so that the second evaluation cannot
start before the gradient arrives.

Memory is the allocator's peak above the resting level, compiled temporaries included. `tanh` counts
these ops in the compiled program: as many as layers means that the recomputation was merged, half
as many again or more that it was kept.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.bench.training import MIB
from checkmate.errors import UnsupportedError

PRIVATE = ("tensorflow.compiler.tf2xla.ops.gen_xla_ops", "xla_optimization_barrier")
"""A private name of TensorFlow: the barrier has no public one."""

WAYS = (
    "plain",
    "recompute_grad",
    "plain, XLA",
    "recompute_grad, XLA",
    "barrier on input, XLA",
    "barrier on input and gradient, XLA",
)
COLUMNS = ("way", "peak MiB", "/ plain", "step s", "tanh", "barriers")
LAYERS, WIDTH, BATCH, STEPS = 8, 256, 4096, 5


def measure() -> Iterator[dict[str, Any]]:
    """Yields a row per way; tanh and barriers are counts of ops, None without XLA."""
    plain = None
    for way in WAYS:
        row = fresh_process("checkmate.bench.xla", [way])
        plain = plain or row["peak_bytes"]
        yield {"way": way, "plain_bytes": plain, **row}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    counts = ("-" if row[key] is None else str(row[key]) for key in ("tanh", "barriers"))
    return (
        row["way"],
        f"{row['peak_bytes'] / MIB:.0f}",
        f"{row['peak_bytes'] / row['plain_bytes']:.2f}",
        f"{row['step_s']:.3f}",
        *counts,
    )


def train(way: str) -> dict[str, Any]:
    """Runs one way in this process."""
    import tensorflow as tf

    from checkmate.tf2 import device as devices

    weights = [
        tf.Variable(tf.random.stateless_normal((WIDTH, WIDTH), (1, k)) / WIDTH**0.5)
        for k in range(LAYERS)
    ]
    batch = tf.random.stateless_normal((BATCH, WIDTH), (2, 3))
    network = _chain(weights, way.removesuffix(", XLA"))
    compiled = way.endswith("XLA")

    @tf.function(jit_compile=compiled, autograph=False)
    def step(batch: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(network(batch) ** 2)
        return loss, tape.gradient(loss, weights)

    step(batch)
    device, seconds, peak = devices.training_device(), [], 0
    for _ in range(STEPS):
        started = time.perf_counter()
        result, resting, highest = devices.peak_above(device, lambda: step(batch))
        seconds.append(time.perf_counter() - started)
        peak = max(peak, highest - resting)
        del result  # else it counts as part of the resting level
    found = {
        "peak_bytes": peak,
        "step_s": statistics.median(seconds),
        "tanh": None,
        "barriers": None,
    }
    if compiled:
        program = step.experimental_get_compiler_ir(batch)(stage="optimized_hlo")
        found |= {
            "tanh": len(re.findall(r" tanh\(", program)),
            "barriers": len(re.findall(r" opt-barrier\(", program)),
        }
    return found


def _chain(weights: list[Any], way: str) -> Callable:
    """Returns the layers in pairs, each recomputed in the backward pass in this way."""
    import tensorflow as tf

    def pair(x: tf.Tensor, k: int) -> tf.Tensor:
        for weight in weights[k : k + 2]:
            x = tf.sin(tf.tanh(x @ weight) * 3.0)
        return x

    def with_barrier(k: int) -> Callable:
        @tf.custom_gradient
        def forward(x: tf.Tensor) -> Any:
            def backward(gradient: tf.Tensor, variables: Any = ()) -> Any:
                again, arriving = (
                    _barrier(x, gradient) if "gradient" in way else (*_barrier(x), gradient)
                )
                with tf.GradientTape() as tape:
                    tape.watch(again)
                    y = pair(again, k)
                gradients = tape.gradient(y, [again, *variables], arriving)
                return gradients[0], gradients[1:]

            return pair(x, k), backward

        return forward

    wrap = {
        "plain": lambda k: lambda x: pair(x, k),
        "recompute_grad": lambda k: tf.recompute_grad(lambda x: pair(x, k)),
    }.get(way, with_barrier)

    def network(x: tf.Tensor) -> tf.Tensor:
        for k in range(0, LAYERS, 2):
            x = wrap(k)(x)
        return x

    return network


def _barrier(*tensors: Any) -> list[Any]:
    module, name = PRIVATE
    try:
        barrier = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"This TensorFlow has no {module}.{name}; `bench xla` needs it for its last rows."
        ) from None
    return barrier(list(tensors))


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1])))
