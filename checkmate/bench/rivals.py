"""`checkmate bench rivals`: memory and time of plain steps, XLA, Keras's rematerialization, and of
this library ("ours") at some budgets.

Each method trains in a process of its own. Memory is the allocator's peak, everything resident
included (variables, optimizer slots, the batch), of which a budget is a share, too. Plain steps are
timed in turn with the method's. Losses are compared step by step with those of the plain step from
the same seed; a method whose losses differ by more than rounding trains another model.

Keras's `RematScope` acts on the layers built in it. "remat by hand" stands for a user of
`keras.remat` who knows the model: it is cut at layers whose output is all that later layers read,
into sqrt(n) segments of about equal memory, each recomputed in the backward pass (Chen et al.,
2016).
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import (
    MIB,
    plain_step,
    planned_step,
    timed,
    timed_in_turn,
)
from checkmate.errors import CheckmateError

NAMES = ("mobilenet", "resnet50", "transformer")
METHODS = (
    "xla",
    "remat full",
    "remat activations",
    "remat larger_than",
    "remat layers",
    "remat by hand",
)
"""The other methods, by name."""

COLUMNS = (
    "model",
    "method",
    "peak MiB",
    "/ plain",
    "step s",
    "/ plain",
    "quartiles",
    "losses off by",
    "first call s",
)
LARGE = 2**18
"""Elements from which on RematScope(mode="larger_than") recomputes an output: 1 MiB of float32."""


def measure(
    name: str, methods: Sequence[str], budgets: str, steps: int
) -> Iterator[dict[str, Any]]:
    """Yields a row per method; one that failed has `error` instead of figures."""
    module = "checkmate.bench.rivals"
    plain = fresh_process(module, [name, "plain", str(steps)])
    yield {"model": name, "method": "plain", **_compared(plain, plain)}
    ours = budgets.split(",")
    for method in (*methods, *ours):
        row = {"model": name, "method": f"ours, {method}" if method in ours else method}
        try:
            found = fresh_process(module, [name, method, str(steps)])
        except CheckmateError as error:
            yield {**row, "error": last_line(error)}
            continue
        yield {**row, **_compared(found, plain)}


def _compared(found: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    pairs = zip(plain["losses"], found["losses"], strict=True)
    return {
        **found,
        "plain_bytes": plain["peak_bytes"],
        "loss_difference": max(abs(a - b) / abs(a) for a, b in pairs),
    }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["model"], row["method"], f"no: {row['error'][:110]}")
    low, middle, high = row["ratio_quartiles"]
    return (
        row["model"],
        row["method"],
        f"{row['peak_bytes'] / MIB:.0f}",
        f"{row['peak_bytes'] / row['plain_bytes']:.2f}",
        f"{row['step_s']:.2f}",
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{row['loss_difference']:.0e}",
        f"{row['first_call_s']:.1f}",
    )


def run(name: str, method: str, steps: int) -> dict[str, Any]:
    """Trains a workload by one method in this process, and returns the figures. A budget as method
    stands for this library."""
    import keras

    from checkmate.bench.models import workload

    keras.config.disable_traceback_filtering()  # so that an error's last line is its cause
    keras.utils.set_random_seed(0)
    with _scope(name, method):
        work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    started = time.perf_counter()
    step: Callable[..., Any]
    if method in ("plain", *METHODS):
        forward = in_segments(work.model) if method == "remat by hand" else None
        step = plain_step(work, optimizer, forward=forward, jit_compile=method == "xla")
    else:
        step = planned_step(work, optimizer, method)
    first = timed(step, work)
    found: dict[str, Any] = {"first_call_s": time.perf_counter() - started}
    ran = [first, *(timed(step, work) for _ in range(steps - 1))]
    found["peak_bytes"] = max(each.peak_bytes for each in ran)
    found["losses"] = [each.loss for each in ran]
    if method.startswith("remat"):  # a scope may have changed the model
        other, optimizer = workload(name), keras.optimizers.Adam(1e-4)
    else:
        other = work  # a second model would take of the budget
    plain = plain_step(other, optimizer)
    return found | timed_in_turn(steps, lambda: timed(plain, other), lambda: timed(step, work))


def _scope(name: str, method: str) -> AbstractContextManager:
    """Returns the context in which the model is built."""
    import keras

    from checkmate.bench.models import workload

    if method == "remat layers":
        # Keras's scope does not pass `training` on, so it can recompute these layers only.
        layers = workload(name, 1).model.layers
        names = [
            layer.name
            for layer in layers
            if not layer._call_has_training_arg and not isinstance(layer, keras.layers.InputLayer)
        ]
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        return keras.RematScope(mode="list_of_layers", layer_names=names)
    if method in ("remat full", "remat activations", "remat larger_than"):
        return keras.RematScope(mode=method.split()[1], output_size_threshold=LARGE)
    return nullcontext()


def in_segments(model: Any) -> Callable[[Any], Any]:
    """Returns the forward pass of a functional model in segments of about equal memory, each under
    `keras.remat`."""
    import keras

    cuts = articulation_layers(model)
    segments = max(1, round(math.sqrt(len(cuts))))
    sizes = [_elements(layer) for layer in model.layers]
    at, total, ends = 0, 0, []
    for layer, size in zip(model.layers, sizes, strict=True):
        total += size
        if layer in cuts and total >= (at + 1) * sum(sizes) / segments:
            at = int(total * segments / sum(sizes))
            ends.append(layer.output)
    starts = [model.input, *ends]
    parts = [
        keras.Model(start, end)
        for start, end in zip(starts, [*ends, model.output], strict=True)
        if start is not end
    ]

    def forward(inputs: Any) -> Any:
        for part in parts[:-1]:
            inputs = _remat(part)(inputs)
        return parts[-1](inputs, training=True)  # the backward pass reads this part first

    return forward


def _remat(part: Any) -> Callable[[Any], Any]:
    import keras

    return keras.remat(lambda value: part(value, training=True))


def _elements(layer: Any) -> int:
    return math.prod(size or 1 for size in layer.output.shape)


def articulation_layers(model: Any) -> list[Any]:
    """Returns the layers of a functional model whose output is all that later layers read."""
    place = {layer: k for k, layer in enumerate(model.layers)}
    last_use = {
        layer: max(
            (place[node.operation] for node in layer._outbound_nodes if node.operation in place),
            default=len(place),
        )
        for layer in place
    }
    found, open_until = [], 0
    for layer, k in place.items():
        if k >= open_until:
            found.append(layer)
        open_until = max(open_until, last_use[layer])
    return found


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
