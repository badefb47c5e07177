"""The line of `checkmate bench accept` about replicas: two on two GPUs, or on two halves of a
CPU."""

from __future__ import annotations

from typing import Any

from checkmate.bench.accept_outcome import STEPS, NotRunError, Outcome
from checkmate.bench.accept_stage import stage
from checkmate.bench.training import LOSS_TOLERANCE, loss_difference


def replicas() -> Outcome:
    """Are the losses of two planned replicas those of plain ones, and is the peak of each within
    the budget?"""
    plain, planned = stage(train, ""), stage(train, "60%")
    difference = loss_difference(plain["losses"], planned["losses"])
    figures = {key: value for key, value in planned.items() if key != "losses"}
    peaks = [value for key, value in figures.items() if key.endswith("peak_bytes")]
    return Outcome(
        difference <= LOSS_TOLERANCE and all(each <= figures["budget_bytes"] for each in peaks),
        {**figures, "loss_difference": difference},
    )


def train(budget: str) -> dict[str, Any]:
    """Trains two replicas in this process, plain without a budget. Two halves of a CPU share one
    allocator, so that their peaks are not told."""
    import tensorflow as tf

    import checkmate
    from checkmate.bench.workers import replica_step

    devices = _two_devices()
    strategy = tf.distribute.MirroredStrategy(devices)
    step, optimizer = replica_step(strategy)
    run: Any = tf.function(lambda *batch: strategy.run(step, args=batch))
    planned: Any = None
    if budget:
        run = planned = checkmate.tf2.function(
            step, budget=budget, strategy=strategy, optimizer=optimizer
        )
    batches = [
        (
            tf.random.stateless_normal((16, 64, 64, 3), (1, k)),
            tf.random.stateless_uniform((16,), (2, k), maxval=10, dtype=tf.int32),
        )
        for k in range(2)
    ]
    both = [
        strategy.experimental_distribute_values_from_function(
            lambda context, i=i: batches[context.replica_id_in_sync_group][i]
        )
        for i in range(2)
    ]
    losses: list[float] = []
    for k in range(STEPS):
        losses.append(float(strategy.reduce("SUM", run(*both), axis=None)))
        for device in _with_own_allocators(devices) if not k else ():  # the first step plans
            tf.config.experimental.reset_memory_stats(device)
    peaks = {
        f"{device}_peak_bytes": tf.config.experimental.get_memory_info(device)["peak"]
        for device in _with_own_allocators(devices)
    }
    found = {"losses": losses, **peaks}
    if planned:
        recomputed = len(planned.plan.recomputed)
        found |= {"budget_bytes": planned.budget_bytes, "recomputed": recomputed}
    return found


def _two_devices() -> list[str]:
    """Two GPUs, or a CPU in two halves where there is none."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) == 1:
        raise NotRunError("TensorFlow sees one GPU, and this takes two")
    if not gpus:
        part = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [part, part]
        )
    return [f"{'GPU' if gpus else 'CPU'}:{k}" for k in range(2)]


def _with_own_allocators(devices: list[str]) -> list[str]:
    return [device for device in devices if device.startswith("GPU")]
