"""The layer of the model that each op belongs to, derived from the names of ops, for reports.

TensorFlow names an op after the scopes in which it was made: "model/dense/MatMul" in the forward
pass, "gradient_tape/model/dense/MatMul_1" for its gradient. Keras opens a scope per layer, and
makes names unique by a number at the end, so that the layers "conv" and "conv_1" can appear as
"conv_1" and "conv_1_2". All names of a graph are therefore read together: if every scope of the
model ends in a number, and the names stay different without it (but for layers that are called
twice), the number was added by Keras.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import takewhile

from checkmate.core.graph import DFGraph

_GRADIENT_SCOPES = ("gradient_tape", "gradients")
_NUMBER = re.compile(r"_\d+$")

Path = tuple[str, ...]
"""Scopes, outermost first; the last part of an op's path is its own name."""


def layer_names(graph: DFGraph) -> tuple[str, ...]:
    """Returns the layer of each op: "conv2_block1_1_bn", "attention/softmax" for a layer in a
    layer, "" for none.

    An op of the backward pass belongs to the layer whose gradient it computes. One outside all
    scopes of the forward pass, such as the sum of two gradients, belongs to the layer of the last
    op that it reads. A forward op outside all scopes is a layer of its own.
    """
    scopes = _scopes(graph)
    names: list[str] = []
    for op in graph.ops:
        path = scopes.forward_path(op.name) if op.is_backward else _parts(op.name)
        scope = scopes.innermost(path)
        if scope:
            names.append(scopes.layer(scope))
        elif op.is_backward and scopes.any and not scopes.knows(path):
            names.append(next((names[d] for d in reversed(op.deps) if names[d]), ""))
        else:
            names.append("/".join(path))
    return tuple(names)


def fused_layer_names(graph: DFGraph) -> tuple[tuple[str, ...], ...]:
    """The layers of the ops that are fused into each op."""
    scopes = _scopes(graph)
    return tuple(
        tuple(scopes.layer(scope) for name in op.fused if (scope := scopes.innermost(_parts(name))))
        for op in graph.ops
    )


def _scopes(graph: DFGraph) -> _Scopes:
    forward = [op for op in graph.ops if not op.is_backward]
    return _Scopes([_parts(name) for op in forward for name in (op.name, *op.fused)])


class _Scopes:
    def __init__(self, forward: list[Path]):
        self._known = {path[:depth] for path in forward for depth in range(1, len(path) + 1)}
        self._scopes = {path[:depth] for path in forward for depth in range(1, len(path))}
        inside: dict[Path, set[str]] = defaultdict(set)
        for scope in self._scopes:
            inside[scope[:-1]].add(scope[-1])
        self._outermost = inside[()]
        self._models = {
            scope[0] for scope, names in inside.items() if len(scope) == 1 and len(names) > 1
        }
        self._numbered = {model for model in self._models if _all_numbered(model, inside[(model,)])}

    @property
    def any(self) -> bool:
        return bool(self._scopes)

    def knows(self, path: Path) -> bool:
        return path in self._known

    def forward_path(self, name: str) -> Path:
        """The path of a backward op, without a prefix "PREFIX_" of a forward op's name."""
        path, stem = _parts(name), _parts(name.split("_", 1)[-1])
        return stem if not self.knows(path[:1]) and self.knows(stem[:1]) else path

    def innermost(self, path: Path) -> Path:
        """The deepest scope of the forward pass that contains an op; () for none."""
        found: Path = next(
            (path[:depth] for depth in range(len(path) - 1, 0, -1) if path[:depth] in self._scopes),
            (),
        )
        # A layer whose forward ops have the names of another layer.
        if len(found) == 1 and found[0] in self._models and len(path) > 2:
            return path[:2]
        return found

    def layer(self, scope: Path) -> str:
        """The layer of a scope. A scope outside models (a loss, an optimizer) is a layer itself."""
        if scope[0] not in self._models or len(scope) == 1:
            bare = _bare(scope[0])
            return bare if sum(_bare(other) == bare for other in self._outermost) == 1 else scope[0]
        if scope[0] not in self._numbered:
            return scope[1]
        # Deeper scopes are layers if they have a number; the first use of a kernel has none.
        return "/".join([_bare(scope[1]), *map(_bare, takewhile(_NUMBER.search, scope[2:]))])


def _parts(name: str) -> Path:
    return tuple(part for part in name.split("/") if part and part not in _GRADIENT_SCOPES) or (
        name,
    )


def _all_numbered(model: str, layers: set[str]) -> bool:
    if not all(map(_NUMBER.search, (model, *layers))):
        return False
    count = Counter(map(_bare, layers))
    once = sum(found == 1 for found in count.values())
    # A layer that is called twice has two numbers; then one number more shows in another's name.
    return len(count) == len(layers) or (2 * once > len(layers) and any(map(_NUMBER.search, count)))


def _bare(name: str) -> str:
    return _NUMBER.sub("", name)
