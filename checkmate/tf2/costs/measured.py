"""Cost models: what each op of a traced step costs in seconds, and how much memory it uses while it
runs.

"profile" runs every distinct op (types, shapes, dtypes, attributes) on the device that trains, warm
and repeated, and takes the median; where the allocator reports, it also reads the workspace.
"roofline" runs nothing and derives seconds from FLOPs and bytes. "unit" counts every op as 1, which
is what the paper calls unit cost.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json, write_json
from checkmate.errors import BudgetError, CheckmateError, PlanFileError
from checkmate.tf2 import device as devices
from checkmate.tf2 import ops as op_rules
from checkmate.tf2.costs.cache import cache_folder
from checkmate.tf2.execution.graph_writer import GraphWriter
from checkmate.tf2.graph import grappler, in_place
from checkmate.tf2.graph.bodies import LOOPS, body_of
from checkmate.tf2.graph.flat_graph import tensor_bytes
from checkmate.tf2.graph.loop_sizes import Kept
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.ops import Role

CACHE_FORMAT, CACHE_VERSION = "checkmate-profile", 4
REPEATS, REPEAT_FOR_S = 3, 0.01
"""Each op is timed at least REPEATS times, and until it has run for REPEAT_FOR_S seconds
together."""

MEASURED_SHARE = 0.001
"""Share of the step's time, by its roofline, below which an op is not measured."""

# A roofline needs two figures of a device. Only their ratio matters to a plan; seconds from it are
# rough.
_ROOFLINE = {"CPU": (5e10, 8e9), "GPU": (1e13, 7e11)}  # FLOP/s, bytes/s
_FREE = frozenset({"Placeholder", "Const", "Identity", "NoOp", "ReadVariableOp"})
_LAUNCH_S = {"CPU": 5e-6, "GPU": 5e-6}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What an op takes.

    Attributes:
      seconds: Of one evaluation.
      workspace_bytes: In use while it runs beyond its inputs and its value.
      in_place: The deps whose memory its value takes over.
    """

    seconds: float
    workspace_bytes: int
    in_place: tuple[int, ...] = ()


CostModel = Callable[[TracedStep, Callable[[int, int], None]], "list[Measurement]"]


def with_costs(
    traced: TracedStep,
    cost_model: str | CostModel = "profile",
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> DFGraph:
    """Returns the step's graph with costs in seconds (or in units, for "unit") and workspaces.

    Args:
      cost_model: "profile", "roofline", "unit", or a function (traced, on_progress) -> a
        `Measurement` per op.
      on_progress: Called with (ops done, ops in all) while ops are measured.
    """
    models: dict[str, CostModel] = {"profile": profile, "roofline": roofline, "unit": unit}
    if isinstance(cost_model, str) and cost_model not in models:
        raise BudgetError(
            f"There is no cost model {cost_model!r}. Known: {', '.join(models)}, or a function."
        )
    model = models[cost_model] if isinstance(cost_model, str) else cost_model
    measured = model(traced, on_progress or (lambda done, total: None))
    number = traced.numbers()
    ops = []
    for op, group, values, found in zip(
        traced.graph.ops, traced.groups, traced.values, measured, strict=True
    ):
        by_table = {
            number.get(tensor.op)
            for tensor in in_place.by_table(group, values, found.workspace_bytes)
        }
        learnt = {
            d
            for d in found.in_place
            if d in op.deps and traced.graph.ops[d].output_bytes >= op.output_bytes
        }
        deps = tuple(sorted(by_table & {*op.in_place} | learnt))
        ops.append(
            replace(op, cost=found.seconds, workspace_bytes=found.workspace_bytes, in_place=deps)
        )
    return replace(traced.graph, ops=tuple(ops))


def unit(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Every TensorFlow op costs 1."""
    parts = zip(traced.groups, traced.values, traced.taken, strict=True)
    return [
        Measurement(float(len(group)), in_place.workspace(group, values, taken))
        for group, values, taken in parts
    ]


def roofline(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Seconds = the larger of FLOPs / peak FLOP rate and bytes touched / memory bandwidth, plus a
    launch, for each TensorFlow op.

    A loop costs what the ops in it do, as often as it runs where that is known, and once where it
    is not.
    """
    kind = devices.training_device().split(":")[0]
    kept = Kept(traced.function.graph, tensor_bytes)

    def seconds(operation: tf.Operation) -> float:
        body = (
            body_of(traced.function.graph, operation, "body") if operation.type in LOOPS else None
        )
        if body is None:
            return roofline_s(operation, kind)
        return (kept.rounds(operation) or 1) * sum(
            seconds(inner) for inner in body.get_operations() if inner.type not in _FREE
        )

    return [
        Measurement(
            sum(seconds(operation) for operation in group), in_place.workspace(group, values, taken)
        )
        for group, values, taken in zip(traced.groups, traced.values, traced.taken, strict=True)
    ]


def profile(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Runs every distinct op on the training device; what cannot be run on its own is estimated.

    Ops with a variable, a list or a string among their inputs are not run, nor those that take next
    to no time: for them it is the roofline, times what the others took of theirs. Figures are kept
    per process and on disk, by device and TensorFlow version, in the user's cache folder (or
    $CHECKMATE_CACHE_DIR); a file that is damaged is ignored and written anew.
    """
    device = devices.training_device()
    estimates = roofline(traced, on_progress)
    isolated = [
        _Isolated(*each) for each in zip(traced.groups, traced.values, traced.taken, strict=True)
    ]
    keys = [each.signature() if each.runs else None for each in isolated]
    least = MEASURED_SHARE * sum(estimate.seconds for estimate in estimates)
    with _Cache(device) as cache:
        missing = {
            key: each
            for key, each, estimate in zip(keys, isolated, estimates, strict=True)
            if key is not None and key not in cache.entries and estimate.seconds >= least
        }
        reports = devices.allocator_reports(device)
        overhead = _call_overhead_s(device) if missing else 0.0
        for done, (key, each) in enumerate(missing.items()):
            on_progress(done, len(missing))
            cache.entries[key] = each.measure(device, reports, overhead)
        if missing:
            on_progress(len(missing), len(missing))
        found = [cache.entries.get(key) if key is not None else None for key in keys]
        known = [
            (measured.seconds, estimate.seconds)
            for measured, estimate in zip(found, estimates, strict=True)
            if measured
        ]
        factor = sum(m for m, _ in known) / sum(e for _, e in known) if known else 1.0
        number = traced.numbers()
        return [
            (
                replace(
                    measured,
                    in_place=tuple(number.get(each.arguments[k].op, -1) for k in measured.in_place),
                )
                if measured
                else replace(estimate, seconds=factor * estimate.seconds)
            )
            for measured, estimate, each in zip(found, estimates, isolated, strict=True)
        ]


class _Isolated:
    """A group of TensorFlow ops as a function of its own, with an argument for every tensor that
    comes from outside."""

    def __init__(
        self,
        group: tuple[tf.Operation, ...],
        values: tuple[tf.Operation, ...],
        taken: tuple[tf.Operation, ...],
    ):
        self.group, self.values, self.taken = group, values, taken
        if len(group) > 1 and _touches_resource(group[-1]):
            # A final write to a variable is left out: it takes over the buffer of what it writes,
            # which is workspace, not value.
            self.group, self.values = group[:-1], ()
        self.arguments: list[tf.Tensor] = []
        self._index: dict[Any, int] = {}
        for operation in self.group:
            for tensor in operation.inputs:
                self._collect(tensor)
        self.runs = all(_can_be_made(tensor) for tensor in self.arguments) and not any(
            _touches_resource(o)
            or op_rules.is_stateful(o)
            or any(t.dtype == tf.variant for t in o.outputs)
            for o in self.group
        )

    def signature(self) -> str:
        """What decides about time and memory, as a digest."""
        position = {operation: k for k, operation in enumerate(self.group)}
        parts: list[Any] = [[o in self.values for o in self.group]]
        parts.append(
            [[in_place.made_by(tensor) in self.taken for tensor in o.inputs] for o in self.group]
        )
        parts += [
            [o.type, _attributes(o), [self._describe(tensor, position) for tensor in o.inputs]]
            for o in self.group
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def measure(self, device: str, reports: bool, overhead_s: float) -> Measurement | None:
        """Runs it; None when TensorFlow refuses."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.arguments]
        try:
            with tf.device(device):
                function = tf.function(self._build, autograph=False).get_concrete_function(*specs)
                values = [some_value(spec) for spec in specs]
                # Warm: kernels are created, memory is mapped.
                result = grappler.run(function, *values)
                del result
                workspace = (
                    self._workspace(lambda: grappler.run(function, *values)) if reports else None
                )
                result = grappler.run(function, *values)
                seconds = []
                while len(seconds) < REPEATS or (sum(seconds) < REPEAT_FOR_S and len(seconds) < 50):
                    started = time.perf_counter()
                    del result
                    result = grappler.run(function, *values)
                    devices.synchronize()
                    seconds.append(time.perf_counter() - started)
        except (tf.errors.OpError, ValueError, TypeError):
            return None
        if workspace is None:
            workspace = in_place.workspace(self.group, self.values, self.taken)
        written_over = (
            tuple(k for k in self._candidates() if self._is_written_over(k, values, workspace))
            if reports
            else ()
        )
        return Measurement(
            max(statistics.median(seconds) - overhead_s, 1e-6), int(workspace), written_over
        )

    def _candidates(self) -> list[int]:
        """Arguments that the value may be written over, of which the table says nothing."""
        known = {tensor.ref() for tensor in in_place.by_table(self.group, self.values)}
        found = {tensor.ref() for tensor in in_place.candidates(self.group, self.values)} - known
        return [k for k, tensor in enumerate(self.arguments) if tensor.ref() in found]

    def _is_written_over(self, k: int, values: list[tf.Tensor], workspace_bytes: int) -> bool:
        """Runs the ops with one argument made inside, so that nobody else holds it, and sees
        whether memory for the value was asked for."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.arguments]

        def build(*arguments: tf.Tensor) -> list[tf.Tensor]:
            own = tf.raw_ops.DeepCopy(x=arguments[k])
            return self._build(*arguments[:k], own, *arguments[k + 1 :])

        try:
            function = tf.function(build, autograph=False).get_concrete_function(*specs)
            grappler.run(function, *values)
            asked = observe(lambda: grappler.run(function, *values)).most_requested_bytes
        except (CheckmateError, tf.errors.OpError, ValueError, TypeError):
            return False
        return (
            asked - (tensor_bytes(self.arguments[k]) or 0)
            <= workspace_bytes + in_place.main_tensor(self.values)[1]
        )

    def _workspace(self, call: Callable[[], Any]) -> int | None:
        """Bytes it asks the allocator for beyond those of its values; None where that follows from
        shapes or cannot be seen."""
        if all(operation.type in op_rules.NO_SCRATCH for operation in self.group):
            return None
        try:
            asked = observe(call).most_requested_bytes
        except CheckmateError:  # somebody else's profile is being taken
            return None
        return max(
            0,
            asked
            - sum(
                tensor_bytes(tensor) or 0
                for operation in self.values
                for tensor in operation.outputs
            ),
        )

    def _build(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        writer = GraphWriter()
        made: dict[tf.Operation, str] = {}
        for operation in self.group:
            made[operation] = writer.copy(
                operation, [self._name(tensor, writer, made) for tensor in operation.inputs]
            )
        values = self.values or self.group[-1:]
        names = [
            f"{made[operation]}:{k}" for operation in values for k in range(len(operation.outputs))
        ]
        return writer.import_here(
            {f"given_{k}:0": tensor for k, tensor in enumerate(arguments)}, names
        )

    def _name(self, tensor: tf.Tensor, writer: GraphWriter, made: dict[tf.Operation, str]) -> str:
        tensor = op_rules.source(tensor)
        if tensor.op in made:
            return f"{made[tensor.op]}:{tensor.value_index}"
        if tensor.ref() in self._index:
            return f"given_{self._index[tensor.ref()]}:0"
        if (shape := _shape_value(tensor)) is not None:
            return writer.constant(shape, tensor.dtype)
        return f"{writer.copy(tensor.op, [self._name(each, writer, made) for each in tensor.op.inputs])}:{tensor.value_index}"

    def _collect(self, tensor: tf.Tensor) -> None:
        tensor = op_rules.source(tensor)
        role = op_rules.role(tensor.op)
        if tensor.op in self.group or tensor.op.type == "Const" or _shape_value(tensor) is not None:
            return
        if role is Role.VIEW:
            for each in tensor.op.inputs:
                self._collect(each)
        elif tensor.ref() not in self._index:
            self._index[tensor.ref()] = len(self.arguments)
            self.arguments.append(tensor)

    def _describe(self, tensor: tf.Tensor, position: dict[tf.Operation, int]) -> Any:
        tensor = op_rules.source(tensor)
        if tensor.op in position:
            return ["made", position[tensor.op], tensor.value_index]
        if tensor.ref() in self._index:
            return ["given", self._index[tensor.ref()], tensor.dtype.name, str(tensor.shape)]
        if (shape := _shape_value(tensor)) is not None:
            return ["shape", shape]
        return [
            tensor.op.type,
            _attributes(tensor.op),
            [self._describe(each, position) for each in tensor.op.inputs],
        ]


class _Cache:
    """Measurements by signature: one dictionary per device for the process, and a file behind
    it."""

    _of_process: ClassVar[dict[str, dict[str, Measurement | None]]] = {}

    def __init__(self, device: str):
        self.key = f"{devices.describe(device)} / TensorFlow {tf.__version__}"
        self.path = (
            cache_folder() / f"profile-{hashlib.sha256(self.key.encode()).hexdigest()[:12]}.json"
        )
        self.known = -1

    def __enter__(self) -> _Cache:
        self.entries = self._of_process.setdefault(self.key, {})
        if not self.entries:
            self.entries.update(self._read())
        self.known = len(self.entries)
        return self

    def __exit__(self, *exception: Any) -> None:
        """Writes what is new, also when measuring was interrupted; a folder that cannot be written
        costs only the next run's time."""
        if len(self.entries) == self.known:
            return
        rows = {
            key: [found.seconds, found.workspace_bytes, found.in_place]
            for key, found in (self._read() | self.entries).items()
            if found
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(
                self.path,
                {
                    "format": CACHE_FORMAT,
                    "version": CACHE_VERSION,
                    "device": self.key,
                    "entries": rows,
                },
            )
        except OSError:
            pass

    def _read(self) -> dict[str, Measurement | None]:
        try:
            data = read_json(self.path)
            if (data["format"], data["version"], data["device"]) != (
                CACHE_FORMAT,
                CACHE_VERSION,
                self.key,
            ):
                return {}
            rows = data["entries"].items()
            return {
                str(key): Measurement(float(seconds), int(space), tuple(map(int, over)))
                for key, (seconds, space, over) in rows
            }
        except (PlanFileError, KeyError, TypeError, ValueError, AttributeError):
            return {}


def _call_overhead_s(device: str) -> float:
    """What calling any function costs, measured on one that does nothing: it is not part of an op's
    cost."""
    with tf.device(device):
        nothing = tf.function(lambda x: x + 1.0, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.float32)
        )
        value = tf.constant(1.0)
        seconds = []
        for _ in range(30):
            started = time.perf_counter()
            grappler.run(nothing, value)
            devices.synchronize()
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def some_value(spec: tf.TensorSpec) -> tf.Tensor:
    """A value an op can run on: halves for numbers (no kernel is slow on them), zeros for
    indices."""
    if spec.dtype.is_floating or spec.dtype.is_complex:
        return tf.fill(spec.shape, tf.constant(0.5, spec.dtype))
    return tf.zeros(spec.shape, spec.dtype)


def _can_be_made(tensor: tf.Tensor) -> bool:
    return tensor.shape.is_fully_defined() and (
        tensor.dtype.is_floating
        or tensor.dtype.is_integer
        or tensor.dtype.is_bool
        or tensor.dtype.is_complex
    )


def _touches_resource(operation: tf.Operation) -> bool:
    return any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.inputs)


def _shape_value(tensor: tf.Tensor) -> Any:
    return (
        op_rules.static_shape(tensor.op, tensor.value_index)
        if op_rules.role(tensor.op) is Role.SHAPE
        else None
    )


def _attributes(operation: tf.Operation) -> list[tuple[str, str]]:
    attributes = operation.node_def.attr
    return [
        (key, hashlib.sha256(attributes[key].SerializeToString()).hexdigest()[:16])
        for key in sorted(attributes)
        if not key.startswith("_")
    ]


def roofline_s(operation: tf.Operation, kind: str) -> float:
    """Returns the seconds that an op takes at least on a device of this kind ("CPU" or "GPU"), by
    its FLOPs and the bytes it touches."""
    flop_rate, bandwidth = _ROOFLINE[kind]
    touched = sum(tensor_bytes(tensor) or 0 for tensor in (*operation.inputs, *operation.outputs))
    return _LAUNCH_S[kind] + max(_flops(operation) / flop_rate, touched / bandwidth)


def _flops(operation: tf.Operation) -> float:
    """Multiply-adds counted twice for the ops that are bound by them; 0 for all others, which
    memory bounds."""
    kind = operation.type.removeprefix("_Fused")
    shapes = [
        tensor.shape.as_list() if tensor.shape.is_fully_defined() else None
        for tensor in operation.inputs
    ]
    outputs = [tensor.shape.num_elements() or 0 for tensor in operation.outputs]
    try:
        if kind == "MatMul":
            return 2.0 * outputs[0] * shapes[0][0 if operation.get_attr("transpose_a") else 1]
        if kind.startswith("BatchMatMul"):
            return 2.0 * outputs[0] * shapes[0][-2 if operation.get_attr("adj_x") else -1]
        if kind in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
            return 2.0 * outputs[0] * np.prod(shapes[1][: -2 if "Depthwise" in kind else -1])
        if kind in (
            "Conv2DBackpropInput",
            "Conv3DBackpropInputV2",
            "DepthwiseConv2dNativeBackpropInput",
        ):
            return (
                2.0 * np.prod(shapes[2]) * np.prod(shapes[1][: -2 if "Depthwise" in kind else -1])
            )
        if kind in (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ):
            kernel = operation.outputs[0].shape.as_list()
            return 2.0 * np.prod(shapes[2]) * np.prod(kernel[: -2 if "Depthwise" in kind else -1])
    except (TypeError, IndexError, ValueError):
        return 0.0  # a shape that is not known: bytes decide
    return 0.0
