"""The graph that the experiments of Checkmate make of a Keras model (Jain et al., MLSys 2020).

It has an op for every layer, one for the loss, and one for the gradient of every layer. The
gradient of a layer reads the layer's output, the outputs of the layers that read it, and their
gradients; it has the size of the layer's output and costs twice as much as the layer. Parameters
and their gradients are resident all the time. A real step needs less: few gradients read all of
that, and the update frees the gradients of parameters. `tf2/graph/trace.py` makes the graph of the
real step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import keras
from keras import layers

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op

BYTES = 4
"""Of a 32-bit float."""

FLOP_RATE, BANDWIDTH = 1e13, 7e11
"""FLOP/s and bytes/s of the roofline, as in the packaged graphs: those of a V100 in practice."""

CostModel: TypeAlias = Callable[[float, int], float]
"""From the multiply-adds of a layer and the bytes that it reads and writes to its cost."""


def multiply_adds(count: float, touched_bytes: int) -> float:
    """Costs that the paper uses for the largest batch."""
    return count


def roofline_s(count: float, touched_bytes: int) -> float:
    """Estimated seconds: arithmetic or memory, whichever takes longer."""
    return max(2 * count / FLOP_RATE, touched_bytes / BANDWIDTH)


def layer_graph(model: keras.Model, cost: CostModel = multiply_adds) -> DFGraph:
    """Returns the graph of a model's training step for one example.

    Args:
      model: A functional model of layers that are each called once; one input.
      cost: The cost model.
    """
    chain = [layer for layer in model.layers if not isinstance(layer, layers.InputLayer)]
    number = {id(layer.output): i for i, layer in enumerate(chain)}
    reads = [
        tuple(number[id(tensor)] for tensor in _tensors(layer.input) if id(tensor) in number)
        for layer in chain
    ]
    n = len(chain)
    users: list[list[int]] = [[] for _ in chain]
    for i, deps in enumerate(reads):
        for d in deps:
            users[d].append(i)
    forward = [
        Op(
            layer.name,
            tuple(sorted(set(reads[i]))),
            cost(_multiply_adds(layer), BYTES * (_inputs(layer) + _elements(layer.output))),
            BYTES * _elements(layer.output),
            kind=type(layer).__name__,
        )
        for i, layer in enumerate(chain)
    ]
    loss = Op("loss", (n - 1,), 0, BYTES, is_backward=True)
    backward = [
        Op(
            f"d_{forward[i].name}",
            tuple(sorted({i, *users[i], *(2 * n - k for k in users[i] or (n,))})),
            2 * forward[i].cost,
            forward[i].output_bytes,
            is_backward=True,
            kind=f"d_{forward[i].kind}",
        )
        for i in reversed(range(n))
    ]
    resident = 2 * BYTES * model.count_params()
    return DFGraph((*forward, loss, *backward), (), resident, model.name)


def for_batch(graph: DFGraph, batch: float) -> DFGraph:
    """Returns the graph of a batch from that of one example: costs and sizes grow with the batch,
    which need not be a whole number."""
    ops = (
        replace(op, cost=batch * op.cost, output_bytes=math.ceil(batch * op.output_bytes))
        for op in graph.ops
    )
    return replace(graph, ops=tuple(ops))


def _multiply_adds(layer: keras.Layer) -> float:
    """Of one example. Layers that only move values count none."""
    elements = _elements(layer.output)
    if isinstance(layer, layers.Conv2DTranspose):
        height, width, _, channels = layer.kernel.shape
        return elements * height * width * channels / math.prod(layer.strides)
    if isinstance(layer, layers.DepthwiseConv2D):
        return elements * math.prod(layer.kernel.shape[:2])
    if isinstance(layer, (layers.Conv2D, layers.Dense)):
        return elements * math.prod(layer.kernel.shape[:-1])
    if isinstance(layer, layers.BatchNormalization):
        return 4 * elements
    if isinstance(layer, layers.Add):
        return _inputs(layer)
    if isinstance(layer, (layers.Activation, layers.ReLU, layers.UpSampling2D)):
        return elements
    return 0


def _inputs(layer: keras.Layer) -> int:
    return sum(map(_elements, _tensors(layer.input)))


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _elements(tensor: Any) -> int:
    """Of one example."""
    return math.prod(tensor.shape[1:])
