"""Hypothesis strategies for graphs and budgets, and the training graphs by rule from which larger
tests are made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from checkmate import DFGraph, Op, Plan, floor, replay


def training_chain(
    layers: int,
    *,
    skip: int = 0,
    costs: tuple[float, ...] = (1.0,),
    sizes: tuple[int, ...] = (10,),
    gradient_bytes: int = 0,
    updates: bool = False,
    fixed_bytes: int = 0,
) -> DFGraph:
    """A chain of forward ops, their backward ops in reverse, and, if asked, a gradient and an
    update of the variables per layer.

    Backward op k reads the gradient from above and the inputs and output of forward op k. The
    result does not depend on chance.

    Args:
      skip: Every so many layers the layer also reads the one `skip` before it, like the blocks of a
        ResNet; 0 for none.
      costs: Cost of the forward ops, repeated in turn. A backward op costs twice its forward op.
      sizes: Output bytes of the forward ops, repeated in turn. The gradient of a value is as large
        as the value.
      gradient_bytes: Size of each layer's parameter gradient. They appear with `updates`, and may
        not be recomputed.
      updates: After each backward op come a parameter gradient and an update that reads it, stands
        where a traced optimizer would put it, overwrites the variable that the layer's two ops
        read, and may run only once.
    """
    ops: list[Op] = []
    index: dict[str, int] = {}

    def add(name: str, deps: list[str], **facts) -> None:
        index[name] = len(ops)
        ops.append(Op(name, tuple(sorted({index[d] for d in deps})), **facts))

    inputs: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {k: [] for k in range(layers)}
    for k in range(layers):
        inputs[k] = [k - 1] if k else []
        if skip and k >= skip and k % skip == 0:
            inputs[k] = sorted({k - skip, k - 1})
        for d in inputs[k]:
            readers[d].append(k)
        add(
            f"f{k}",
            [f"f{d}" for d in inputs[k]],
            cost=costs[k % len(costs)],
            output_bytes=sizes[k % len(sizes)],
        )
    add("loss", [f"f{layers - 1}"], cost=costs[0] / 2, output_bytes=1)
    outputs = [index["loss"]]
    for k in reversed(range(layers)):
        above = [f"b{reader}" for reader in readers[k]] or ["loss"]
        facts = {
            "cost": 2 * costs[k % len(costs)],
            "output_bytes": sizes[k % len(sizes)],
            "is_backward": True,
        }
        add(f"b{k}", [*above, f"f{k}", *(f"f{d}" for d in inputs[k])], **facts)
        if updates:
            add(
                f"g{k}",
                [f"b{k}", *(f"f{d}" for d in inputs[k])],
                output_bytes=gradient_bytes,
                is_backward=True,
                recomputable=False,
            )
            read_variable = (index[f"f{k}"], index[f"b{k}"])
            add(
                f"u{k}",
                [f"g{k}"],
                cost=0.1,
                is_backward=True,
                recomputable=False,
                overwrites=read_variable,
            )
            outputs.append(index[f"u{k}"])
    if not updates:
        outputs.append(index["b0"])
    return DFGraph(tuple(ops), tuple(outputs), fixed_bytes, f"chain{layers}")


def leaky_relu_grad(*, bytes_each: int = 16, read_again: bool = False, **facts) -> DFGraph:
    """Two values that are made before, and an op that may write over either of them; `facts` change
    that.

    Args:
      read_again: One of the two, which cost 5 to make, is read once more at the end.
    """
    facts = {"in_place": (0, 1)} | facts
    ops = [Op("gradient", output_bytes=bytes_each), Op("features", cost=5, output_bytes=bytes_each)]
    ops.append(Op("grad", (0, 1), output_bytes=bytes_each, **facts))
    ops += [Op("end", (1, 2))] if read_again else []
    return DFGraph(tuple(ops), outputs=(len(ops) - 1,))


@st.composite
def graphs(draw, max_ops: int = 7, min_ops: int = 1) -> DFGraph:
    """Any small graph: several users, zero bytes, zero costs, workspace, ops that run once,
    order-only edges, overwrites, ops in place."""
    few = st.integers(0, 3)
    ops = []
    for i in range(draw(st.integers(min_ops, max_ops))):
        before = st.lists(st.integers(0, i - 1), max_size=3, unique=True) if i else st.just([])
        ops.append(
            Op(
                f"op{i}",
                tuple(sorted(draw(before))),
                cost=draw(st.integers(0, 9)),
                output_bytes=draw(st.integers(0, 9)),
                workspace_bytes=draw(st.sampled_from((0, 0, 0, 2, 5))),
                is_backward=draw(st.booleans()),
                recomputable=draw(few) > 0,
                control_deps=tuple(sorted(draw(before))) if draw(few) == 0 else (),
                overwrites=tuple(sorted(draw(before))) if draw(few) == 0 else (),
            )
        )
    outputs = draw(st.lists(st.integers(0, len(ops) - 1), max_size=2, unique=True))
    return DFGraph(draw(in_place(ops)), tuple(outputs), draw(st.sampled_from((0, 0, 3))))


@st.composite
def in_place(draw, ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same ops, about half of which may take over the memory of some of their deps that are
    large enough."""
    large_enough = [[d for d in op.deps if ops[d].output_bytes >= op.output_bytes] for op in ops]
    chosen = [
        draw(st.lists(st.sampled_from(deps), unique=True)) if deps and draw(st.booleans()) else []
        for deps in large_enough
    ]
    return tuple(
        replace(op, in_place=tuple(sorted(deps))) for op, deps in zip(ops, chosen, strict=True)
    )


@st.composite
def training_chains(draw, max_layers: int = 3, min_layers: int = 1) -> DFGraph:
    """Small training graphs by the rule of `training_chain`; `max_layers=3` without updates has at
    most 7 ops."""
    layers = draw(st.integers(min_layers, max_layers))
    return training_chain(
        layers,
        skip=draw(st.sampled_from((0, 2))),
        costs=tuple(draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))),
        sizes=tuple(draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))),
        fixed_bytes=draw(st.sampled_from((0, 5))),
    )


@st.composite
def training_chains_in_place(draw, max_layers: int = 3) -> DFGraph:
    """Like `training_chains`, some of whose ops may run in place."""
    graph = draw(training_chains(max_layers))
    return replace(graph, ops=draw(in_place(graph.ops)))


@st.composite
def problems(draw, graph_strategy: st.SearchStrategy[DFGraph] | None = None) -> tuple[DFGraph, int]:
    """A graph and a budget between its floor and the plain step's peak: the range in which there is
    something to find."""
    graph = draw(graphs() if graph_strategy is None else graph_strategy)
    lowest = max(1, floor(graph).bytes)
    return graph, draw(
        st.integers(lowest, max(lowest, replay(graph, Plan.keep_all(graph)).peak_bytes))
    )


def tangled(n: int, *, seed: int = 0) -> DFGraph:
    """A random graph of about sqrt(n) layers and 6 edges per op, most of them from a layer close
    above, to any op of it: little can be freed early.

    Costs and sizes are whole numbers from 1 to 100. What nobody reads is an output.
    """
    chance = random.Random(seed)
    edges, width = 6 * n, max(2, round(n**0.5))
    layer = [min(i // width, (n - 1) // width) for i in range(n)]
    deps: list[set[int]] = [
        {chance.choice([d for d in range(n) if layer[d] == layer[i] - 1])} if layer[i] else set()
        for i in range(n)
    ]
    total, attempts = sum(map(len, deps)), 100 * edges
    while total < edges and attempts:
        attempts -= 1
        i = chance.randrange(width, n) if n > width else 0
        back = min(1 + int(chance.expovariate(0.5)), layer[i])
        d = chance.randrange(n)
        d = (layer[i] - back) * width + d % width if layer[i] else i
        if layer[d] < layer[i] and d not in deps[i]:
            deps[i].add(d)
            total += 1
    ops = [
        Op(f"op{i}", tuple(sorted(deps[i])), chance.randint(1, 100), chance.randint(1, 100))
        for i in range(n)
    ]
    read = set().union(*deps)
    return DFGraph(tuple(ops), tuple(i for i in range(n) if i not in read), 0, f"tangled{n}")


def with_backward(forward: Sequence[Op], name: str) -> DFGraph:
    """A training step: forward ops, a loss that reads what nobody else does, and a backward op for
    each forward op, in reverse.

    The backward op of an op reads the gradients from the op's readers, its inputs and its value,
    costs twice as much and makes a value as large.
    """
    n = len(forward)
    readers: list[list[int]] = [[] for _ in forward]
    for i, op in enumerate(forward):
        for d in op.deps:
            readers[d].append(i)
    ends = tuple(i for i in range(n) if not readers[i])
    ops = [*forward, Op("loss", ends, output_bytes=1)]
    backward = {i: 2 * n - i for i in range(n)}
    for i in reversed(range(n)):
        above = [backward[reader] for reader in readers[i]] or [n]
        deps = tuple(sorted({*above, *forward[i].deps, i}))
        cost, size = 2 * forward[i].cost, forward[i].output_bytes
        ops.append(Op(f"d_{forward[i].name}", deps, cost, size, is_backward=True))
    first = [backward[i] for i in range(n) if not forward[i].deps]
    return DFGraph(tuple(ops), (n, *first), 0, name)


def u_shape(depth: int, *, convolutions: int = 2, size: int = 2**10) -> DFGraph:
    """The training step of a U-Net: on the way down each level has half the bytes of the one
    above, on the way up it also reads the last value of its level from the way down.

    Args:
      depth: Levels below the first.
      convolutions: Ops of a level, each way, that keep the size.
      size: Bytes of a value of the first level.
    """
    ops: list[Op] = []

    def add(name: str, deps: tuple[int, ...], cost: float, level: int) -> int:
        ops.append(Op(name, deps, cost, size >> level))
        return len(ops) - 1

    last: list[int] = []
    for level in range(depth + 1):
        if last:
            add(f"pool{level}", (last[-1],), 1, level)
        for k in range(convolutions):
            add(f"down{level}_{k}", (len(ops) - 1,) if ops else (), 8, level)
        last.append(len(ops) - 1)
    for level in reversed(range(depth)):
        at = add(f"enlarge{level}", (len(ops) - 1,), 4, level)
        at = add(f"join{level}", (last[level], at), 1, level)
        for k in range(convolutions):
            at = add(f"up{level}_{k}", (at,), 8, level)
    return with_backward(ops, f"u_shape{depth}x{convolutions}")


def tree(leaves: int, *, seed: int = 0) -> DFGraph:
    """The training step of a random binary tree over `leaves` inputs, such as a TreeLSTM: an op
    reads its two children, and each subtree is evaluated as a whole before the next."""
    chance = random.Random(seed)
    ops: list[Op] = []

    def subtree(count: int) -> int:
        """Adds a tree over `count` leaves; returns its root."""
        deps: tuple[int, ...] = ()
        if count > 1:
            left = chance.randint(1, count - 1)
            deps = (subtree(left), subtree(count - left))
        ops.append(Op(f"node{len(ops)}", deps, chance.randint(1, 9), chance.randint(1, 9)))
        return len(ops) - 1

    subtree(leaves)
    return with_backward(ops, f"tree{leaves}")


def series_parallel(n: int, *, seed: int = 0, backward: bool = True) -> DFGraph:
    """A random series-parallel graph of n ops, and their backward ops: blocks one after another,
    of branches side by side, each of which is a chain or such a graph again."""
    chance = random.Random(seed)
    ops: list[Op] = []

    def add(deps: tuple[int, ...]) -> int:
        ops.append(Op(f"op{len(ops)}", deps, chance.randint(1, 20), chance.randint(1, 20)))
        return len(ops) - 1

    def block(start: int, count: int) -> int:
        """Adds `count` ops that follow `start`; returns the last."""
        if count < 4 or chance.random() < 0.3:
            for _ in range(count):
                start = add((start,))
            return start
        first = chance.randint(1, count - 2)
        branches = [block(start, first), block(start, count - 1 - first)]
        return add(tuple(sorted({*branches, start} if chance.random() < 0.3 else branches)))

    at = add(())
    while len(ops) < n:
        at = block(at, min(n - len(ops), chance.randint(2, max(3, n // 3))))
    name = f"series_parallel{n}_{seed}"
    if backward:
        return with_backward(ops, name)
    return DFGraph(tuple(ops), (at,), 0, name)
