"""`fit` under a budget with tf.distribute: every replica runs the same plan, and gradients are summed between replicas as before.

Each replica computes its gradients and logs under the plan. The optimizer's update stays outside of it, since replicas meet there
(`merge_call`), which cannot be traced inside of another function. Keras does the rest: it runs the replicas and reduces their logs. Keras's own
train function is made once for each set of shapes, with our step in the place of `model.train_step`.

The budget is for each replica's device. Replicas have the same graph, so one plan serves all of them; with several workers the chief plans, and
the others are sent its file.
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
from checkmate.tf2.execute import replay_in_graph
from checkmate.tf2.function import Call, PlannedFunction, PlanOptions
from checkmate.tf2.step import PlannedStep
from checkmate.tf2.trace import TracedStep, analyse
from checkmate.units import parse_bytes


class ReplicatedStep(PlannedFunction):
    """A Keras model's training step on all replicas of its strategy; its figures are those of one replica."""

    def __init__(self, model: keras.Model, options: PlanOptions):
        super().__init__(model.train_step, options, name=model.name, autograph=False)
        self._model, self._strategy = model, model.distribute_strategy
        self._train_functions: dict[Any, Callable] = {}
        _refuse_unequal(self._strategy)

    def __call__(self, data: Any) -> Any:
        """Runs a step on a batch as the strategy's data sets give it, and returns the reduced logs."""
        calls = [Call.of((each,), {}) for each in self._local(data)]
        key = tuple((call.kind, tuple(spec.shape[0] for spec in call.specs(None) if spec.shape.rank)) for call in calls)
        if key not in self._train_functions:
            self._train_functions[key] = self._train_function(calls, data)
        return self._train_functions[key](iter([data]))

    def _local(self, data: Any) -> list[Any]:
        """What each replica of this process gets."""
        leaves = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(data)]
        count = max(map(len, leaves), default=1)
        each = [[leaf[k] if len(leaf) > 1 else leaf[0] for leaf in leaves] for k in range(count)]
        return [tf.nest.pack_sequence_as(data, values) for values in each]

    def _train_function(self, calls: list[Call], data: Any) -> Callable:
        """Keras's train function for batches like this, with the plan in it."""
        parts = self._trace(calls, data)
        main = self._plan(parts[0], calls[0])
        traced = [main.traced, *(self._same(part, main.traced) for part in parts[1:])]
        plan = main.plan

        @tf.autograph.experimental.do_not_convert
        def train_step(data: Any) -> Any:
            number = _local_number(self._strategy)
            gradients, logs = replay_in_graph(traced[number], plan, Call.of((data,), {}).tensors)
            self._model.optimizer.apply(gradients, self._model.trainable_variables)
            return logs

        return self._keras_function(train_step)

    def _keras_function(self, train_step: Callable) -> Callable:
        """What Keras makes of a step; without XLA, which would undo the plan."""
        model, own = self._model, vars(self._model)
        kept = (own.get("train_step"), model.train_function, model.jit_compile)
        model.train_step, model.jit_compile = train_step, False
        try:
            type(model).make_train_function(model, force=True)
            return model.train_function
        finally:
            del model.train_step
            if kept[0] is not None:
                model.train_step = kept[0]
            model.train_function, model.jit_compile = kept[1:]

    def _trace(self, calls: list[Call], data: Any) -> list[Any]:
        """The part of the step that is planned, traced by each local replica on its own variables."""
        model, parts = self._model, {}
        if not model.optimizer.built:
            with self._strategy.scope():
                model.optimizer.build(model.trainable_variables)

        @tf.autograph.experimental.do_not_convert
        def on_replica(data: Any) -> None:
            number = _local_number(self._strategy)
            template = calls[number].without_tensors()

            def part(*tensors: tf.Tensor) -> Any:
                args, _ = template.with_tensors(tensors)
                with _apply_put_off(model) as asked:
                    logs = self._step(*args)
                return asked.gradients(), logs

            parts[number] = tf.function(part, autograph=False).get_concrete_function(*calls[number].specs(None))

        self._strategy.run(on_replica, args=(data,))
        return [parts[number] for number in range(len(calls))]

    def _plan(self, part: Any, call: Call) -> Any:
        """The plan of the first replica's part: made here by the chief, taken from its file by the other workers."""
        specs = call.specs(None)
        if self._steps:
            main = next(iter(self._steps.values()))
            if fingerprint(analyse(part, name=self._name).graph) == fingerprint(main._main.traced.graph):
                return main._main
        options = replace(self._options, budget=self._budget_of_a_part())
        make = lambda options: PlannedStep(options.planner(_AlreadyTraced(part, specs), self._name), specs)  # noqa: E731
        step = self._steps[call.kind, str(specs)] = _planned_by_chief(self._strategy, make, options)
        return step._main

    def _budget_of_a_part(self) -> Any:
        """The budget less what is resident on each device beside the part: the optimizer's variables."""
        budget = self._options.budget
        if isinstance(budget, str) and budget.strip().endswith("%"):
            return budget
        count = int(devices.free_bytes(devices.training_device()) * (1 - devices.AUTO_RESERVE)) if budget == "auto" else parse_bytes(budget)
        held = sum(int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size for variable in self._model.optimizer.variables)
        return max(1, count - held)

    def _same(self, part: Any, main: TracedStep) -> TracedStep:
        traced = analyse(part, name=self._name)
        if fingerprint(traced.graph) != fingerprint(main.graph):
            raise TraceError(
                f"The replicas of {self._name!r} do not run the same graph ({len(main.graph)} and {len(traced.graph)} ops, or other sizes), so one "
                "plan cannot serve them. Use batches that are a multiple of the number of replicas; drop_remainder=True drops the last."
            )
        return traced


class _PutOff:
    """What a step asked of its optimizer."""

    def __init__(self, model: keras.Model):
        self._model, self._asked = model, []
        self._ops = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Takes the place of the optimizer's own."""
        own = list(trainable_variables or self._model.trainable_variables)
        if [id(_value(v)) for v in own] != [id(_value(v)) for v in self._model.trainable_variables]:
            raise TraceError(
                "With several replicas, a step is planned that updates all trainable variables of its model at once; this one does not."
            )
        self._asked.append(list(grads))
        self._graph = tf.compat.v1.get_default_graph()
        self._ops = len(self._graph.get_operations())

    def gradients(self) -> list[Any]:
        """The gradients, where the step is one that can be split there."""
        if len(self._asked) != 1:
            raise TraceError(
                f"With several replicas, a step is planned that updates once; this one calls its optimizer {len(self._asked)} times."
            )
        late = [o for o in self._graph.get_operations()[self._ops :] if o.type == "ReadVariableOp"]
        updated = {id(variable.handle) for variable in map(_component, self._model.trainable_variables)}
        handles = {id(outside): id(inside) for outside, inside in self._graph.captures} if late else {}
        inside = {handles[each] for each in updated if each in handles}
        if any(id(operation.inputs[0]) in inside for operation in late):
            raise TraceError(
                "With several replicas, a step is planned that does not read its weights after it updated them; this one does."
            )
        return self._asked[0]


@contextmanager
def _apply_put_off(model: keras.Model) -> Iterator[_PutOff]:
    """Has `model.optimizer.apply` only note what it is given."""
    asked, optimizer = _PutOff(model), model.optimizer
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


def _planned_by_chief(strategy: tf.distribute.Strategy, make: Callable, options: PlanOptions) -> PlannedStep:
    """A step planned by one worker, whose plan the others read from a copy of its file."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type or len(resolver.cluster_spec().as_dict().get("worker", ())) < 2:
        return make(options)
    chief = resolver.task_type == "chief" or (resolver.task_id == 0 and "chief" not in resolver.cluster_spec().as_dict())
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
    """The chief's bytes on every worker. All but one worker send zeros, so that the sum is what the chief sent."""

    def summed(values: np.ndarray) -> np.ndarray:
        given = tf.constant(values)

        @tf.autograph.experimental.do_not_convert
        def on_replica() -> tf.Tensor:  # one replica of the worker sends
            return given if _local_number(strategy) == 0 else tf.zeros_like(given)

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica), axis=None).numpy()

    length = int(summed(np.array([len(content)], np.int32))[0])
    padded = np.zeros(length, np.int32)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return summed(padded).astype(np.uint8).tobytes() if length else b""


def _local_number(strategy: tf.distribute.Strategy) -> int:
    """Which of this process's replicas runs."""
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return int(number) % len(strategy.extended.worker_devices)


def _refuse_unequal(strategy: tf.distribute.Strategy) -> None:
    if not isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)):
        raise TraceError(
            f"Plans run under MirroredStrategy and MultiWorkerMirroredStrategy, where every replica runs the same step; this is {type(strategy).__name__}."
        )
    kinds = sorted({device.rsplit(":", 2)[-2] for device in strategy.extended.worker_devices})
    if len(kinds) > 1:
        raise TraceError(f"The strategy's replicas are on unequal devices ({', '.join(kinds)}); a plan is made for one kind.")


def _value(variable: Any) -> Any:
    return getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable


def _component(variable: Any) -> tf.Variable:
    """The replica's own variable of a mirrored one."""
    value = _value(variable)
    context = tf.distribute.get_replica_context()
    local = tf.distribute.get_strategy().experimental_local_results(value)
    return local[_local_number(tf.distribute.get_strategy())] if context is not None else local[0]
