"""A way to train a workload, in this process: plain, by XLA, with Keras's rematerialization or its
gradient accumulation, or within a budget by this library ("ours").

Keras's `RematScope` acts on the layers built in it. "remat by hand" stands for a user of
`keras.remat` who knows the model: it is cut at layers whose output is all that later layers read,
into sqrt(n) segments of about equal memory, each recomputed in the backward pass (Chen et al.,
2016). "remat attention" and "heads by hand" are for a user who writes the attention of "gpt", as a
whole or head by head, within `keras.remat`; "loss by hand" for one who computes the last layer and
the loss in `SLICES` slices of the examples, each again in the backward pass.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.process import is_out_of_memory, limit_memory, take_steps

LARGE = 2**18
"""Elements from which on RematScope(mode="larger_than") recomputes an output: 1 MiB of float32."""


def train(
    model: str,
    way: str,
    *,
    steps: int,
    batch: int | None = None,
    budget: int | str = "auto",
    parts: int = 1,
    folder: str = "",
    cap_bytes: int | None = None,
) -> None:
    """Trains in this process, which is a `StepProcess`. It tells of the steps: batch, first_wall_s
    and first_cpu_s (from the call of `checkmate.tf2.function`, or of the plain step, to the end of
    the first step: models, slots and batches are built before), peak_bytes, losses; and of ours
    what its report says. Where memory or budget are too small it tells batch alone.

    Args:
      way: One of `training.WAYS`.
      batch: Examples in a batch; None for the workload's own number.
      budget: Of ours.
      parts: Of accumulation, in how many parts a batch runs.
      folder: The folder of measured costs and of plans, which ours fills.
      cap_bytes: A limit for the allocator.
    """
    import keras
    import tensorflow as tf

    import checkmate

    os.environ["CHECKMATE_CACHE_DIR"] = f"{folder}/costs"
    keras.config.disable_traceback_filtering()  # so that an error's last line is its cause
    if cap_bytes:
        limit_memory(cap_bytes)
    from benchmarks.workloads import measured, workload

    keras.utils.set_random_seed(0)
    is_kept = way in ("ours", "ours+plan")
    is_compiled, way = "xla" in way, way.removesuffix("+xla")
    by_hand = {"remat by hand": _loss_in_segments, "loss by hand": _loss_in_slices}.get(way)
    try:
        with _scope(model, way):
            work = workload(model, batch)
        batch = len(work.labels)
        optimizer = keras.optimizers.Adam(
            1e-4, gradient_accumulation_steps=parts if parts > 1 else None
        )
        optimizer.build(work.model.trainable_variables)
        for layer in work.model.layers:
            if hasattr(layer, "by_hand"):
                layer.by_hand = {"remat attention": "remat", "heads by hand": "heads"}.get(way, "")
        step = loss_step(work, optimizer, by_hand)
        pieces = [(work.inputs, work.labels)]
        if parts > 1:
            pieces = list(
                zip(tf.split(work.inputs, parts), tf.split(work.labels, parts), strict=True)
            )
        work = replace(work, inputs=None, labels=None)  # `pieces` alone hold them
        started = _now()
        call: Any
        if way.startswith("ours"):
            call = checkmate.tf2.function(
                step,
                *pieces[0],
                budget=budget,
                micro_batches="auto" if "slices" in way else 1,
                rounding="rounding" in way,
                jit_compile=is_compiled,
                plan=f"{folder}/plans" if is_kept else None,
                verbose=False,
            )
        else:
            call = tf.function(step, jit_compile=is_compiled)

        def run() -> Any:
            losses = [call(*piece) for piece in pieces]
            return losses[0] if len(losses) == 1 else tf.reduce_mean(losses)

        facts = _planned(call) if way.startswith("ours") else {}
        first = float(run())
        ended = _now()
        ran = [measured(run) for _ in range(steps - 1)]
    except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
        if not cap_bytes:
            raise
        return take_steps({"batch": batch})
    except tf.errors.OpError as error:
        if not cap_bytes or not is_out_of_memory(error):
            raise
        return take_steps({"batch": batch})
    take_steps(
        facts
        | {
            "batch": batch,
            "first_wall_s": ended[0] - started[0],
            "first_cpu_s": ended[1] - started[1],
            "peak_bytes": max(each.peak_bytes for each in ran),
            "losses": [first, *(each.loss for each in ran)],
        },
        lambda: measured(run).seconds,
    )


def plain_peak_bytes(model: str, batch: int | None) -> int:
    """Returns the predicted peak of the plain step, of which budgets are shares."""
    import keras

    import checkmate
    from benchmarks.workloads import workload

    work = workload(model, batch)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(work.model.trainable_variables)
    options: dict[str, Any] = {"budget": "1000%", "cost_model": "roofline", "verbose": False}
    step = checkmate.tf2.function(loss_step(work, optimizer), work.inputs, work.labels, **options)
    return step.report().plain_peak_bytes


def loss_step(
    work: Any, optimizer: Any, by_hand: Callable[[Any], Callable[[Any, Any], Any]] | None = None
) -> Callable[[Any, Any], Any]:
    """Returns the usual training step of a workload as a Python function that returns the loss
    alone, as Keras's `fit` does: the predictions of a whole batch need not be kept. `by_hand` makes
    another function of inputs and labels that computes the loss."""
    import tensorflow as tf

    variables = work.model.trainable_variables

    def plain(inputs: Any, labels: Any) -> Any:
        return work.loss(labels, work.model(inputs, training=True))

    loss_of = by_hand(work) if by_hand else plain

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(inputs, labels)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


def _planned(step: Any) -> dict[str, Any]:
    """The report of a planned step."""
    report, result = step.report(), step.report().result
    slices = report.micro_batches
    return {
        "predicted_bytes": report.expected_peak_bytes,
        "predicted_slowdown": report.predicted_slowdown,
        "overhead": result.overhead if result else 1.0,
        "gap": result.gap if result else 0.0,
        "recomputed": len(step.plan.recomputed),
        "ops": len(step.graph),
        "slices": {"count": slices.count, "size": slices.size} if slices else None,
        "phases": report.seconds,
    }


def _now() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of all threads and of child processes that have ended."""
    children = os.times()
    cpu = time.process_time() + children.children_user + children.children_system
    return time.perf_counter(), cpu


def _scope(model: str, way: str) -> AbstractContextManager:
    """The context in which the model is built."""
    import keras

    from benchmarks.workloads import workload

    if way == "remat layers":
        # Keras's scope does not pass `training` on, so it can recompute these layers only.
        names = [
            layer.name
            for layer in workload(model, 1).model.layers
            if not layer._call_has_training_arg and not isinstance(layer, keras.layers.InputLayer)
        ]
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        return keras.RematScope(mode="list_of_layers", layer_names=names)
    if way in ("remat full", "remat activations", "remat larger_than"):
        return keras.RematScope(mode=way.split()[1], output_size_threshold=LARGE)
    return nullcontext()


def in_segments(model: Any) -> Callable[[Any], Any]:
    """Returns the forward pass of a functional model in segments of about equal memory, each under
    `keras.remat`."""
    import keras

    cuts = articulation_layers(model)
    segments = max(1, round(math.sqrt(len(cuts))))
    sizes = [math.prod(size or 1 for size in layer.output.shape) for layer in model.layers]
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

    def recomputed(part: Any) -> Callable[[Any], Any]:
        return keras.remat(lambda value: part(value, training=True))

    def forward(inputs: Any) -> Any:
        for part in parts[:-1]:
            inputs = recomputed(part)(inputs)
        return parts[-1](inputs, training=True)  # the backward pass reads this part first

    return forward


def _loss_in_segments(work: Any) -> Callable[[Any, Any], Any]:
    forward = in_segments(work.model)
    return lambda inputs, labels: work.loss(labels, forward(inputs))


SLICES = 8


def _loss_in_slices(work: Any) -> Callable[[Any, Any], Any]:
    """Returns the loss of a functional model whose last layer and loss run in slices."""
    import keras
    import tensorflow as tf

    model = work.model
    body = keras.Model(model.input, model.layers[-2].output)

    @tf.recompute_grad
    def of_slice(features: Any, labels: Any) -> Any:
        return work.loss(labels, model.layers[-1](features))

    def forward(inputs: Any, labels: Any) -> Any:
        features = body(inputs, training=True)
        rows = tf.reshape(features, (SLICES, -1, features.shape[-1]))
        pairs = zip(tf.unstack(rows), tf.unstack(tf.reshape(labels, (SLICES, -1))), strict=True)
        return tf.reduce_mean([of_slice(*pair) for pair in pairs])

    return forward


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
    request = json.loads(sys.argv[1])
    if "way" in request:
        train(**request)
    else:
        print(json.dumps(plain_peak_bytes(**request)))
