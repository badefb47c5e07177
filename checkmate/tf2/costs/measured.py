"""Cost models: the seconds that each op of a traced step takes, and its memory while it runs.

"profile" runs every distinct op (types, shapes, dtypes, attributes) that takes time or memory, on
the device that trains, and takes the shortest of some times. If the allocator reports what is in
use, it also learns what each op asks for. "roofline" and "unit" run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.errors import BudgetError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs import chain
from checkmate.tf2.costs.cache import Entries, Measurement, cost_cache
from checkmate.tf2.costs.isolated import IsolatedOps
from checkmate.tf2.costs.roofline import roofline, unit
from checkmate.tf2.graph.bodies import called, planned_footprints
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.graph.trace import TracedStep

MEASURED_TIME, MEASURED_BYTES = 0.001, 0.003
"""An op is measured if it takes this share of the step's time, by its roofline, or if it reads and
makes this share of the bytes that the plain step needs."""

SHORT_S, TIMES = 5e-5, 8
"""An op that is measured for its time and takes less than SHORT_S seconds, by its roofline, is
evaluated TIMES times between two readings of the clock."""

Progress = Callable[[int, int], None]
CostModel = Callable[[TracedStep, Progress], "list[Measurement]"]


@dataclass(frozen=True, slots=True)
class Costs:
    """The step's graph with costs and workspaces, and the requests of TensorFlow ops by their names
    in the flat graph, as far as they were seen."""

    graph: DFGraph
    footprints: dict[str, Footprint]


def in_parts(
    traced: TracedStep, whole: Costs, whole_traced: TracedStep, cost_model: str | CostModel
) -> Costs:
    """The costs of a step of which ops are split. Loops are estimated: all segments of all loops
    together last as long as the whole loops."""
    costs = costs_of(traced, cost_model)
    loops, before = _loops(traced), _loops(whole_traced)
    here = sum(costs.graph.ops[k].cost for k in loops)
    scale = sum(whole.graph.ops[k].cost for k in before) / here if here else 1.0
    ops = [
        replace(op, cost=scale * op.cost) if k in loops else op
        for k, op in enumerate(costs.graph.ops)
    ]
    return replace(costs, graph=replace(costs.graph, ops=tuple(ops)))


def _loops(traced: TracedStep) -> set[int]:
    return {k for k, group in enumerate(traced.groups) if any(map(is_loop, group))}


def with_costs(
    traced: TracedStep,
    cost_model: str | CostModel = "profile",
    *,
    on_progress: Progress | None = None,
) -> DFGraph:
    return costs_of(traced, cost_model, on_progress=on_progress).graph


def costs_of(
    traced: TracedStep,
    cost_model: str | CostModel = "profile",
    *,
    on_progress: Progress | None = None,
) -> Costs:
    """Measures or estimates the ops. A `cost_model` may be a function (traced, on_progress) -> a
    `Measurement` per op; `on_progress` is called with (ops done, all ops)."""
    models: dict[str, CostModel] = {"profile": profile, "roofline": roofline, "unit": unit}
    if isinstance(cost_model, str) and cost_model not in models:
        raise BudgetError(
            f"There is no cost model {cost_model!r}. Known: {', '.join(models)}, or a function."
        )
    model = models[cost_model] if isinstance(cost_model, str) else cost_model
    measurements = model(traced, on_progress or (lambda done, total: None))
    ops, footprints = [], dict[str, Footprint]()
    for op, group, found in zip(traced.graph.ops, traced.groups, measurements, strict=True):
        seen = {
            d
            for d in found.in_place
            if d in op.deps and traced.graph.ops[d].output_bytes >= op.output_bytes
        }
        space = max(op.workspace_bytes, found.workspace_bytes)
        in_place = tuple(sorted({*op.in_place} | seen))
        ops.append(replace(op, cost=found.seconds, workspace_bytes=space, in_place=in_place))
        # A final write to a variable has none.
        pairs = zip(group, found.footprints, strict=False)
        footprints |= {operation.name: each for operation, each in pairs if each}
        footprints |= {
            operation.name: footprint
            for operation in group
            for footprint in planned_footprints(traced.function.graph, operation)
        }
    return Costs(replace(traced.graph, ops=tuple(ops)), footprints)


def profile(traced: TracedStep, on_progress: Progress) -> list[Measurement]:
    """Runs every distinct op that is pure (`bodies.is_pure`) on the training device. The seconds of
    the others are the roofline's, times the ratio of measured to estimated seconds of those that
    ran. Measurements are kept in the process and in `cache_folder`, by device and TensorFlow
    version."""
    estimates = roofline(traced, on_progress)
    isolated, keys = to_measure(traced, estimates)
    wanted = {
        key: (estimate.seconds, each)
        for key, each, estimate in zip(keys, isolated, estimates, strict=True)
        if key is not None
    }
    entries = measured_ops(wanted, on_progress)
    seen = [entries.get(key) if key is not None else None for key in keys]
    return completed(traced, isolated, seen, estimates)


def measured_ops(wanted: Mapping[str, tuple[float, IsolatedOps]], on_progress: Progress) -> Entries:
    """The measurements of groups of ops by their signatures, known or made now; None where
    TensorFlow refuses to run one. `wanted` has the seconds that each is expected to take."""
    device = devices.training_device()
    with cost_cache(f"{devices.describe(device)} / TensorFlow {tf.__version__}") as known:
        missing = {key: each for key, each in wanted.items() if key not in known}
        # Ops of similar length are timed together.
        by_time = sorted(missing, key=lambda key: missing[key][0])
        reports = devices.requests_are_seen(device)
        if missing:
            on_progress(0, len(missing))
        not_seen: Entries = {}  # another profile was being taken
        found = chain.measured([missing[key][1] for key in by_time], device, reports)
        for done, (key, measurement) in enumerate(zip(by_time, found, strict=True), 1):
            is_whole = measurement is None or measurement.footprints or not reports
            (known if is_whole else not_seen)[key] = measurement
            on_progress(done, len(missing))
        return {key: (known | not_seen).get(key) for key in wanted}


def to_measure(
    traced: TracedStep, estimates: Sequence[Measurement]
) -> tuple[list[IsolatedOps], list[str | None]]:
    """The ops of each group, and the signature of those that are measured; None for the others."""
    least = MEASURED_TIME * sum(estimate.seconds for estimate in estimates)
    large = MEASURED_BYTES * traced.plain_peak_bytes()
    parts = zip(traced.groups, traced.values, traced.taken, estimates, strict=True)
    isolated = [
        IsolatedOps(group, values, taken, TIMES if least <= estimate.seconds < SHORT_S else 1)
        for group, values, taken, estimate in parts
    ]
    keys = []
    for each, estimate in zip(isolated, estimates, strict=True):
        decides = estimate.seconds >= least or each.touched_bytes >= large
        decides |= any(map(called, each.group))  # types and shapes say little about those
        keys.append(each.signature() if decides and each.runs else None)
    return isolated, keys


def completed(
    traced: TracedStep,
    isolated: Sequence[IsolatedOps],
    found: Sequence[Measurement | None],
    estimates: Sequence[Measurement],
) -> list[Measurement]:
    """The measurements, with deps instead of arguments, and scaled estimates for the rest."""
    pairs = zip(found, estimates, strict=True)
    known = [(each.seconds, estimate.seconds) for each, estimate in pairs if each]
    factor = sum(m for m, _ in known) / sum(e for _, e in known) if known else 1.0
    number = traced.numbers()
    measurements = []
    for each, estimate, ops in zip(found, estimates, isolated, strict=True):
        if each is None:
            measurements.append(replace(estimate, seconds=factor * estimate.seconds))
        else:
            deps = tuple(number.get(ops.arguments[k].op, -1) for k in each.in_place)
            measurements.append(replace(each, in_place=deps))
    return measurements
