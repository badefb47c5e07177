"""Problems for solvers: the training graphs packaged in `graphs/`, and generated graphs.

Packaged: `vgg16`, `vgg19`, `unet`, `mobilenet`, `resnet50` and `resnet152` are layer-level steps of
Keras applications, `transformer12` and `transformer40` pre-norm encoders, all with bytes of 32-bit
floats and costs in nanoseconds by a roofline (10 TFLOP/s, 700 GB/s, 2 us per op); those that end in
`_ops` were traced by TensorFlow op by op. Generated: `layeredN`, a random layered graph of N ops
without a backward pass, `chainN`, the chain of the paper's appendix with N layers (2 N + 1 ops),
and `encoderN`, the step of an op-level transformer encoder of N layers, 94 ops each.
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
"""Number of ops -> edges of random layered graphs in the tables of MOCCASIN (Bartan et al., ICML
2023)."""

WIDTHS, WIDTH = {100: 0.27, 250: 0.43, 500: 0.36, 1000: 0.31}, 0.35
"""Number of ops -> width of those graphs, and the width of others. A graph of n ops has about
sqrt(n (1 / width - 1)) layers."""

VARIABILITY, DENSITY, SKIPS = 0.75, 0.2, 0.14
"""Largest relative deviation of a layer's length from the mean, share of the possible edges between
adjacent layers, and share of all edges that skip layers."""

FILES = (".json", ".json.gz")
"""Suffixes of graph files."""


def packaged() -> tuple[str, ...]:
    """Returns the names of the packaged graphs, smallest file first."""
    files = [
        file
        for file in (resources.files("benchmarks") / "graphs").iterdir()
        if file.name.endswith(".json.gz")
    ]
    return tuple(
        file.name.removesuffix(".json.gz")
        for file in sorted(files, key=lambda file: (len(file.read_bytes()), file.name))
    )


def load(name: str) -> DFGraph:
    """Returns the graph of this name: a packaged one, a generated one, or that of a .json or
    .json.gz file.

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
            f"There is no graph {name!r}. There are {', '.join(packaged())}, and layeredN, chainN"
            " and encoderN."
        )
    with resources.as_file(resources.files("benchmarks") / "graphs" / f"{name}.json.gz") as path:
        return DFGraph.load(path)


def budget_at(graph: DFGraph, share: float) -> int:
    """Returns the budget at this share of the way from the graph's floor to the plain step's peak,
    fixed bytes included."""
    lowest, peak = floor(graph).bytes, replay(graph, Plan.keep_all(graph)).peak_bytes
    return int(lowest + share * (peak - lowest))


def layered(n: int, *, seed: int = 0) -> DFGraph:
    """Returns a random layered graph. It has no backward pass, and its order, layer by layer, keeps
    values in memory longer than other orders do.

    Layers have random lengths. An op reads ops at about its own position in the layer before. Some
    edges skip layers and end a little to the side. Costs and sizes are whole numbers from 1 to 100.
    Ops without readers are outputs.

    Source: Gagrani et al., "Neural topological ordering for computation graphs" (NeurIPS 2022,
    appendix A), with the parameters and the numbers of edges (`LAYERED_EDGES`) of the graphs for
    which MOCCASIN and FastSA publish figures. The ranges of costs and sizes are chosen here.
    """
    chance = random.Random(seed)
    edges = LAYERED_EDGES.get(n, 0)
    # The number of edges depends on the lengths of the layers. Of many draws, take the one that
    # leaves a share `SKIPS` for edges that skip layers.
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
    """Returns what each op reads of the layer before: edges evenly spread over the longer of the
    two, around the same position in the shorter."""
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
    """Returns a chain: forward ops, the loss, and for each forward op a backward op that reads it
    and the gradient of its successor; all of cost 1 and size 1."""
    ops = [Op(f"f{k}", (k - 1,) if k else (), 1, 1) for k in range(layers + 1)]
    ops += [
        Op(f"b{k}", (k, 2 * layers - k - 1), 1, 1, is_backward=True)
        for k in range(layers - 1, -1, -1)
    ]
    return DFGraph(tuple(ops), (2 * layers,), 0, f"chain{layers}")


# The ops of a transformer layer, one per line: name, inputs, size in units of batch * length *
# width, cost. `x` is the input of the part.
_NORM = """
mean           x                 0.01  1
centre         x mean            1     2
square         centre            1     2
variance       square            0.01  1
rsqrt          variance          0.01  1
scale          centre rsqrt      1     2
gamma          scale             1     2
beta           gamma             1     2
"""
_ATTENTION = """
q              x                 1     24
q_bias         q                 1     2
k              x                 1     24
k_bias         k                 1     2
v              x                 1     24
v_bias         v                 1     2
q_heads        q_bias            1     2
k_heads        k_bias            1     2
v_heads        v_bias            1     2
scores         q_heads k_heads   8     20
scaled         scores            8     16
largest        scaled            0.02  8
shifted        scaled largest    8     16
exp            shifted           8     16
sum            exp               0.02  8
softmax        exp sum           8     16
dropout        softmax           8     16
context        dropout v_heads   1     20
merged         context           1     2
projected      merged            1     24
projected_bias projected         1     2
"""
_FEED_FORWARD = """
wide           x                 4     96
wide_bias      wide              4     8
gelu           wide_bias         4     8
dropout        gelu              4     8
narrow         dropout           1     96
narrow_bias    narrow            1     2
"""


def encoder(layers: int, *, unit_bytes: int = 2**22) -> DFGraph:
    """Returns the training step of a pre-norm transformer encoder, op by op. Every op has one
    backward op that reads what the op read."""
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

    def block(prefix: str, rule: str, x: str) -> str:
        names, name = {"x": x}, "x"
        for line in rule.strip().splitlines():
            name, *reads, size, cost = line.split()
            inputs = tuple(names[d] for d in reads)
            names[name] = run(f"{prefix}/{name}", inputs, float(size), float(cost))
        return names[name]

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
