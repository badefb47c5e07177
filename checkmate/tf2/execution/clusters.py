"""Clusters: stretches of a written plan, each a call of one function that XLA compiles.

The kernels of a stretch run one after another in the plan. As one function XLA fuses them, and what
only they read is never in TensorFlow's memory but as the scratch that the call asks for, from the
same allocator. Where stretches begin and end depends on the ops around alone, so the equal blocks
of a model have equal stretches, which are one function, compiled once.

Outside remain: what XLA has no kernel for, random numbers (so that they are those of the step
without XLA), variables and all that has effects, loops and conditions, and ops of which a shape is
not known. What of it does not need the stretch runs before the call, the rest after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.execution.replay import Written
from checkmate.tf2.graph import grappler, xla
from checkmate.tf2.graph.graph_writer import RESHAPE, GraphWriter
from checkmate.tf2.graph.operations import can_be_copied, has_bodies, is_call, may_run_again
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.ops.rule import Role, Source
from checkmate.tf2.ops.table import rule_of

MOST_OPS, LEAST_OPS = 160, 2
"""Kernels in a cluster: in more, XLA keeps what a plan computes again."""

APART_OPS = 20
"""The least kernels between two places at which a plan is cut, where little is in memory."""

WINDOW_OPS = 120
"""How far ahead a value is looked for."""

CONSTANT_BYTES = 4096
"""A larger constant is given to a cluster."""

MEMORY_OPS = frozenset({"Empty", "TensorStridedSliceUpdate", "InplaceUpdate", "DeepCopy"})
"""Ops that allocate memory or write into it, for what a plan puts together in place."""

AS_IT_IS = ("EnsureShape", "Identity")
"""Ops by which a plan has values wait."""

BEFORE, INSIDE, AFTER, EFFECT = range(4)
"""Where a node runs: AFTER the call, as an op that needs what is inside and that XLA cannot
compile; so does an EFFECT, as an update of a variable, and what needs it."""

NOBODY = -1
"""Stands for the place of what is no node: the maker of an argument, the reader of a result."""


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A stretch of a written plan as one function.

    Attributes:
      inside: The places of its kernels among the nodes, in order.
      after: The places of the nodes before its end that read what it makes.
      reads: The names of the tensors that it is given.
      makes: The names of the tensors of it that others read.
      like: Tensors of the step like those that it is given, and like those that it makes.
      nodes: The function's ops, of which inputs are named "given_k".
      outputs: The names in the function of what it makes.
      key: Clusters with the same one are the same function.
    """

    inside: tuple[int, ...]
    after: tuple[int, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    like: tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]
    nodes: tuple[Any, ...]
    outputs: tuple[str, ...]
    key: str

    def function(self) -> Any:
        """Its `ConcreteFunction`."""
        writer = GraphWriter(self.nodes)
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in self.like[0]]

        def body(*given: tf.Tensor) -> list[tf.Tensor]:
            names = {f"given_{k}:0": each for k, each in enumerate(given)}
            return writer.import_here(names, self.outputs)

        with tf.init_scope():
            return tf.function(body, autograph=False).get_concrete_function(*specs)


def call_of(function: Any, cluster: Cluster, name: str, *, compiled: bool) -> tf.Operation:
    """A call of a cluster's function, which XLA compiles or not, as an op of a graph of its own, to
    be measured."""
    writer, (read, made) = GraphWriter(), cluster.like
    names = [f"given_{k}:0" for k in range(len(read))]
    call = writer.call(function, names, made, name=name, compiled=compiled)

    def body(*given: tf.Tensor) -> list[tf.Tensor]:
        outputs = [f"{call}:{k}" for k in range(len(made))]
        return writer.import_here(dict(zip(names, given, strict=True)), outputs)

    specs = [tf.TensorSpec(each.shape, each.dtype) for each in read]
    return tf.compat.v1.wrap_function(body, specs).graph.get_operation_by_name(call)


def clusters(written: Written, most_ops: int = MOST_OPS) -> list[Cluster]:
    """The stretches of a plan that XLA can compile, in order, each of `most_ops` kernels at
    most."""
    return list(_Stretches(written).cut(most_ops))


def with_calls(written: Written, calls: Sequence[tuple[Cluster, Any]]) -> Written:
    """The plan with calls of functions in the place of clusters. Call k is named "cluster_k"."""
    return _Stretches(written).with_calls(calls)


def call_name(k: int) -> str:
    return f"cluster_{k}"


class _Stretches:
    """The nodes of a written plan, and which of them may be in a cluster."""

    def __init__(self, written: Written):
        self.written = written
        self.nodes: Sequence[Any] = list(written.writer.nodes)
        self.like = written.writer.like
        self.place = {node.name: k for k, node in enumerate(self.nodes)}
        self.reads = [[name for name in node.input if name[0] != "^"] for node in self.nodes]
        self.made_at = [
            [self.place.get(_split(name)[0], NOBODY) for name in names] for names in self.reads
        ]
        self.readers: list[dict[int, list[int]]] = [{} for _ in self.nodes]
        for k, names in enumerate(self.reads):
            for name, maker in zip(names, self.made_at[k], strict=True):
                if maker >= 0:
                    self.readers[maker].setdefault(_split(name)[1], []).append(k)
        for name in written.outputs:
            op, output = _split(name)
            if op in self.place:
                self.readers[self.place[op]].setdefault(output, []).append(NOBODY)
        flat = written.traced.flat
        self._given = {name: flat.inputs[k] for k, name in enumerate(written.given)}
        every = range(len(self.nodes))
        self.is_light = [self._light(k) for k in every]
        self.fits = [not self.is_light[k] and self._fits(k) for k in every]
        self.waited = [self._waited(k) for k in every]
        self.is_pure = [self._pure(k) for k in every]

        self._needs = [
            (*self.made_at[k], *(each for each in self.waited[k] if self._must_wait(k, each)))
            for k in every
        ]

    def cut(self, most_ops: int) -> Iterator[Cluster]:
        """Yields the clusters. A stretch ends where little is in memory, and before what needs
        something that runs after it."""
        ends = self._ends()
        status, inside = [BEFORE] * len(self.nodes), list[int]()
        for k in range(len(self.nodes)):
            needs = max((status[each] for each in self._needs[k] if each >= 0), default=BEFORE)
            if self.is_light[k]:
                status[k] = needs
                continue
            if not self.fits[k] or needs == EFFECT:
                later = AFTER if self.is_pure[k] else EFFECT
                status[k] = max(needs, later) if needs > BEFORE else BEFORE
                continue
            if inside and (needs == AFTER or k in ends or len(inside) == most_ops):
                yield from self._cluster(inside, status)
                status, inside = [BEFORE] * len(self.nodes), []
            status[k] = INSIDE
            inside.append(k)
        yield from self._cluster(inside, status)

    def with_calls(self, calls: Sequence[tuple[Cluster, Any]]) -> Written:
        inside = {k for cluster, _ in calls for k in cluster.inside}
        needed = self._needed_outside(inside)
        writer = self.written.writer.emptied()
        names: dict[str, str] = {}  # of tensors made inside -> outputs of calls
        done: dict[int, str] = {}  # a node -> the op to wait for in its place
        last = ""  # the op that runs before the next kernel

        def waits(places: Collection[int], reads: Collection[str]) -> list[str]:
            """The names of ops that run before the next one, in place of those at `places`. If one
            of those is in a call or runs later, or a call made what the next one reads, that waits
            for all written so far; else it is where the plan has it, and another edge would keep
            TensorFlow from fusing it."""
            moved = any(done.get(each) != self.nodes[each].name for each in places)
            chain = [last] if last and (moved or any(name in names for name in reads)) else []
            return [*dict.fromkeys((*(done[each] for each in places if each in done), *chain))]

        def emit(places: Collection[int]) -> None:
            nonlocal last
            for k in sorted(places):
                node = tf.compat.v1.NodeDef()
                node.CopyFrom(self.nodes[k])
                before = waits(self.waited[k], () if self.is_light[k] else self._sources(k))
                del node.input[:]
                node.input.extend(names.get(name, name) for name in self.reads[k])
                node.input.extend(f"^{name}" for name in before)
                writer.put(node, self.like.get(node.name))
                if not self.is_light[k]:
                    done[k] = node.name
                if rule_of(node.op).role is Role.KERNEL:
                    last = node.name

        at = 0
        for number, (cluster, function) in enumerate(calls):
            end = cluster.inside[-1] + 1
            outside = needed & {*range(at, end)}
            emit(outside - {*cluster.after})
            before = {each for k in cluster.inside for each in (k, *self.waited[k])}
            call = writer.call(
                function,
                [names.get(each, each) for each in cluster.reads],
                cluster.like[1],
                after=waits(before, ()),
                name=call_name(number),
            )
            names |= {made: f"{call}:{k}" for k, made in enumerate(cluster.makes)}
            done |= dict.fromkeys(cluster.inside, call)
            last, at = call, end
            emit(outside & {*cluster.after})
        emit(needed & {*range(at, len(self.nodes))})
        outputs = tuple(names.get(each, each) for each in self.written.outputs)
        return replace(self.written, writer=writer, outputs=outputs)

    def _cluster(self, inside: Sequence[int], status: Sequence[int]) -> Iterator[Cluster]:
        """Yields the cluster of these kernels, if they are several."""
        if len(inside) < LEAST_OPS:
            return
        held = {*inside}
        after = tuple(k for k in range(inside[0], inside[-1]) if k not in held and status[k])
        makes = [
            f"{self.nodes[k].name}:{output}"
            for k in inside
            for output, readers in sorted(self.readers[k].items())
            if not held.issuperset(self._kernels_of(readers))
        ]
        body = _Body(self)
        for k in inside:
            body.add(k)
        outputs = tuple(body.names[each] for each in makes)
        reads = tuple(body.given)
        yield Cluster(
            inside=tuple(inside),
            after=after,
            reads=reads,
            makes=tuple(makes),
            like=(tuple(map(self.tensor, reads)), tuple(map(self.tensor, makes))),
            nodes=tuple(body.nodes),
            outputs=outputs,
            key=body.key(outputs),
        )

    def tensor(self, name: str) -> Any:
        """A tensor of the step like the one of this name; None if there is none."""
        if name in self._given:
            return self._given[name]
        op, output = _split(name)
        like = self.like.get(op)
        made = like.outputs if isinstance(like, tf.Operation) else like
        return made[output] if made and output < len(made) else None

    def _needed_outside(self, inside: Collection[int]) -> set[int]:
        """The places of nodes that are not in clusters; views and constants only if read."""
        needed = {k for k, light in enumerate(self.is_light) if not light} - {*inside}
        pending = [each for k in needed for each in self.made_at[k]]
        pending += [self.place.get(_split(name)[0], NOBODY) for name in self.written.outputs]
        while pending:
            k = pending.pop()
            if k >= 0 and self.is_light[k] and k not in needed:
                needed.add(k)
                pending += self.made_at[k]
        return needed

    def _ends(self) -> set[int]:
        """The places of kernels before which least is in memory of what a stretch would hold, of
        those nearby. They depend on the kernels nearby alone."""
        kernels = [k for k, fits in enumerate(self.fits) if fits]
        number = {k: j for j, k in enumerate(kernels)}
        crossing = np.zeros(len(kernels) + 1)
        for j, k in enumerate(kernels):
            for output, readers in self.readers[k].items():
                near = [
                    number[each]
                    for each in self._kernels_of(readers)
                    if number.get(each, -1) > j and number[each] <= j + WINDOW_OPS
                ]
                tensor = self.tensor(f"{self.nodes[k].name}:{output}")
                if near and tensor is not None:
                    size = exact_bytes(tensor)
                    crossing[j + 1] += size
                    crossing[max(near) + 1] -= size
        crossing = np.cumsum(crossing)
        found = set()
        for j in range(APART_OPS, len(kernels) - APART_OPS):
            around = crossing[j - APART_OPS : j + APART_OPS + 1]
            if int(np.argmin(around)) == APART_OPS:
                found.add(kernels[j])
        return found

    def _kernels_of(self, readers: Collection[int]) -> list[int]:
        """The readers of a value, those of its views in place of the views."""
        found: list[int] = []
        for k in readers:
            if k >= 0 and self.is_light[k]:
                more = [o for each in self.readers[k].values() for o in each]
                found += self._kernels_of(more)
            else:
                found.append(k)
        return found

    def _light(self, k: int) -> bool:
        """Whether a node is a view by constants or a constant: made again where it is read."""
        node = self.nodes[k]
        rule = rule_of(node.op)
        if rule.source is Source.CONSTANT:
            return bool(node.attr["value"].tensor.ByteSize() <= CONSTANT_BYTES)
        by = [each >= 0 and self.nodes[each].op == "Const" for each in self.made_at[k][1:]]
        return rule.role in (Role.VIEW, Role.ALIAS) and all(by)

    def _pure(self, k: int) -> bool:
        """Whether an op only computes, so that nothing needs to wait for it, nor it for others."""
        like, op = self.like.get(self.nodes[k].name), self.nodes[k].op
        if isinstance(like, tf.Operation) and like.type == op:
            return may_run_again(like)
        return self.is_light[k] or op in MEMORY_OPS or op in (RESHAPE, "Fill")

    def _must_wait(self, k: int, before: int) -> bool:
        """Whether a node waits for another for more than to be in turn."""
        reads_variable = rule_of(self.nodes[k].op).source is Source.VARIABLE
        return not self.is_pure[k] or (reads_variable and not self.is_pure[before])

    def _fits(self, k: int) -> bool:
        """Whether a kernel may be in a cluster."""
        node = self.nodes[k]
        like, rule = self.like.get(node.name), rule_of(node.op)
        if not isinstance(like, tf.Operation) or like.type != node.op or node.op in MEMORY_OPS:
            return False
        if rule.role is not Role.KERNEL or has_bodies(like) or is_call(like):
            return False
        if rule.counter is not None or not may_run_again(like):
            return False
        given = [self.tensor(name) for name in self._sources(k)]
        is_known = all(
            each is not None and each.shape.is_fully_defined() and can_be_copied(each.dtype)
            for each in (*like.inputs, *like.outputs, *given)
        )
        compiles = all(xla.has_kernel(each.op) for each in grappler.unfused(node))
        return is_known and compiles and self._has_shapes(k)

    def _sources(self, k: int) -> list[str]:
        """The tensors that a node reads, or reads views of."""
        found: list[str] = []
        for name, maker in zip(self.reads[k], self.made_at[k], strict=True):
            is_light = maker >= 0 and self.is_light[maker]
            found += self._sources(maker) if is_light else [name]
        return found

    def _has_shapes(self, k: int) -> bool:
        """Whether all that may decide about the shapes of an op is constant."""
        variable = (self.tensor(name) for name in self.reads[k] if not self._is_constant(name))
        return rule_of(self.nodes[k].op).is_elementwise or not any(
            each is not None and each.dtype.is_integer and each.shape.rank == 1 for each in variable
        )

    def _is_constant(self, name: str) -> bool:
        k = self.place.get(_split(name)[0], NOBODY)
        return k >= 0 and self.nodes[k].op == "Const"

    def _waited(self, k: int) -> tuple[int, ...]:
        """The ops that a node waits for; those that a view is of in place of the view."""
        found: list[int] = []
        pending = [self.place[name[1:]] for name in self.nodes[k].input if name[0] == "^"]
        while pending:
            each = pending.pop()
            if not self.is_light[each]:
                found.append(each)
                continue
            pending += [maker for maker in self.made_at[each] if maker >= 0]
            pending += [self.place[n[1:]] for n in self.nodes[each].input if n[0] == "^"]
        return tuple(dict.fromkeys(found))


class _Body:
    """The function of a cluster, as it is written.

    Attributes:
      given: The tensors that it is given, by their names in the plan -> their names in it.
      names: The same of all other tensors.
    """

    def __init__(self, stretches: _Stretches):
        self._of = stretches
        self.given: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.nodes: list[Any] = []

    def add(self, k: int) -> None:
        """Writes a kernel, and the views and constants that it reads."""
        node, read = self._of.nodes[k], [self._name(name) for name in self._of.reads[k]]
        whole = tf.compat.v1.NodeDef()
        whole.CopyFrom(node)
        del whole.input[:]
        whole.input.extend(read)
        written: dict[str, str] = {}
        for part in grappler.unfused(whole):
            written[part.name] = self._put(part, [written.get(each, each) for each in part.input])
        like: Any = self._of.like[node.name]
        for output in range(len(like.outputs)):
            self.names[f"{node.name}:{output}"] = f"{written[node.name]}:{output}"

    def key(self, outputs: Sequence[str]) -> str:
        given = [(t.dtype.name, str(t.shape)) for t in map(self._of.tensor, self.given)]
        nodes = [node.SerializeToString(deterministic=True) for node in self.nodes]
        return hashlib.sha256(repr((given, nodes, outputs)).encode()).hexdigest()

    def _name(self, name: str) -> str:
        of, (op, output) = self._of, _split(name)
        k = of.place.get(op, NOBODY)
        if name in self.names:
            return self.names[name]
        if k == NOBODY or not of.is_light[k]:
            return self.given.setdefault(name, f"given_{len(self.given)}:0")
        if of.nodes[k].op in AS_IT_IS:
            return self._name(of.reads[k][0])
        written = self._put(of.nodes[k], [self._name(each) for each in of.reads[k]])
        self.names[name] = f"{written}:{output}"
        return self.names[name]

    def _put(self, node: Any, read: Sequence[str]) -> str:
        """Writes a node by a name that tells its place alone."""
        copy = tf.compat.v1.NodeDef(name=f"op_{len(self.nodes)}", op=node.op, input=read)
        for key, value in node.attr.items():
            if key[0] != "_":
                copy.attr[key].CopyFrom(value)
        self.nodes.append(copy)
        return str(copy.name)


def _split(name: str) -> tuple[str, int]:
    """The op that makes a tensor, and the number of the output."""
    op, _, output = name.partition(":")
    return op, int(output or 0)
