"""Training graphs whose shape depends on the data, written by rule: an unrolled LSTM and a
TreeLSTM, op by op as eager code runs them.

A forward op has a backward op for each input that is no weight or data; it reads the gradient of
the op's value and what the derivative needs: the inputs of a product, the value of a sigmoid. Where
a value is read several times, a further op adds its gradients up. Gradients of weights are as
resident as the weights: they count into `fixed_bytes`. Costs are whole nanoseconds of a roofline:
the longer of arithmetic at 10 TFLOP/s and traffic at 700 GB/s, and 2 us for the launch. Values are
of 4 bytes.
"""

from __future__ import annotations

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op

FLOPS_PER_NS, BYTES_PER_NS, LAUNCH_NS, WORD = 10_000, 700, 2000, 4


def lstm(steps: int = 100, *, batch: int = 256, width: int = 1024) -> DFGraph:
    """One LSTM layer (Hochreiter & Schmidhuber, 1997), unrolled as a Python loop does it: 26 ops a
    step, ten of them forward."""
    step = _Step(f"lstm{steps}", 2 * 8 * width**2 + batch * width * steps)
    h, c = _cell(step, None, [], batch, width)
    for _ in range(steps - 1):
        h, c = _cell(step, h, [c], batch, width)
    return step.graph(h)


def tree_lstm(leaves: int = 64, *, batch: int = 64, width: int = 1024) -> DFGraph:
    """A binary child-sum TreeLSTM (Tai et al., 2015) on a lopsided tree: one child of a node has a
    third of its leaves."""
    step = _Step(f"tree{leaves}", 2 * 8 * width**2 + batch * width * leaves)

    def node(count: int) -> tuple[int, int]:
        if count == 1:
            return _cell(step, None, [], batch, width)
        (h1, c1), (h2, c2) = node((count + 2) // 3), node(count - (count + 2) // 3)
        return _cell(step, step.op("add", [h1, h2], batch * width), [c1, c2], batch, width)

    return step.graph(node(leaves)[0])


def _cell(step: _Step, h: int | None, cells: list[int], batch: int, width: int) -> tuple[int, int]:
    """One cell, with a forget gate for each of the cells that come in. Returns the ops of its
    output and of its cell."""
    count = batch * width
    gates = step.op(
        "dense",
        [] if h is None else [h],
        4 * count,
        2 * count * 4 * width * (1 if h is None else 2),
    )
    i, o, g = (step.op(kind, [gates], count) for kind in ("sigmoid", "sigmoid", "tanh"))
    c = step.op("multiply", [i, g], count)
    for cell in cells:
        forget = step.op("sigmoid", [gates], count)
        c = step.op("add", [c, step.op("multiply", [forget, cell], count)], count)
    return step.op("multiply", [o, step.op("tanh", [c], count)], count), c


class _Step:
    """A training step in the making."""

    def __init__(self, name: str, fixed: int):
        self._name, self._fixed_bytes = name, fixed * WORD
        self._ops: list[Op] = []
        self._flops: list[int] = []

    def op(self, kind: str, reads: list[int], size: int, flops: int = 0) -> int:
        """Appends a forward op whose value has `size` elements."""
        return self._append(
            f"{kind}_{len(self._ops)}", kind, reads, size * WORD, flops, backward=False
        )

    def graph(self, last: int) -> DFGraph:
        """Appends the loss, which reads `last`, and the backward ops of all before it."""
        loss = self.op("loss", [last], 1)
        incoming: dict[int, list[int]] = {loss: []}
        for i in range(loss, -1, -1):
            op, above = self._ops[i], incoming.get(i)
            if above is None:
                continue
            if len(above) > 1:
                above = [
                    self._append(f"sum_{op.name}", "add", above, op.output_bytes, 0, backward=True)
                ]
            saved = {"sigmoid": (i,), "tanh": (i,), "add": ()}.get(op.kind, op.deps)
            flops = self._flops[i] * (2 if len(op.deps) < 2 else 1)  # for the weight as well
            for d in op.deps:
                size = self._ops[d].output_bytes
                gradient = self._append(
                    f"gradient_{op.name}_{d}", op.kind, [*above, *saved], size, flops, backward=True
                )
                incoming.setdefault(d, []).append(gradient)
            if not op.deps:
                self._append(f"gradient_{op.name}", op.kind, above, 0, flops, backward=True)
        return DFGraph(tuple(self._ops), (loss, len(self._ops) - 1), self._fixed_bytes, self._name)

    def _append(
        self, name: str, kind: str, reads: list[int], count: int, flops: int, *, backward: bool
    ) -> int:
        deps = tuple(sorted(set(reads)))
        traffic = count + sum(self._ops[d].output_bytes for d in deps)
        cost = round(max(flops / FLOPS_PER_NS, traffic / BYTES_PER_NS)) + LAUNCH_NS
        self._ops.append(Op(name, deps, cost, count, is_backward=backward, kind=kind))
        self._flops.append(flops)
        return len(self._ops) - 1
