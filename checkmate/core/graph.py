"""DFGraph: the dataflow graph of one training step, the problem that solvers solve."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from checkmate.core.graph_files import read_graph, write_graph
from checkmate.core.op import Op, whole_bytes
from checkmate.errors import GraphError


@dataclass(frozen=True)
class DFGraph:
    """Ops in topological order: `ops[i]` reads only from ops before it. The index is the column of
    R and S.

    Args:
      ops: The operations. Their order is the order of their first evaluation in the plain step.
      outputs: Ops whose values must be in memory at the end.
      fixed_bytes: Bytes resident all the time: variables, optimizer slots, the input batch,
        constants.
      name: For people.

    Raises:
      GraphError: The graph is empty, a dependency points forward or nowhere, or a name is used
        twice.

    Examples:
      >>> chain = DFGraph((Op("a", output_bytes=8), Op("b", (0,), output_bytes=8)), outputs=(1,))
      >>> chain.users, chain.total_cost
      (((1,), ()), 2.0)

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
        object.__setattr__(self, "fixed_bytes", whole_bytes(self.fixed_bytes, "fixed_bytes is"))
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
        """in_place[i]: the ops whose memory the value of op i may reuse; none where the value
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
    def last_use(self) -> tuple[int, ...]:
        """last_use[i]: the last op that reads op i; i itself if none does, n for outputs."""
        outputs, n = set(self.outputs), len(self.ops)
        return tuple(
            n if i in outputs else max(users, default=i) for i, users in enumerate(self.users)
        )

    @cached_property
    def expires(self) -> tuple[int, ...]:
        """expires[i]: the first op that overwrites what op i reads; n if none does."""
        expires = [len(self.ops)] * len(self.ops)
        for k, op in reversed([*enumerate(self.ops)]):
            for i in op.overwrites:
                expires[i] = k
        return tuple(expires)

    @cached_property
    def predecessors(self) -> tuple[frozenset[int], ...]:
        """predecessors[i]: the ops that must have run before op i first does."""
        return tuple(frozenset((*op.deps, *op.control_deps, *op.overwrites)) for op in self.ops)

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
        """Returns the index of an op.

        Args:
          name: The op's name.

        Raises:
          GraphError: No op is called that.
        """
        for i, op in enumerate(self.ops):
            if op.name == name:
                return i
        raise GraphError(f"No op of this graph is called {name!r}.")

    def save(self, path: str | os.PathLike) -> None:
        """Writes the graph as JSON; `DFGraph.load` reads it back equal.

        Args:
          path: The file. An existing one is replaced whole or not at all.

        Raises:
          PlanFileError: The file cannot be written.
        """
        write_graph(path, self.ops, self.outputs, self.fixed_bytes, self.name)

    @classmethod
    def load(cls, path: str | os.PathLike) -> DFGraph:
        """Reads a graph from a JSON file.

        Args:
          path: The file, which may be gzipped.

        Raises:
          PlanFileError: The file cannot be read or has another format.
          GraphError: It describes no legal graph.
        """
        try:
            return cls(*read_graph(path))
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error

    @classmethod
    def from_networkx(cls, digraph: Any, *, fixed_bytes: int = 0, name: str = "") -> DFGraph:
        """Makes a graph of a `networkx.DiGraph`.

        Node attributes are the fields of `Op` (cost, output_bytes, ...) and `output=True`; the node
        itself, as text, is the name. Ops are numbered in topological order, ties in the order of
        insertion. An edge with `control=True` becomes a control dependency.

        Args:
          digraph: The `networkx.DiGraph`.
          fixed_bytes: As for `DFGraph`.
          name: As for `DFGraph`.

        Raises:
          GraphError: There is a cycle, or no legal graph.
        """
        return cls(*read_digraph(digraph), fixed_bytes, name)

    def to_networkx(self) -> Any:
        """Returns a `networkx.DiGraph` with a node per op, named after it. `from_networkx` reads it
        back."""
        return make_digraph(self.ops, self.outputs, name=self.name, fixed_bytes=self.fixed_bytes)


def ancestors(deps: Iterable[Iterable[int]]) -> list[int]:
    """Returns for each op the ops that it depends on, directly or not, as the bits of an int (bit i
    = op i)."""
    closure: list[int] = []
    for direct in deps:
        bits = 0
        for d in direct:
            bits |= closure[d] | 1 << d
        closure.append(bits)
    return closure


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


def read_digraph(digraph: Any) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Returns ops in topological order and outputs of a `networkx.DiGraph`. Raises `GraphError` on
    a cycle, or on an attribute that is no field of `Op`."""
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
    ops = tuple(_op(digraph, node, number) for node in order)
    return ops, tuple(number[node] for node in order if digraph.nodes[node].get("output"))


def _op(digraph: Any, node: Any, number: dict[Any, int]) -> Op:
    attributes = {key: value for key, value in digraph.nodes[node].items() if key != "output"}
    before: dict[bool, list[int]] = {True: [], False: []}
    for producer, _, data in digraph.in_edges(node, data=True):
        before[bool(data.get("control"))].append(number[producer])
    for key in ("overwrites", "in_place"):
        attributes[key] = tuple(sorted(number[other] for other in attributes.get(key, ())))
    deps, control_deps = tuple(sorted(before[False])), tuple(sorted(before[True]))
    try:
        return Op(str(node), deps, control_deps=control_deps, **attributes)
    except TypeError as error:
        raise GraphError(f"Node {node!r} has an attribute that no Op has: {error}.") from error


def make_digraph(ops: Sequence[Op], outputs: Sequence[int], **attributes: Any) -> Any:
    """Returns a `networkx.DiGraph` with a node per op, from which `read_digraph` returns the same
    ops and outputs; `attributes` are the graph's own."""
    import networkx as nx

    digraph = nx.DiGraph(**attributes)
    for i, op in enumerate(ops):
        digraph.add_node(
            op.name,
            cost=op.cost,
            output_bytes=op.output_bytes,
            workspace_bytes=op.workspace_bytes,
            is_backward=op.is_backward,
            recomputable=op.recomputable,
            overwrites=tuple(ops[d].name for d in op.overwrites),
            kind=op.kind,
            in_place=tuple(ops[d].name for d in op.in_place),
            output=i in outputs,
        )
        digraph.add_edges_from((ops[d].name, op.name, {"control": True}) for d in op.control_deps)
        digraph.add_edges_from((ops[d].name, op.name) for d in op.deps)
    return digraph
