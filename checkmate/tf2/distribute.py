"""Budgets with tf.distribute: every replica runs the same plan, and gradients are summed between
replicas as before.

Each replica computes its gradients and results under the plan. The optimizer's update is not part
of it, since replicas meet there (`merge_call`), which cannot be traced inside of another function.
For a Keras model, Keras does the rest: it runs the replicas and reduces their logs, in its own
train function, made once for each set of shapes with the planned step in the place of
`model.train_step`.

The budget is for each replica's device. Replicas have the same graph, so one plan serves all of
them; with several workers the chief plans, and the others are sent its file. Micro-batches are
slices of each replica's share of a batch, and gradients are exchanged once, after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from checkmate.core.files import fingerprint
from checkmate.errors import TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, analyse, same_graph
from checkmate.tf2.memory.budget import auto_budget
from checkmate.tf2.memory.scratch import give_own_memory
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planned_function import Call, PlannedFunction
from checkmate.tf2.planning.request import Planned, PlanRequest
from checkmate.tf2.planning.sliced_steps import on_replicas
from checkmate.tf2.replicas import (
    ReplicatedPart,
    WholeStep,
    exchange_bytes,
    local_number,
    local_variables,
    planned_by_chief,
    refuse_unequal,
)
from checkmate.tf2.report import Report
from checkmate.tf2.rewrites.slices import Slices, examples_of
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
        strategy: tf.distribute.Strategy,
        optimizer: Any,
        *,
        name: str,
        autograph: bool,
    ):
        super().__init__(step, options, name=name, autograph=autograph)
        self._strategy, self._optimizer = strategy, optimizer
        self._runs: dict[Any, WholeStep] = {}
        refuse_unequal(strategy)

    def __call__(self, *args: Any) -> Any:
        """Runs a step on every replica."""
        calls = [Call.of(each, {}) for each in self._local(args)]
        key = tuple(
            (call.kind, tuple(spec.shape[0] for spec in call.specs(None) if spec.shape.rank))
            for call in calls
        )
        if key not in self._runs:
            self._runs[key] = self._planned_on_replicas(calls)
        return self._runs[key](*args)

    def report(self) -> Report:
        """Returns the report of one replica's part for the first kind of call, with what was found
        of a whole step."""
        report = super().report()
        runs = list(self._runs.values())
        shared = [run.shared for run in runs[:1]]  # that of other calls differs by their batch
        notes = dict.fromkeys(
            filter(None, [*shared, *(note for run in runs for note in run.notes)])
        )
        steps = sum(run.calls for run in runs)
        return replace(report, notes=(*report.notes, *notes), steps=steps)

    def _run(self, on_replica: Callable) -> Callable:
        return tf.function(lambda *args: self._strategy.run(on_replica, args=args), autograph=False)

    def _local(self, args: Any) -> list[Any]:
        leaves = [self._strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(args)]
        count = len(self._strategy.extended.worker_devices)
        each = [[leaf[k] if len(leaf) > 1 else leaf[0] for leaf in leaves] for k in range(count)]
        return [tf.nest.pack_sequence_as(args, values) for values in each]

    def _planned_on_replicas(self, calls: list[Call]) -> WholeStep:
        step = tf.autograph.to_graph(self._step) if self._autograph else self._step
        part = ReplicatedPart(step, self._optimizer, self._strategy, calls)
        self._give_own_memory(part.concretes, part.variables)
        first = analyse(part.concretes[0], name=self._name)
        others = (analyse(each, name=self._name) for each in part.concretes[1:])
        traced = [first, *(same_graph(each, first) for each in others)]
        main = self._plan(part, first, calls[0])
        runs = on_replicas(main, traced)

        @tf.autograph.experimental.do_not_convert
        def on_replica(*args: Any) -> Any:
            number = local_number(self._strategy)
            gradients, result = runs[number](*Call.of(args, {}).tensors)
            self._optimizer.apply(gradients, part.variables)
            return result

        own_allocator = devices.training_device().startswith("GPU")
        gradients, _ = part.concretes[0].structured_outputs
        return WholeStep(
            self._run(on_replica),
            main,
            self.budget_bytes,
            replicas=1 if own_allocator else len(calls),
            exchange=exchange_bytes(gradients),
        )

    def _give_own_memory(self, parts: list[Any], variables: list[Any]) -> None:
        """Unshares the replicas' variables, and creates the optimizer's slots, which the update
        would otherwise create beyond the plan."""
        if not self._optimizer.built:
            with self._strategy.scope():
                self._optimizer.build(variables)
        kept = [*variables, *self._optimizer.variables]
        give_own_memory(
            [*local_variables(self._strategy, kept), *(v for part in parts for v in part.variables)]
        )

    def _plan(self, part: ReplicatedPart, first: TracedStep, call: Call) -> Planned:
        """The plan of the first replica's part: made by the chief, read from its file by other
        workers."""
        specs = call.specs(None)
        if self._steps:
            main = self.steps[0].planned
            same = fingerprint(first.graph) == fingerprint(main.traced.graph)
            # Slices are functions of the call that they are made of.
            if same and not main.in_slices:
                return main
        options = self._options_of_a_part(first, specs)

        def make(options: PlanOptions) -> PlannedStep:
            request = PlanRequest(
                part.replicas[0],
                self._name,
                options,
                has_output_buffers=False,
                plans_bodies=False,
                next_batches=0,
                scratch=self._scratch,
                others=part.others,
            )
            return PlannedStep(request, specs)

        try:
            step = planned_by_chief(self._strategy, make, options)
        except TraceError:
            if self._options.micro_batches != "auto" or options.micro_batches in ("auto", 1):
                raise
            # A smaller batch whose slices do not go together.
            options = replace(options, micro_batches=1)
            step = planned_by_chief(self._strategy, make, options)
        self._steps[call.kind, str(specs)] = step
        return step.planned

    def _options_of_a_part(self, first: TracedStep, specs: Sequence[tf.TensorSpec]) -> PlanOptions:
        """The part's options. A smaller batch than the first has its budget and slices of no more
        examples."""
        options = replace(self._options, budget=self._budget_of_a_part())
        largest = self.steps[0].planned.traced if self._steps else None
        if largest is None or first.plain_peak_bytes() > largest.plain_peak_bytes():
            return options
        micro = self.report().micro_batches
        count = Slices(examples_of(specs), micro.size).count if micro else 1
        budget = self.budget_bytes if is_share(options.budget) else options.budget
        return replace(options, budget=budget, micro_batches=count)

    def _budget_of_a_part(self) -> Any:
        """The budget less the optimizer's variables, which the plan does not include, where the
        allocator does not report them."""
        budget, device = self._options.budget, devices.training_device()
        if devices.allocator_reports(device) or is_share(budget):
            return budget
        count = auto_budget(device) if budget == "auto" else parse_bytes(budget)
        return max(1, count - known_bytes(each.value for each in self._optimizer.variables))


class ReplicatedFit(ReplicatedFunction):
    """The training step of a Keras model: Keras runs it on the replicas and reduces the logs."""

    def __init__(self, model: keras.Model, options: PlanOptions):
        # Keras builds a model without an input shape, and its optimizer, when data come.
        if model.built and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        super().__init__(
            model.train_step,
            options,
            model.distribute_strategy,
            model.optimizer,
            name=model.name,
            autograph=False,
        )
        self._model = model

    def _run(self, on_replica: Callable) -> Callable:
        """Keras's train function for a step; without XLA, which would undo the plan."""
        model = self._model
        own_step = vars(model).get("train_step")
        train_function, jit_compile = model.train_function, model.jit_compile
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
