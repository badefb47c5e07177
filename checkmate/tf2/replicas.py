"""Parts of a step of several replicas: one worker's plan for all workers, and a measurement of
the whole: planned part, exchange of gradients and update."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.errors import CheckmateError, TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.deferred_update import components, deferred_update
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planned_function import Call
from checkmate.tf2.planning.request import Planned
from checkmate.units import format_bytes


class ReplicatedPart:
    """The part of a step that is planned: (gradients, result) of its tensors. `optimizer` updates
    the weights, once in a step. `concretes` is the part as traced by each local replica for its
    call, `replicas` the part on each, to be traced for other specs."""

    def __init__(
        self,
        step: Callable[..., Any],
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        calls: Sequence[Call],
    ):
        self._step, self._optimizer, self._strategy = step, optimizer, strategy
        self._templates = [call.without_tensors() for call in calls]
        self.variables: list[Any] = []
        specs = {number: call.specs(None) for number, call in enumerate(calls)}
        self.concretes = [concrete for _, concrete in sorted(self.trace(specs).items())]
        self.replicas = [
            OnReplica(self, number, specs[number], concrete)
            for number, concrete in enumerate(self.concretes)
        ]
        self.others = dict(
            zip(strategy.extended.worker_devices[1:], self.replicas[1:], strict=True)
        )

    def trace(self, specs: Mapping[int, Sequence[tf.TensorSpec]]) -> dict[int, Any]:
        found: dict[int, Any] = {}

        @tf.autograph.experimental.do_not_convert
        def on_replica() -> None:
            number = local_number(self._strategy)
            if number in specs:
                part = tf.function(self._part(self._templates[number]), autograph=False)
                found[number] = part.get_concrete_function(*specs[number])

        with _tracing():
            self._strategy.run(on_replica)
        return found

    def _part(self, template: Call) -> Callable[..., Any]:
        def part(*tensors: tf.Tensor) -> Any:
            own, _ = template.with_tensors(tensors)
            with deferred_update("With several replicas", self._optimizer) as asked:
                result = self._step(*own)
            update = asked.only()
            self.variables[:] = update.variables
            return update.gradients, result

        return part


@contextlib.contextmanager
def _tracing() -> Iterator[None]:
    """Leaves out TensorFlow's warning that replicas which run eagerly are slow: they only trace."""

    def is_other(record: logging.LogRecord) -> bool:
        return "eagerly has significant overhead" not in record.getMessage()

    logger = tf.get_logger()
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


class OnReplica:
    """The part on one replica, traced once."""

    _autograph = False  # a `tf.function`'s: this is none, and is not converted

    def __init__(
        self, part: ReplicatedPart, number: int, specs: Sequence[tf.TensorSpec], concrete: Any
    ):
        self._part, self._number = part, number
        self._traced = {str(tuple(specs)): concrete}

    def __call__(self, *tensors: tf.Tensor) -> Any:
        """Refuses to be part of another trace, as slices are that are batches of their own."""
        raise TraceError(
            "on the replicas of a strategy, a batch is split exactly or not at all. Train with"
            ' micro_batches=1 or "auto".'
        )

    def get_concrete_function(self, *specs: tf.TensorSpec) -> Any:
        key = str(specs)
        if key not in self._traced:
            self._traced[key] = self._part.trace({self._number: specs})[self._number]
        return self._traced[key]


log = logging.getLogger("checkmate")


def planned_by_chief(
    strategy: tf.distribute.Strategy, make: Callable, options: PlanOptions
) -> PlannedStep:
    """A step planned by one worker, whose plan the others read from a copy of its file."""
    resolver = strategy.cluster_resolver
    if (
        resolver is None
        or not resolver.task_type
        or len(resolver.cluster_spec().as_dict().get("worker", ())) < 2
    ):
        return make(options)
    chief = resolver.task_type == "chief" or (
        resolver.task_id == 0 and "chief" not in resolver.cluster_spec().as_dict()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chief.json"
        failure: CheckmateError | None = None
        if chief:
            try:
                step = make(options)
                step.save(path)
            except CheckmateError as error:
                failure = error
        content = _from_chief(strategy, path.read_bytes() if path.exists() else b"")
        if failure is not None:
            raise failure
        if not content:
            raise TraceError("The chief found no plan for this step; its own message says why.")
        if not chief:
            path.write_bytes(content)
            step = make(replace(options, plan=path))
        return step


def _from_chief(strategy: tf.distribute.Strategy, content: bytes) -> bytes:
    """The chief's bytes on every worker. All but one worker send zeros, so that the sum is what the
    chief sent."""

    def summed(values: np.ndarray) -> np.ndarray:
        given = tf.constant(values)

        @tf.autograph.experimental.do_not_convert
        def on_replica() -> tf.Tensor:  # one replica of the worker sends
            return given if local_number(strategy) == 0 else tf.zeros_like(given)

        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(on_replica), axis=None
        ).numpy()

    length = int(summed(np.array([len(content)], np.int32))[0])
    padded = np.zeros(length, np.int32)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return summed(padded).astype(np.uint8).tobytes() if length else b""


def local_number(strategy: tf.distribute.Strategy) -> int:
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return int(number) % len(strategy.extended.worker_devices)


def refuse_unequal(strategy: tf.distribute.Strategy) -> None:
    """Refuses a strategy whose replicas do not run the same step on devices of one kind."""
    if not isinstance(
        strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    ):
        raise TraceError(
            "Plans run under MirroredStrategy and MultiWorkerMirroredStrategy, where every replica"
            f" runs the same step; this is {type(strategy).__name__}."
        )
    kinds = sorted({device.rsplit(":", 2)[-2] for device in strategy.extended.worker_devices})
    if len(kinds) > 1:
        raise TraceError(
            f"The strategy's replicas are on unequal devices ({', '.join(kinds)}); a plan is made"
            " for one kind."
        )


def local_variables(strategy: tf.distribute.Strategy, variables: Any) -> list[tf.Variable]:
    """The local replicas' components of variables of the strategy."""
    with strategy.scope():
        return [component for variable in variables for component in components(variable)]


def exchange_bytes(gradients: Any) -> int:
    """The bytes per device of the exchange of gradients: they are packed into one tensor while each
    is in memory."""
    flat = tf.nest.flatten(gradients, expand_composites=True)
    return 2 * known_bytes(each for each in flat if each is not None)


class WholeStep:
    """Runs the step of all replicas and compares it with the budget of each replica's device: by
    expectation before it runs, and by the allocator's count while it runs for the second time. In
    the first, kernels are made and tried.

    Args:
      replicas: The number of replicas whose devices have one allocator: on CPUs all of the process.
      exchange: The bytes of `exchange_bytes`.

    Attributes:
      calls: The steps that ran.
      notes: A sentence where the step is above the budget.
      shared: The budget of all replicas that share a device, as a sentence; "" for one.
    """

    def __init__(
        self, run: Callable, planned: Planned, budget_bytes: int, replicas: int, exchange: int
    ):
        self.notes: list[str] = []
        self._run, self._name, self._budget = run, planned.report.name, budget_bytes
        # Other replicas' variables and batches included.
        reports = devices.allocator_reports(devices.training_device())
        start = planned.report.memory.start_bytes if reports else 0
        self._limit = start + replicas * (budget_bytes - start)
        self.calls, self._counts = 0, reports
        self.shared = ""
        if replicas > 1 and reports:
            together = f"together they may take {format_bytes(self._limit)}."
            self.shared = f"{replicas} replicas share this device's memory: {together}"
        if reports:
            self._compare(start + replicas * exchange, "is expected to take")

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls != 2 or not self._counts:
            return self._run(*args)
        result, _, peak = devices.peak_above(devices.training_device(), lambda: self._run(*args))
        self._compare(peak, "took")
        return result

    def _compare(self, found: int, verb: str) -> None:
        if found <= self._limit or self.notes:
            return
        self.notes.append(
            f"A whole step of {self._name!r}, with the exchange of gradients between replicas and"
            f" the update, {verb} {format_bytes(found - self._limit)} more than the budget of"
            f" {format_bytes(self._budget)} for each replica, and no plan changes what these two"
            " take: raise the budget by as much, or use a smaller model or optimizer."
        )
        log.warning(self.notes[-1])
