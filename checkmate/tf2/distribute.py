"""Budgets with tf.distribute: every replica runs the same plan, and gradients are summed between
replicas as before.

Each replica computes its gradients and results under the plan. The optimizer's update stays outside
of it, since replicas meet there (`merge_call`), which cannot be traced inside of another function.
For a Keras model, Keras does the rest: it runs the replicas and reduces their logs, in its own
train function, made once for each set of shapes with our step in the place of `model.train_step`.

The budget is for each replica's device. Replicas have the same graph, so one plan serves all of
them; with several workers the chief plans, and the others are sent its file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.core.files import fingerprint
from checkmate.errors import CheckmateError, TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.execution.replay import write
from checkmate.tf2.function import Call, PlannedFunction, PlanOptions
from checkmate.tf2.graph.trace import TracedStep, analyse
from checkmate.units import is_share, parse_bytes


class ReplicatedFunction(PlannedFunction):
    """A step of each replica of a strategy, as `strategy.run` runs it; the figures are those of one
    replica.

    Called with what `strategy.run` would be called with, it returns what that returns.
    """

    def __init__(
        self,
        step: Callable,
        options: PlanOptions,
        *,
        name: str,
        autograph: bool,
        strategy: tf.distribute.Strategy,
        optimizer: Any,
    ):
        super().__init__(step, options, name=name, autograph=autograph)
        self._strategy, self._optimizer = strategy, optimizer
        self._runs: dict[Any, Callable] = {}
        _refuse_unequal(strategy)

    def __call__(self, *args: Any) -> Any:
        """Runs a step on every replica."""
        calls = [Call.of(each, {}) for each in self._local(args)]
        key = tuple(
            (call.kind, tuple(spec.shape[0] for spec in call.specs(None) if spec.shape.rank))
            for call in calls
        )
        if key not in self._runs:
            self._runs[key] = self._run(self._planned_on_replicas(calls, args))
        return self._runs[key](*args)

    def _run(self, on_replica: Callable) -> Callable:
        """The function of all replicas, made of that of one."""
        return tf.function(lambda *args: self._strategy.run(on_replica, args=args), autograph=False)

    def _local(self, args: Any) -> list[Any]:
        """What each replica of this process gets."""
        leaves = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(args)]
        count = len(self._strategy.extended.worker_devices)
        each = [[leaf[k] if len(leaf) > 1 else leaf[0] for leaf in leaves] for k in range(count)]
        return [tf.nest.pack_sequence_as(args, values) for values in each]

    def _planned_on_replicas(self, calls: list[Call], args: Any) -> Callable:
        """The step of one replica, with the plan in it."""
        parts, variables = self._trace(calls, args)
        main = self._plan(parts[0], calls[0])
        traced = [main.traced, *(self._same(part, main.traced) for part in parts[1:])]
        plan = main.plan

        @tf.autograph.experimental.do_not_convert
        def on_replica(*args: Any) -> Any:
            number = _local_number(self._strategy)
            gradients, result = write(traced[number], plan).make(Call.of(args, {}).tensors)
            self._optimizer.apply(gradients, variables)
            return result

        return on_replica

    def _trace(self, calls: list[Call], args: Any) -> tuple[list[Any], list[Any]]:
        """The part of the step that is planned, traced by each local replica on its own variables;
        and what the optimizer updates."""
        parts: dict[int, Any] = {}
        variables: list[Any] = []

        @tf.autograph.experimental.do_not_convert
        def on_replica(*args: Any) -> None:
            number = _local_number(self._strategy)
            template = calls[number].without_tensors()
            step = tf.autograph.to_graph(self._step) if self._autograph else self._step

            def part(*tensors: tf.Tensor) -> Any:
                own, _ = template.with_tensors(tensors)
                with _apply_put_off(self._optimizer) as asked:
                    result = step(*own)
                gradients, variables[:] = asked.only()
                return gradients, result

            parts[number] = tf.function(part, autograph=False).get_concrete_function(
                *calls[number].specs(None)
            )

        self._strategy.run(on_replica, args=args)
        return [parts[number] for number in range(len(calls))], variables

    def _plan(self, part: Any, call: Call) -> Any:
        """The plan of the first replica's part: made here by the chief, taken from its file by the
        other workers."""
        specs = call.specs(None)
        if self._steps:
            main = next(iter(self._steps.values()))
            if fingerprint(analyse(part, name=self._name).graph) == fingerprint(
                main._main.traced.graph
            ):
                return main._main
        options = replace(self._options, budget=self._budget_of_a_part())

        def make(options: PlanOptions) -> PlannedStep:
            return PlannedStep(
                replace(options.planner(_AlreadyTraced(part, specs), self._name), has_rooms=False),
                specs,
            )

        step = self._steps[call.kind, str(specs)] = _planned_by_chief(self._strategy, make, options)
        return step._main

    def _budget_of_a_part(self) -> Any:
        """The budget less the optimizer's variables, which are no part of what is planned, where
        the planner does not see them itself."""
        budget, device = self._options.budget, devices.training_device()
        if devices.allocator_reports(device) or is_share(budget):
            return budget
        count = devices.auto_budget(device) if budget == "auto" else parse_bytes(budget)
        held = sum(
            int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
            for variable in self._optimizer.variables
        )
        return max(1, count - held)

    def _same(self, part: Any, main: TracedStep) -> TracedStep:
        traced = analyse(part, name=self._name)
        if fingerprint(traced.graph) != fingerprint(main.graph):
            raise TraceError(
                f"The replicas of {self._name!r} do not run the same graph ({len(main.graph)} and"
                f" {len(traced.graph)} ops, or other sizes), so one plan cannot serve them. Use"
                " batches that are a multiple of the number of replicas; drop_remainder=True drops"
                " the last."
            )
        return traced


class ReplicatedFit(ReplicatedFunction):
    """The training step of a Keras model: Keras runs it on the replicas and reduces the logs."""

    def __init__(self, model: keras.Model, options: PlanOptions):
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        super().__init__(
            model.train_step,
            options,
            name=model.name,
            autograph=False,
            strategy=model.distribute_strategy,
            optimizer=model.optimizer,
        )
        self._model = model

    def _run(self, on_replica: Callable) -> Callable:
        """What Keras makes of a step; without XLA, which would undo the plan."""
        model = self._model
        own_step, train_function, jit_compile = (
            vars(model).get("train_step"),
            model.train_function,
            model.jit_compile,
        )
        model.train_step, model.jit_compile = on_replica, False
        try:
            type(model).make_train_function(model, force=True)
            run = model.train_function
        finally:
            del model.train_step
            if own_step is not None:
                model.train_step = own_step
            model.train_function, model.jit_compile = train_function, jit_compile
        return lambda data: run(iter([data]))


class _PutOff:
    """What a step asked of its optimizer."""

    def __init__(self) -> None:
        self._asked: list[tuple[list[Any], list[Any]]] = []
        self._graph: Any = None
        self._ops = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Takes the place of the optimizer's own."""
        if trainable_variables is None:
            raise TraceError(
                "With several replicas, give optimizer.apply the variables beside the gradients."
            )
        self._asked.append((list(grads), list(trainable_variables)))
        self._graph = tf.compat.v1.get_default_graph()
        self._ops = len(self._graph.get_operations())

    def only(self) -> tuple[list[Any], list[Any]]:
        """(gradients, variables) of the one update, where the step can be split there."""
        if len(self._asked) != 1:
            raise TraceError(
                "With several replicas, a step is planned that updates once; this one calls its"
                f" optimizer {len(self._asked)} times."
            )
        gradients, variables = self._asked[0]
        updated = {
            id(component.handle) for variable in variables for component in _components(variable)
        }
        handles = {id(inside) for outside, inside in self._graph.captures if id(outside) in updated}
        if any(
            o.type == "ReadVariableOp" and id(o.inputs[0]) in handles
            for o in self._graph.get_operations()[self._ops :]
        ):
            raise TraceError(
                "With several replicas, a step is planned that does not read its weights after it"
                " updated them; this one does."
            )
        return gradients, variables


@contextmanager
def _apply_put_off(optimizer: Any) -> Iterator[_PutOff]:
    """Has `optimizer.apply` only note what it is given."""
    asked = _PutOff()
    optimizer.apply = asked.apply
    try:
        yield asked
    finally:
        del optimizer.apply


class _AlreadyTraced:
    """A traced function where a function to trace is expected."""

    def __init__(self, concrete: Any, specs: Any):
        self._concrete, self._specs = concrete, specs

    def get_concrete_function(self, *specs: Any) -> Any:
        """The function, for the shapes that it was traced with."""
        if tuple(specs) != tuple(self._specs):
            raise TraceError("A replica's step is traced by its replica, for the shapes it gets.")
        return self._concrete


def _planned_by_chief(
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
            return given if _local_number(strategy) == 0 else tf.zeros_like(given)

        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(on_replica), axis=None
        ).numpy()

    length = int(summed(np.array([len(content)], np.int32))[0])
    padded = np.zeros(length, np.int32)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return summed(padded).astype(np.uint8).tobytes() if length else b""


def _local_number(strategy: tf.distribute.Strategy) -> int:
    """Which of this process's replicas runs."""
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return int(number) % len(strategy.extended.worker_devices)


def _refuse_unequal(strategy: tf.distribute.Strategy) -> None:
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


def _components(variable: Any) -> tuple[tf.Variable, ...]:
    """The replicas' own variables behind one of the strategy's."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return tf.distribute.get_strategy().experimental_local_results(value)
