"""DFGraph: the dataflow graph of one training step, the problem that every solver is given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from checkmate.errors import GraphError


@dataclass(frozen=True, slots=True)
class Op:
    """One operation and the one value it makes.

    Args:
      name: Unique in its graph.
      deps: Indices of the ops whose values it reads, without repeats. All of them must be in memory
        while it runs.
      cost: What one evaluation costs, in the graph's unit (seconds when profiled).
      output_bytes: Size of its value. Several outputs count as one value that lives and dies
        together.
      workspace_bytes: Memory it uses only while it runs, beyond its inputs and its value.
      is_backward: It belongs to the backward pass or to the optimizer's update.
      recomputable: It may run more than once. False for what has state or must not be repeated.
      control_deps: Ops that must have run before its first evaluation, though their values need not
        be in memory any more.
      overwrites: Ops that must have run before, and may not run again after, its first evaluation:
        it changes a variable that they read.
      kind: What sort of op it is ("Conv2D"); for people and for reports, never for a decision of a
        solver.
      in_place: The deps whose memory its value may take over (forwarding a buffer), one of them at
        a time and only where a plan frees that dep right after the op has run. Each is at least as
        large as the op's value.
    """

    name: str
    deps: tuple[int, ...] = ()
    cost: float = 1.0
    output_bytes: int = 0
    workspace_bytes: int = 0
    is_backward: bool = False
    recomputable: bool = True
    control_deps: tuple[int, ...] = ()
    overwrites: tuple[int, ...] = ()
    kind: str = ""
    in_place: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for key in ("deps", "control_deps", "overwrites", "in_place"):
            indices = tuple(int(i) for i in getattr(self, key))
            if len(set(indices)) != len(indices):
                raise GraphError(
                    f"Op {self.name!r} lists an op twice in {key}: {indices}. List each once."
                )
            object.__setattr__(self, key, indices)
        object.__setattr__(
            self, "control_deps", tuple(i for i in self.control_deps if i not in self.deps)
        )
        for d in self.in_place:
            if d not in self.deps:
                raise GraphError(
                    f"Op {self.name!r} has op {d} in in_place, but does not read it: deps are"
                    f" {self.deps}. List deps only."
                )
        if not _is_cost(self.cost):
            raise GraphError(
                f"Op {self.name!r} has cost {self.cost!r}. A cost is a finite number, zero or more."
            )
        for key in ("output_bytes", "workspace_bytes"):
            object.__setattr__(
                self, key, _whole_bytes(getattr(self, key), f"Op {self.name!r} has {key}")
            )


@dataclass(frozen=True)
class DFGraph:
    """Ops in topological order: `ops[i]` reads only from ops before it. The index is the column of
    R and S.

    Args:
      ops: The operations. Their order is the order of their first evaluation in the plain step.
      outputs: Ops whose values must be in memory at the end.
      fixed_bytes: What is resident all the time: variables, optimizer slots, the input batch,
        constants.
      name: For people.

    Raises:
      GraphError: The graph is empty, a dependency points forward or nowhere, or a name is used
        twice.

    Source: Checkmate (Jain et al., MLSys 2020), section 3. There a value is one tensor and an op is
    a layer.
    """

    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    fixed_bytes: int = 0
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "outputs", tuple(sorted({int(i) for i in self.outputs})))
        if not self.ops:
            raise GraphError("A graph needs at least one op; this one has none.")
        object.__setattr__(self, "fixed_bytes", _whole_bytes(self.fixed_bytes, "fixed_bytes is"))
        _check_totals(self)
        seen: set[str] = set()
        for i, op in enumerate(self.ops):
            if op.name in seen:
                raise GraphError(f"Two ops are called {op.name!r}. Names must be unique.")
            seen.add(op.name)
            for key in ("deps", "control_deps", "overwrites"):
                for d in getattr(op, key):
                    if not 0 <= d < i:
                        raise GraphError(
                            f"Op {i} {op.name!r} has op {d} in {key}; every op may only refer to"
                            " ops before it."
                        )
            for d in op.in_place:
                missing = op.output_bytes - self.ops[d].output_bytes
                if missing > 0:
                    raise GraphError(
                        f"Op {i} {op.name!r} of {op.output_bytes} bytes has op {d}"
                        f" {self.ops[d].name!r} of {self.ops[d].output_bytes} bytes in in_place,"
                        f" {missing} bytes too few. Leave out of in_place what is smaller than the"
                        " op's own value."
                    )
        for i in self.outputs:
            if not 0 <= i < len(self.ops):
                raise GraphError(
                    f"Output {i} is no op of this graph, which has ops 0 to {len(self.ops) - 1}."
                )

    def __len__(self) -> int:
        return len(self.ops)

    def __repr__(self) -> str:
        return (
            f"DFGraph({self.name!r}, ops={len(self.ops)}, outputs={len(self.outputs)},"
            f" fixed_bytes={self.fixed_bytes})"
        )

    @cached_property
    def deps(self) -> tuple[tuple[int, ...], ...]:
        """deps[i]: the ops that op i reads."""
        return tuple(op.deps for op in self.ops)

    @cached_property
    def in_place(self) -> tuple[tuple[int, ...], ...]:
        """in_place[i]: the ops whose memory the value of op i may take over; none where the value
        has no bytes to save."""
        return tuple(op.in_place if op.output_bytes else () for op in self.ops)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """users[i]: the ops that read op i, ascending."""
        users: list[list[int]] = [[] for _ in self.ops]
        for i, op in enumerate(self.ops):
            for d in op.deps:
                users[d].append(i)
        return tuple(map(tuple, users))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(producer, consumer) pairs, by consumer."""
        return tuple((d, i) for i, op in enumerate(self.ops) for d in op.deps)

    @cached_property
    def costs(self) -> np.ndarray:
        """(n,) float64, read-only."""
        return _frozen(np.array([op.cost for op in self.ops], dtype=np.float64))

    @cached_property
    def output_bytes(self) -> np.ndarray:
        """(n,) int64 bytes, read-only."""
        return _frozen(np.array([op.output_bytes for op in self.ops], dtype=np.int64))

    @cached_property
    def workspace_bytes(self) -> np.ndarray:
        """(n,) int64 bytes, read-only."""
        return _frozen(np.array([op.workspace_bytes for op in self.ops], dtype=np.int64))

    @cached_property
    def recomputable(self) -> np.ndarray:
        """(n,) bool, read-only."""
        return _frozen(np.array([op.recomputable for op in self.ops], dtype=bool))

    @cached_property
    def total_cost(self) -> float:
        """The cost of evaluating every op once: the least that any plan can cost."""
        return math.fsum(op.cost for op in self.ops)

    def index(self, name: str) -> int:
        """The index of the op of this name."""
        for i, op in enumerate(self.ops):
            if op.name == name:
                return i
        raise GraphError(f"No op of this graph is called {name!r}.")

    def save(self, path) -> None:
        """Writes the graph as JSON; `DFGraph.load` reads it back equal."""
        from checkmate.core.files import save_graph

        save_graph(self, path)

    @classmethod
    def load(cls, path) -> DFGraph:
        """Reads a graph from a JSON file. Raises `PlanFileError` when it is none, `GraphError` when
        it is no legal one."""
        from checkmate.core.files import load_graph

        return load_graph(path)

    @classmethod
    def from_networkx(cls, digraph, *, fixed_bytes: int = 0, name: str = "") -> DFGraph:
        """Makes a graph of a `networkx.DiGraph`.

        Node attributes are the fields of `Op` (cost, output_bytes, ...) and `output=True`; the node
        itself, as text, is the name. Ops are numbered in topological order, ties in the order of
        insertion. An edge with `control=True` becomes a control dependency. Raises `GraphError` on
        a cycle.
        """
        import networkx as nx

        position = {node: k for k, node in enumerate(digraph)}
        try:
            order = list(nx.lexicographical_topological_sort(digraph, key=position.__getitem__))
        except nx.NetworkXUnfeasible as error:
            cycle = [str(edge[0]) for edge in nx.find_cycle(digraph)]
            raise GraphError(
                f"The graph has a cycle through {cycle}; a training step has none."
            ) from error
        number = {node: i for i, node in enumerate(order)}
        ops = []
        for node in order:
            attributes = dict(digraph.nodes[node])
            attributes.pop("output", None)
            before: dict[bool, list[int]] = {True: [], False: []}
            for producer, _, data in digraph.in_edges(node, data=True):
                before[bool(data.get("control"))].append(number[producer])
            for key in ("overwrites", "in_place"):
                attributes[key] = tuple(sorted(number[other] for other in attributes.get(key, ())))
            try:
                ops.append(
                    Op(
                        str(node),
                        tuple(sorted(before[False])),
                        control_deps=tuple(sorted(before[True])),
                        **attributes,
                    )
                )
            except TypeError as error:
                raise GraphError(
                    f"Node {node!r} has an attribute that no Op has: {error}."
                ) from error
        outputs = tuple(number[node] for node in order if digraph.nodes[node].get("output"))
        return cls(tuple(ops), outputs, fixed_bytes, name)

    def to_networkx(self):
        """Returns a `networkx.DiGraph` with a node per op (its name) that `from_networkx` reads
        back."""
        import networkx as nx

        digraph = nx.DiGraph(name=self.name, fixed_bytes=self.fixed_bytes)
        for i, op in enumerate(self.ops):
            digraph.add_node(
                op.name,
                cost=op.cost,
                output_bytes=op.output_bytes,
                workspace_bytes=op.workspace_bytes,
                is_backward=op.is_backward,
                recomputable=op.recomputable,
                overwrites=tuple(self.ops[d].name for d in op.overwrites),
                kind=op.kind,
                in_place=tuple(self.ops[d].name for d in op.in_place),
                output=i in self.outputs,
            )
            digraph.add_edges_from(
                (self.ops[d].name, op.name, {"control": True}) for d in op.control_deps
            )
            digraph.add_edges_from((self.ops[d].name, op.name) for d in op.deps)
        return digraph


def ancestors(deps: Iterable[Iterable[int]]) -> list[int]:
    """Returns for each op the set of ops it depends on, directly or not, as the bits of an int (bit
    i = op i)."""
    closure: list[int] = []
    for direct in deps:
        bits = 0
        for d in direct:
            bits |= closure[d] | 1 << d
        closure.append(bits)
    return closure


def _whole_bytes(value, what: str) -> int:
    try:
        if value == int(value) and value >= 0:
            return int(value)
    except (TypeError, ValueError, OverflowError):  # not a number, or not a finite one
        pass
    raise GraphError(f"{what} {value!r}. It must be a whole number of bytes, zero or more.")


def _is_cost(cost: object) -> bool:
    try:
        return isinstance(cost, (int, float, np.number)) and math.isfinite(cost) and bool(cost >= 0)
    except OverflowError:  # Python's whole numbers can be larger than any other
        return False


def _check_totals(graph: DFGraph) -> None:
    """Sums must fit into 64 bits, as arrays hold them."""
    total = graph.fixed_bytes + sum(op.output_bytes + op.workspace_bytes for op in graph.ops)
    if total >= 2**63:
        raise GraphError(
            f"The graph's sizes add up to {total} bytes, 2^63 or more. Are they in another unit?"
        )
    if not math.isfinite(sum(float(op.cost) for op in graph.ops)):
        raise GraphError(
            "The graph's costs add up to more than a number can hold. Give them in a larger unit."
        )


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
