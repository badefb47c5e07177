"""The largest batch whose step fits a budget with at most one more forward pass, on paper, beside
the published figures of Checkmate (Jain et al., MLSys 2020, section 6.4).

Twice: on the paper's own graph of layers (`layer_graph.py`), and on the graph of the step that
TensorFlow runs, traced, with plain gradient descent and roofline costs. Nothing trains. As in the
paper, no allocator is asked, no reserve is kept, and scratch memory of convolutions does not count:
`checkmate.tf2.max_batch` finds the batch that really trains.

In the paper's program the batch is a real number, and published figures are rounded: 59.6 is
printed as 60. So batches of the layer graph are searched in tenths. A batch of it is proven
impossible where an op with its inputs needs more than the budget, or where the bound on the cost
exceeds the limit; larger ones then are, too, since all sizes and costs of that graph grow with the
batch alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.solvers.annealing.annealer import Annealer
from checkmate.solvers.backends import scipy
from checkmate.solvers.search import Search
from checkmate.solvers.solve import make_solver

PUBLISHED = {
    "vgg19": 289,
    "mobilenet": 1105,
    "unet": 61,
    "fcn8": 60,
    "segnet": 62,
    "resnet50": 193,
}
"""The largest batch within 16 GB. That of VGG19 is proven optimal; the others are the best that was
found."""

NAMES = tuple(PUBLISHED)

COLUMNS = (
    "network",
    "published",
    "its graph: plain",
    "planned",
    "at most",
    "traced step: plain",
    "planned",
    "s",
)

Graphs = Callable[[int], DFGraph]
"""From a number, which is or stands for a batch, to the graph of the step."""


class CostQuestion(Search):
    """Whether a plan costs at most so much. Time is over once that is decided.

    Attributes:
      most: The limit on the cost.
    """

    def __init__(self, graph: DFGraph, budget_bytes: int, *, most: float, time_limit_s: float):
        super().__init__(graph, budget_bytes, time_limit_s=time_limit_s)
        self.most = most

    @property
    def answer(self) -> bool | None:
        """None as long as neither is known."""
        if self.timeline is not None and self.timeline.cost <= self.most:
            return True
        return False if self.infeasible or self.bound > self.most else None

    @property
    def remaining_s(self) -> float:
        """None are left once the answer is known."""
        return super().remaining_s if self.answer is None else 0.0


@dataclass(frozen=True, slots=True)
class Largest:
    """What `largest` found.

    Attributes:
      plain: The largest number whose plain step fits, 0 for none.
      planned: The largest for which a plan was found.
      at_most: No larger one has a plan, where proofs hold for larger numbers.
    """

    plain: int
    planned: int
    at_most: int


def largest(
    graph_at: Graphs, budget_bytes: int, *, time_limit_s: float, tolerance: float = 0
) -> Largest:
    """Searches the largest number whose graph has a plan with at most one more forward pass.

    Args:
      graph_at: Graphs, whose costs and sizes grow with the number.
      budget_bytes: The budget, resident bytes included.
      time_limit_s: For each number that is tried.
      tolerance: The search ends within this share of the largest.
    """

    def plain(number: int) -> bool:
        graph = graph_at(number)
        return replay(graph, Plan.keep_all(graph)).peak_bytes <= budget_bytes

    _load_solvers()
    low = plainly = most_that(plain)
    high = most_that(lambda number: floor(graph_at(number)).bytes <= budget_bytes) + 1
    at_most, number = high - 1, high - 1  # the floor itself is often what binds
    while high - low > 1 + tolerance * low:
        answer = _answer(graph_at(number), budget_bytes, time_limit_s)
        if answer:
            low = number
        else:
            high = number
            at_most = number - 1 if answer is False else at_most
        number = (low + high) // 2
    return Largest(plainly, low, at_most)


def _load_solvers() -> None:
    """Loads what "auto" otherwise loads in a thread, which would go on after an early answer, while
    TensorFlow looks through what is loaded."""
    scipy.load()
    Annealer(DFGraph((Op("op"),)), 0, (0,))


def _answer(graph: DFGraph, budget_bytes: int, time_limit_s: float) -> bool | None:
    """Whether a plan with at most one more forward pass exists; None where the time is over."""
    forward = sum(op.cost for op in graph.ops if not op.is_backward)
    question = CostQuestion(
        graph, budget_bytes, most=graph.total_cost + forward, time_limit_s=time_limit_s
    )
    make_solver("auto").run(question)
    return question.answer


def most_that(holds: Callable[[int], bool]) -> int:
    """Returns the largest number for which a condition holds, when it holds for all below; 0 for
    none."""
    low, high = 0, 1
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def row(name: str, budget_bytes: int, time_limit_s: float) -> dict[str, Any]:
    """Returns the figures of a network, which is built in this process."""
    from benchmarks.layer_graph import for_batch, layer_graph
    from benchmarks.paper_models import build

    started = time.perf_counter()
    model = build(name)
    example = layer_graph(model)
    layers = largest(
        lambda tenths: for_batch(example, tenths / 10), budget_bytes, time_limit_s=time_limit_s
    )
    traced = largest(traced_graphs(model), budget_bytes, time_limit_s=time_limit_s, tolerance=0.005)
    return {
        "table": "batches",
        "network": name,
        "budget_bytes": budget_bytes,
        "published": PUBLISHED.get(name),
        "layers_plain": layers.plain / 10,
        "layers_planned": layers.planned / 10,
        "layers_at_most": layers.at_most / 10,
        "traced_plain": traced.plain,
        "traced_planned": traced.planned,
        "seconds": time.perf_counter() - started,
    }


def traced_graphs(model: Any) -> Graphs:
    """Returns the graphs of a classifier's training step at any batch, traced at two small ones."""
    import tensorflow as tf

    from checkmate.tf2.max_batch import SMALL_BATCH, GraphGrowth
    from checkmate.tf2.training_step import training_step

    images = tf.TensorSpec((SMALL_BATCH, *model.input_shape[1:]))
    labels = tf.TensorSpec((SMALL_BATCH, *model.output_shape[1:-1]), tf.int32)
    step, specs = training_step(model, "sparse_categorical_crossentropy", "sgd", images, labels)
    return GraphGrowth.of(step, specs, model.name, "roofline").at


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["network"], row["error"][:110])
    return (
        row["network"],
        str(row["published"]),
        f"{row['layers_plain']:.1f}",
        f"{row['layers_planned']:.1f}",
        f"{row['layers_at_most']:.1f}",
        str(row["traced_plain"]),
        str(row["traced_planned"]),
        f"{row['seconds']:.0f}",
    )
