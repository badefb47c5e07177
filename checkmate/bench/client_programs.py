"""The programs of `checkmate bench clients`, and how one of them trains in this process."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from checkmate.bench import zoo
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError

FILES = {
    "hub": "keras_hub",
    "keras2_models": "tf_keras",
    "probability": "tensorflow_probability",
    "recipes": "keras",
}
"""File of `client_models` -> the package that it needs."""

OF_THE_ZOO = ("vae", "seq2seq", "diffusion_unet", "speech", "recommender")
"""Models of the zoo that stand for published examples."""


def programs() -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Returns the function that makes each program, by its name, and the packages that are
    missing."""
    found: dict[str, Callable[[], Any]] = {}
    missing = []
    zoo_models = zoo.models()
    for module, package in FILES.items():
        if find_spec(package) is None:
            missing.append(package)
            continue
        definitions = importlib.import_module(f"checkmate.bench.client_models.{module}")
        found |= {make.__name__: make for make in definitions.MODELS}
    return found | {name: zoo_models[name] for name in OF_THE_ZOO}, missing


def run(name: str, steps: int, budget: str | None) -> dict[str, Any]:
    """Trains a program in this process, plain or within a budget."""
    import keras

    keras.utils.set_random_seed(0)
    known, _ = programs()
    program = known[name]()
    if hasattr(program, "optimizer"):  # a `Workload` of the zoo
        program = _compiled(program)
    train = partial(_stepped if hasattr(program, "step") else _fitted, program, steps)
    try:
        return train(budget)
    except (InfeasibleBudgetError, NoPlanFoundError) as error:
        return {
            "refused": "proven" if isinstance(error, InfeasibleBudgetError) else "not found",
            "message": str(error),
            "op": getattr(error, "op_name", ""),
            "least_bytes": getattr(error, "floor_bytes", None),
            "named_bytes": error.smallest_budget_bytes,
        }


def _compiled(work: Any) -> Any:
    from checkmate.bench.client_models.program import Program

    work.model.compile(work.optimizer, work.loss)
    # Of a list, tf.data makes one tensor.
    inputs = tuple(work.inputs) if isinstance(work.inputs, list) else work.inputs
    return Program(work.model, inputs, work.labels)


def _fitted(program: Any, steps: int, budget: str | None) -> dict[str, Any]:
    """Trains by `fit`, over a dataset that repeats the batch."""
    import tensorflow as tf

    import checkmate
    from checkmate.tf2.keras2 import EveryKerasCallback

    watch = Watch()

    class Batches(EveryKerasCallback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            watch.step_ended([float(logs[key]) for key in sorted(logs)])

    dataset = tf.data.Dataset.from_tensors(program.batch).repeat(steps + 1)
    watch.start()
    if budget is not None:
        checkmate.tf2.rematerialize(program.model, budget=budget, verbose=False)
    program.model.fit(dataset, verbose=0, callbacks=[Batches()])
    planned = None if budget is None else checkmate.tf2.planned(program.model)
    return watch.found(planned)


def _stepped(task: Any, steps: int, budget: str | None) -> dict[str, Any]:
    """Calls a step again and again."""
    import tensorflow as tf

    import checkmate

    watch = Watch()
    watch.start()
    step: Any = (
        tf.function(task.step)
        if budget is None
        else checkmate.tf2.function(task.step, budget=budget, verbose=False)
    )
    for _ in range(steps + 1):
        result = step(*task.batch)
        watch.step_ended([float(each) for each in tf.nest.flatten(result) if each.shape.rank == 0])
    return watch.found(None if budget is None else step)


class Watch:
    """Times each step and counts the allocator's peak from the end of the first one on."""

    def __init__(self) -> None:
        from checkmate.tf2 import device as devices

        self._device = devices.training_device()
        self._times: list[float] = []
        self._losses: list[float] = []

    def start(self) -> None:
        """Begins with the first step."""
        self._times = [time.perf_counter()]

    def step_ended(self, losses: Sequence[float]) -> None:
        """Counts a step."""
        import tensorflow as tf

        self._losses += losses
        self._times.append(time.perf_counter())
        if len(self._times) == 2:
            tf.config.experimental.reset_memory_stats(self._device)

    def found(self, planned: Any) -> dict[str, Any]:
        """Returns the figures.

        Args:
          planned: The planned step, or None if the step is plain.
        """
        import tensorflow as tf

        seconds = [b - a for a, b in zip(self._times[:-1], self._times[1:], strict=True)]
        figures = {
            "peak_bytes": tf.config.experimental.get_memory_info(self._device)["peak"],
            "losses": self._losses,
            "first_step_s": seconds[0],
            "step_s": statistics.median(seconds[1:]),
        }
        if planned is None:
            return figures
        report = planned.report()
        return figures | {
            "budget_bytes": planned.budget_bytes,
            "predicted_bytes": report.expected_peak_bytes,
            "recomputed": sum(planned.plan.recomputed.values()),
            "ops": len(planned.graph),
            "phases": report.seconds,
        }


if __name__ == "__main__":
    program_name, count, *within = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKMATE_CACHE_DIR"] = folder
        print(json.dumps(run(program_name, int(count), within[0] if within else None)))
