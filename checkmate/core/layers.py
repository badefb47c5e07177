"""Which layer of the model each op belongs to, read from the names that frameworks give to ops. For reports, never for a solver.

TensorFlow names an op by the scopes it was made in: "model/dense/MatMul" in the forward pass, "gradient_tape/model/dense/MatMul_1"
behind it. Keras opens a scope per layer, and the names it makes unique get a number at the end, so that the layers "conv" and
"conv_1" can appear as "conv_1" and "conv_1_2". All names of a graph are therefore read together: where every scope below the
model ends in a number, and without it they are still told apart, the number is none of the layer's own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import takewhile

from checkmate.core.graph import DFGraph

_GRADIENT_SCOPES = ("gradient_tape", "gradients")
_NUMBER = re.compile(r"_\d+$")

Scope = tuple[str, ...]


def layer_names(graph: DFGraph) -> tuple[str, ...]:
    """Returns for each op the layer it belongs to: "conv2_block1_1_bn", "attention/softmax" for a layer in a layer, "" for none.

    An op of the backward pass belongs to the layer whose gradient it computes. One that was made outside of every scope of the forward pass,
    such as the sum of two gradients, belongs to the layer of the last op it reads. A forward op outside of every scope is a layer of its own.
    """
    forward = [_parts(op.name) for op in graph.ops if not op.is_backward]
    known = {path[:depth] for path in forward for depth in range(1, len(path) + 1)}
    scopes = {path[:depth] for path in forward for depth in range(1, len(path))}
    children = _children(scopes)
    models = {scope for scope, inside in children.items() if len(scope) == 1 and len(inside) > 1}
    numbered = {model for model in models if _all_numbered(model[0], children[model])}
    names: list[str] = []
    for op in graph.ops:
        path = _forward_path(op.name, known) if op.is_backward else _parts(op.name)
        scope = next((path[:depth] for depth in range(len(path) - 1, 0, -1) if path[:depth] in scopes), ())
        if len(scope) == 1 and len(path) > 2 and scope in models:  # a layer whose forward ops are named after the next one
            scope = path[:2]
        if scope:
            names.append(_below(scope, scope[:1] in numbered) if scope[:1] in models and len(scope) > 1 else _alone(scope[0], children[()]))
        elif op.is_backward and scopes and path not in known:
            names.append(next((names[d] for d in reversed(op.deps) if names[d]), ""))
        else:
            names.append("/".join(path))
    return tuple(names)


def _parts(name: str) -> Scope:
    """The scopes of an op and its own name."""
    return tuple(part for part in name.split("/") if part and part not in _GRADIENT_SCOPES) or (name,)


def _forward_path(name: str, known: Collection[Scope]) -> Scope:
    """The parts of a backward op's name; where it is "PREFIX_" before what a forward op or scope is called, without the prefix."""
    path, stem = _parts(name), _parts(name.split("_", 1)[-1])
    return stem if path[:1] not in known and stem[:1] in known else path


def _children(scopes: Iterable[Scope]) -> dict[Scope, set[str]]:
    """The names of the scopes that lie directly in each scope."""
    children: dict[Scope, set[str]] = defaultdict(set)
    for scope in scopes:
        children[scope[:-1]].add(scope[-1])
    return children


def _alone(name: str, siblings: set[str]) -> str:
    """A layer by itself, a loss, an optimizer: its number stays where there are several."""
    bare = _bare(name)
    return bare if sum(_bare(other) == bare for other in siblings) == 1 else name


def _below(scope: Scope, numbered: bool) -> str:
    """The layer in a model. Deeper scopes are layers where they have a number; of kernels, the first use has none."""
    if not numbered:
        return scope[1]
    return "/".join([_bare(scope[1]), *map(_bare, takewhile(_NUMBER.search, scope[2:]))])


def _all_numbered(model: str, layers: set[str]) -> bool:
    """Every scope ends in a number, and the names stay apart without it."""
    return all(map(_NUMBER.search, (model, *layers))) and len({_bare(name) for name in layers}) == len(layers)


def _bare(name: str) -> str:
    return _NUMBER.sub("", name)
