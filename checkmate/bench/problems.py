"""Problems for solvers that anyone has: the training graphs packaged in `graphs/`, and graphs by
rule of any size.

The packaged ones: `vgg16`, `vgg19`, `unet`, `mobilenet`, `resnet50` and `resnet152` are layer-level
steps of the Keras applications, `transformer12` and `transformer40` pre-norm encoders, all with
bytes of 32-bit floats and costs in nanoseconds by a roofline (10 TFLOP/s, 700 GB/s, 2 us per op);
the ones that end in `_ops` are traced by TensorFlow op by op. By rule: `layeredN`, a random layered
graph of N ops with no backward pass, `chainN`, the chain of the paper's appendix with N layers (2 N
+ 1 ops), and `encoderN`, the step of an op-level transformer encoder of N layers, 94 ops each.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import GraphError

LAYERED_EDGES = {100: 236, 250: 944, 500: 2461, 1000: 5875}
"""Edges of random layered graphs by number of ops, as in the tables of MOCCASIN (Bartan et al.,
ICML 2023)."""

WIDTHS, WIDTH = {100: 0.27, 250: 0.43, 500: 0.36, 1000: 0.31}, 0.35
"""Widths of those graphs, and of others: layers of n ops in all are as many as the square root of n
(1 / width - 1)."""

VARIABILITY, DENSITY, SKIPS = 0.75, 0.2, 0.14
"""How much longer or shorter than the mean a layer may be, share of the possible edges between
neighbouring layers, and share of all edges that skip layers."""

FILES = (".json", ".json.gz")
"""How names of graph files end."""


def packaged() -> tuple[str, ...]:
    """Names of the graphs that come with the package, smallest first."""
    files = [
        file
        for file in (resources.files("checkmate.bench") / "graphs").iterdir()
        if file.name.endswith(".json.gz")
    ]
    return tuple(
        file.name.removesuffix(".json.gz")
        for file in sorted(files, key=lambda file: (len(file.read_bytes()), file.name))
    )


def load(name: str) -> DFGraph:
    """Returns the graph of this name: a packaged one, `layeredN`, `chainN` or `encoderN` by rule,
    or what a .json or .json.gz file holds.

    Raises:
      GraphError: There is no such graph, or the file holds no legal one.
      PlanFileError: The file cannot be read, or holds no graph.
    """
    if name.endswith(FILES):
        graph = DFGraph.load(name)
        return graph if graph.name else replace(graph, name=Path(name).name.partition(".")[0])
    rule = re.fullmatch(r"(layered|chain|encoder)([1-9]\d*)", name)
    if rule:
        rules: dict[str, Callable[[int], DFGraph]] = {
            "layered": layered,
            "chain": chain,
            "encoder": encoder,
        }
        return rules[rule[1]](int(rule[2]))
    if name not in packaged():
        raise GraphError(
            f"There is no graph {name!r}. There are {', '.join(packaged())}, and layeredN, chainN and encoderN by rule."
        )
    with resources.as_file(
        resources.files("checkmate.bench") / "graphs" / f"{name}.json.gz"
    ) as path:
        return DFGraph.load(path)


def budget_at(graph: DFGraph, share: float) -> int:
    """The budget at this share of the way from the floor of the graph to the peak of its plain
    step, fixed bytes included."""
    lowest, peak = floor(graph).bytes, replay(graph, Plan.keep_all(graph)).peak_bytes
    return int(lowest + share * (peak - lowest))


def layered(n: int, *, seed: int = 0) -> DFGraph:
    """A random layered graph: no backward pass, and an order, layer by layer, that leaves values in
    memory for no good reason.

    Ops stand side by side in layers of random length and read those at about their own place in the
    layer before. Some edges skip layers and lead a little to the side. Costs and sizes are whole
    numbers from 1 to 100. What nobody reads is an output.

    Source: the rule of Gagrani et al., "Neural topological ordering for computation graphs"
    (NeurIPS 2022, appendix A), with the parameters and, where `LAYERED_EDGES` says it, the number
    of edges of the graphs that MOCCASIN and FastSA publish figures for. Costs and sizes are our
    own.
    """
    chance = random.Random(seed)
    edges = LAYERED_EDGES.get(n, 0)
    # How many edges there are hangs on the lengths of the layers: of many draws, that which leaves
    # the rule's share to edges that skip some.
    drawn = [_layers(n, chance) for _ in range(1000 if edges else 1)]
    wanted = (1 - SKIPS) * edges
    layers, deps = min(
        ((layers, _reads(layers, chance)) for layers in drawn),
        key=lambda found: abs(sum(map(len, found[1])) - wanted),
    )
    total = sum(map(len, deps))
    skips = edges - total if edges else round(total * SKIPS / (1 - SKIPS))
    attempts = 100 * skips if len(layers) > 2 else 0
    while skips > 0 and attempts:
        attempts -= 1
        above = chance.randrange(len(layers) - 2)
        below = chance.randrange(above + 2, len(layers))
        place = chance.random()
        aside = min(place + 0.2 * chance.random(), 0.999)
        source, target = (
            layers[above][int(place * len(layers[above]))],
            layers[below][int(aside * len(layers[below]))],
        )
        if source not in deps[target]:
            deps[target].add(source)
            skips -= 1
    ops = [
        Op(f"op{i}", tuple(sorted(deps[i])), chance.randint(1, 100), chance.randint(1, 100))
        for i in range(n)
    ]
    read = set().union(*deps)
    return DFGraph(tuple(ops), tuple(i for i in range(n) if i not in read), 0, f"layered{n}")


def _layers(n: int, chance: random.Random) -> list[range]:
    """Splits n ops into layers of random length."""
    mean = n / math.ceil(math.sqrt(n * (1 / WIDTHS.get(n, WIDTH) - 1)))
    least, most = math.ceil(mean * (1 - VARIABILITY)), math.floor(mean * (1 + VARIABILITY))
    layers, start = [], 0
    while start < n:
        length = chance.randint(least, max(least, most))
        layers.append(range(start, min(n, start + length)))
        start += length
    return layers


def _reads(layers: list[range], chance: random.Random) -> list[set[int]]:
    """What each op reads of the layer before: edges evenly spread over the longer of the two,
    around the same place in the shorter."""
    deps: list[set[int]] = [set() for layer in layers for _ in layer]
    for before, layer in pairwise(layers):
        longer, shorter = (before, layer) if len(before) >= len(layer) else (layer, before)
        share, left = divmod(
            int(DENSITY * len(longer) * len(shorter) + (1 - DENSITY) * len(longer)), len(longer)
        )
        counts = [share] * len(longer)
        for i in chance.sample(range(len(longer)), left):
            counts[i] += 1
        for i, count in enumerate(counts):
            first = math.ceil(i * (len(shorter) - 1) / max(1, len(longer) - 1)) - (count - 1) // 2
            for place in range(max(0, first), min(len(shorter), first + count)):
                source, target = (
                    (longer[i], shorter[place]) if longer is before else (shorter[place], longer[i])
                )
                deps[target].add(source)
    return deps


def chain(layers: int) -> DFGraph:
    """Forward ops, the loss, and for each forward op one that reads it and the gradient from above:
    all of cost 1 and size 1."""
    ops = [Op(f"f{k}", (k - 1,) if k else (), 1, 1) for k in range(layers + 1)]
    ops += [
        Op(f"b{k}", (k, 2 * layers - k - 1), 1, 1, is_backward=True)
        for k in range(layers - 1, -1, -1)
    ]
    return DFGraph(tuple(ops), (2 * layers,), 0, f"chain{layers}")


# One encoder layer: (op, inputs, size in units of batch * length * width, cost). `x` is what enters
# the layer.
_NORM = (("mean", ("x",), 0.01, 1), ("centre", ("x", "mean"), 1, 2), ("square", ("centre",), 1, 2), ("variance", ("square",), 0.01, 1),
         ("rsqrt", ("variance",), 0.01, 1), ("scale", ("centre", "rsqrt"), 1, 2), ("gamma", ("scale",), 1, 2), ("beta", ("gamma",), 1, 2))  # fmt: skip
_ATTENTION = (("q", ("x",), 1, 24), ("q_bias", ("q",), 1, 2), ("k", ("x",), 1, 24), ("k_bias", ("k",), 1, 2), ("v", ("x",), 1, 24),
              ("v_bias", ("v",), 1, 2), ("q_heads", ("q_bias",), 1, 2), ("k_heads", ("k_bias",), 1, 2), ("v_heads", ("v_bias",), 1, 2),
              ("scores", ("q_heads", "k_heads"), 8, 20), ("scaled", ("scores",), 8, 16), ("largest", ("scaled",), 0.02, 8),
              ("shifted", ("scaled", "largest"), 8, 16), ("exp", ("shifted",), 8, 16), ("sum", ("exp",), 0.02, 8),
              ("softmax", ("exp", "sum"), 8, 16), ("dropout", ("softmax",), 8, 16), ("context", ("dropout", "v_heads"), 1, 20),
              ("merged", ("context",), 1, 2), ("projected", ("merged",), 1, 24), ("projected_bias", ("projected",), 1, 2))  # fmt: skip
_FEED_FORWARD = (("wide", ("x",), 4, 96), ("wide_bias", ("wide",), 4, 8), ("gelu", ("wide_bias",), 4, 8), ("dropout", ("gelu",), 4, 8),
                 ("narrow", ("dropout",), 1, 96), ("narrow_bias", ("narrow",), 1, 2))  # fmt: skip


def encoder(layers: int, *, unit_bytes: int = 2**22) -> DFGraph:
    """The training step of a pre-norm transformer encoder op by op: every op of a layer has one
    backward op that reads what it read."""
    ops: list[Op] = []
    index: dict[str, int] = {}
    forward: list[tuple[str, tuple[str, ...], float, float]] = []

    def add(
        name: str, deps: tuple[str, ...], size: float, cost: float, is_backward: bool = False
    ) -> str:
        index[name] = len(ops)
        places = tuple(sorted({index[d] for d in deps}))
        ops.append(Op(name, places, cost, int(size * unit_bytes), is_backward=is_backward))
        return name

    def run(name: str, deps: tuple[str, ...], size: float, cost: float) -> str:
        forward.append((name, deps, size, cost))
        return add(name, deps, size, cost)

    def block(prefix: str, rule, x: str) -> str:
        names = {"x": x}
        for name, reads, size, cost in rule:
            names[name] = run(f"{prefix}/{name}", tuple(names[d] for d in reads), size, cost)
        return names[rule[-1][0]]

    x = run("embedded", (), 1, 2)
    for k in range(layers):
        for part, rule in (("attention", _ATTENTION), ("feed_forward", _FEED_FORWARD)):
            inner = block(f"{k}/{part}", rule, block(f"{k}/{part}_norm", _NORM, x))
            inner = run(f"{k}/{part}_dropout", (inner,), 1, 2)
            x = run(f"{k}/{part}_add", (x, inner), 1, 2)
    add("loss", (x,), 0.01, 1)
    gradient = {x: "loss"}
    readers: dict[str, list[str]] = {}
    for name, deps, _, _ in forward:
        for d in deps:
            readers.setdefault(d, []).append(name)
    for name, deps, size, cost in reversed(forward):
        above = tuple(f"d_{reader}" for reader in readers.get(name, ())) or (gradient[name],)
        kept = () if name.endswith(("_add", "_bias", "_heads", "/merged")) else (*deps, name)
        add(f"d_{name}", (*above, *kept), size, 2 * cost, is_backward=True)
    return DFGraph(tuple(ops), (index["loss"], index["d_embedded"]), 0, f"encoder{layers}")
