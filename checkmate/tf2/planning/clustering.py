"""compiled(): a planned step of which XLA, TensorFlow's compiler, compiles what pays.

A step that runs unchanged is compiled as a whole. Of a plan, stretches are (`execution.clusters`):
they are compiled and measured alone, as ops are, those of which most seconds of the step are first,
equal ones once. One that takes as long as its ops do, or that XLA refuses, stays as it was, and so
does one whose scratch would lift the step above its limit. The search ends where what is still to
be had in many steps is less than what it takes to compile, or where it would last longer than
tracing did, and than a few seconds.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.cache import Measurement
from checkmate.tf2.costs.isolated import IsolatedOps
from checkmate.tf2.costs.measured import costs_of, measured_ops
from checkmate.tf2.error_text import said
from checkmate.tf2.execution.clusters import Cluster, call_name, call_of, clusters, with_calls
from checkmate.tf2.execution.replay import EVALUATION_MARK, Replayed, Written
from checkmate.tf2.graph import xla
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.memory.prediction import Peak, PlanOnPaper, Predictor
from checkmate.tf2.memory.probe import smallest_bytes
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.request import Planned, PlanTask
from checkmate.tf2.report import Clusters

log = logging.getLogger("checkmate")


PAYS = 0.9
"""A cluster is called where that takes at most this share of the time of its ops: less is within
what two measurements differ by."""

AT_ONCE = 3
"""How many functions are compiled and measured before it is judged whether more would pay."""

LEAST_LIMIT_S = 3.0
"""For how long they are at least: a step that is planned anew is not traced again."""


def compiled(task: PlanTask, planned: Planned) -> Planned:
    """The step with XLA, if the user wants that and it pays; `planned` itself without."""
    asked = task.request.options
    if asked.jit_compile is not True:
        return planned
    if why_not := _why_not(task, planned):
        return planned.reporting(clusters=Clusters(0, why_not=why_not))
    if planned.result is None:
        whole = Whole(planned.run, planned.report.name)
        return replace(planned, run=whole).reporting(clusters=whole.clusters)
    part = planned.innermost
    run: Any = part.run
    clock = task.clock
    costs = costs_of(part.traced, asked.cost_model)
    with clock.phase("compiling"):
        limit_s = max(clock.seconds["tracing"], LEAST_LIMIT_S)
        found = Clustering.of(run.written, part.graph, limit_s)
    memory = planned.report.memory
    with clock.phase("predicting"):
        footprints = costs.footprints
        predictor = Predictor(part.traced, part.graph, task.batch or (), footprints, run.buffers)
        if task.reports:
            predictor.refresh(max(0, memory.activation_budget_bytes) + devices.UNSPLIT_BYTES)
        written, peak, calls = found.within(predictor, memory, task.request.correction)
    facts = Clusters(
        len(calls),
        len({each.key for each, _ in calls}),
        found.tried,
        sum(each.saved_s for _, each in calls),
        found.seconds,
        tuple(found.refusals),
    )
    if not calls:
        return planned.reporting(clusters=facts)
    with clock.phase("building"):
        run = Replayed(part.traced, part.plan, run.buffers, written)
    planned = replace(planned, run=run, rise_bytes=max(planned.rise_bytes, peak.rise_bytes))
    if planned.part:
        planned = replace(planned, part=replace(part, run=run))
    more = max(planned.report.predicted_peak_bytes, memory.peak(peak.bytes))
    return planned.reporting(clusters=facts, predicted_peak_bytes=more)


def _why_not(task: PlanTask, planned: Planned) -> str:
    """Why XLA compiles nothing of a step, where that is known at once."""
    if not xla.is_there():
        return "TensorFlow has no XLA for this device"
    if task.request.others:
        return "the replicas of a strategy run without XLA"
    if planned.in_slices:
        return "a batch in slices runs without XLA"
    if planned.plans_bodies:
        return "loops that train run without XLA"
    if planned.result is not None and task.request.options.cost_model != "profile":
        return 'whether a part pays must be measured, as with cost_model="profile"'
    return ""


class Whole:
    """A step that XLA compiles as a whole when it is called first; where XLA refuses, the step as
    it is, as `clusters` then says."""

    def __init__(self, run: Callable[..., Any], name: str):
        self._run, self.name, self._ran, self.clusters = run, name, False, Clusters()
        self._compiled = tf.function(run, autograph=False, jit_compile=True)

    def __call__(self, *flat: tf.Tensor) -> Any:
        try:
            found = self._compiled(*flat)
        except xla.REFUSALS as error:
            if self._ran or self._compiled is self._run:
                raise
            self.clusters.calls, self.clusters.why_not = 0, f"XLA refused it. {said(error).text}"
            log.warning("%r runs without XLA. %s", self.name, said(error).text)
            self._compiled = self._run
            return self._run(*flat)
        self._ran = True
        return found


def like_whole(run: Callable[..., Any], main: Callable[..., Any]) -> Callable[..., Any]:
    """A step for another batch, compiled as a whole if the main one is."""
    if isinstance(main, Whole) and main.clusters.calls is None:
        return Whole(run, main.name)
    return run


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A function of equal clusters, the seconds of their ops, and those and the requests of its
    call."""

    function: Any
    own_s: float
    measurement: Measurement

    @property
    def saved_s(self) -> float:
        return self.own_s - self.measurement.seconds


@dataclass(slots=True, eq=False)
class Clustering:
    """The clusters of a plan that pay.

    Attributes:
      members: Key -> the clusters with it.
      compiled: Key -> its function, of those that pay.
      refusals: The first op of each function that XLA did not compile.
      tried: How many functions were compiled and measured, and
      seconds: what that took.
    """

    written: Written
    members: dict[str, list[Cluster]]
    compiled: dict[str, Compiled] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    tried: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, written: Written, graph: DFGraph, limit_s: float) -> Clustering:
        """Compiles and measures the clusters of a plan, whose ops have the costs of `graph`; after
        the first ones only what is expected to be done within `limit_s` seconds."""
        started = time.perf_counter()
        found = cls(written, defaultdict(list))
        for each in clusters(written):
            found.members[each.key].append(each)
        found._compile(_costs(written, graph), limit_s)
        found.seconds = time.perf_counter() - started
        return found

    def within(
        self, predictor: Predictor, memory: MemoryBudget, correction: float
    ) -> tuple[Written, Peak, list[tuple[Cluster, Compiled]]]:
        """The plan with as many calls as fit, its peak, and the calls. Of those that do not fit,
        the one goes first that runs when most is in memory, or else the one before. None are made
        where no peak can be predicted."""
        pairs = (
            (each, found) for key, found in self.compiled.items() for each in self.members[key]
        )
        calls = sorted(pairs, key=lambda pair: pair[0].inside) if predictor.predicts else []
        while calls:
            paper = _on_paper(predictor, self.written, calls)
            peak = predictor.peak(paper)
            more = (correction - 1) * peak.rise_bytes if peak else 0
            if peak and memory.peak(peak.bytes) + more <= memory.peak_limit_bytes:
                return paper.written, peak, calls
            names = [node.name for node in paper.program.nodes]
            places = [names.index(call_name(k)) for k in range(len(calls))]
            del calls[max(0, bisect_right(places, paper.events.at_most()) - 1)]
        return self.written, Peak(0, 0), []

    def _compile(self, costs: Sequence[float], limit_s: float) -> None:
        """Compiles functions, those of most seconds first, while that is expected to pay."""
        own = {
            key: sum(costs[k] for k in members[0].inside) for key, members in self.members.items()
        }
        step_s = {key: len(members) * own[key] for key, members in self.members.items()}
        order = sorted(own, key=lambda key: -step_s[key])
        spent_s = tried_s = saved_s = 0.0
        for start in range(0, len(order), AT_ONCE):
            keys = order[start : start + AT_ONCE]
            those_s = sum(step_s[key] for key in keys)
            if start:
                could_save = saved_s / tried_s * those_s * TUNING.steps
                if spent_s / start * len(keys) > min(could_save, limit_s - spent_s):
                    break
            started = time.perf_counter()
            found = self._measured({key: own[key] for key in keys})
            spent_s += time.perf_counter() - started
            self.tried += len(keys)
            tried_s += those_s
            self.compiled |= found
            saved_s += sum(each.saved_s * len(self.members[key]) for key, each in found.items())

    def _measured(self, own: Mapping[str, float]) -> dict[str, Compiled]:
        """Key -> the function, of those that pay; `own` has the expected seconds of their ops."""
        functions, wanted = {}, {}
        for key, own_s in own.items():
            cluster = self.members[key][0]
            functions[key] = cluster.function()
            for kind in ("ops", "call"):
                name = f"{kind}_{key[:12]}"
                call = call_of(functions[key], cluster, name, compiled=kind == "call")
                wanted[f"{key}/{kind}"] = own_s, IsolatedOps((call,), (call,), ())
        measured = measured_ops(wanted, lambda done, total: None)
        pays = {}
        for key, function in functions.items():
            ops, found = measured[f"{key}/ops"], measured[f"{key}/call"]
            cluster = self.members[key][0]
            if found is None:
                name = self.written.writer.nodes[cluster.inside[0]].name
                self.refusals.append(name.partition(EVALUATION_MARK)[0])
            if ops is None or found is None or found.seconds > PAYS * ops.seconds:
                continue
            if _is_seen(cluster, found):
                pays[key] = Compiled(function, ops.seconds, found)
        return pays


def _is_seen(cluster: Cluster, found: Measurement) -> bool:
    """Whether the profiler has seen all that the pool counts of what a call makes."""
    outputs = {request.output for each in found.footprints if each for request in each.requests}
    counted = smallest_bytes(devices.training_device())
    sizes = map(exact_bytes, cluster.like[1])
    is_seen = all(size < counted or k in outputs for k, size in enumerate(sizes))
    return bool(found.footprints) and is_seen


def _costs(written: Written, graph: DFGraph) -> list[float]:
    """The seconds of each node; those of a group are shared by its ops."""
    each: dict[Any, float] = {
        operation: op.cost / len(group)
        for op, group in zip(graph.ops, written.traced.groups, strict=True)
        for operation in group
    }
    like = (written.writer.like.get(node.name) for node in written.writer.nodes)
    return [each.get(op, 0.0) if isinstance(op, tf.Operation) else 0.0 for op in like]


def _on_paper(
    predictor: Predictor, written: Written, calls: Sequence[tuple[Cluster, Compiled]]
) -> PlanOnPaper:
    """The plan with these calls, and their requests."""
    footprints = {
        call_name(k): footprint
        for k, (_, found) in enumerate(calls)
        for footprint in found.measurement.footprints
        if footprint
    }
    with_them = with_calls(written, [(each, found.function) for each, found in calls])
    return predictor.on_paper(with_them, footprints)
