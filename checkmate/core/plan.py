"""Plan: the order in which ops are evaluated and their values freed. Solvers return plans, and
executors need nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from checkmate.core.graph import DFGraph
from checkmate.errors import PlanError


@dataclass(frozen=True, slots=True)
class Compute:
    """Evaluate op `op`, for the first time or again; from this step its value is in memory.

    Args:
      op: Its index in the graph.

    Examples:
      >>> Compute(3)
      Compute(op=3)
    """

    op: int


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the value of op `op` from memory.

    Args:
      op: Its index in the graph.

    Examples:
      >>> Free(3)
      Free(op=3)
    """

    op: int


Step: TypeAlias = Compute | Free


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they run.

    In every Plan, no value is computed while it is in memory, and none is freed that is not.
    `replay` checks whether a plan is legal for a graph, and how much memory it needs. A plan may
    reorder ops, so plans are more general than R and S.

    Args:
      steps: `Compute` and `Free` steps.

    Raises:
      PlanError: A step computes a value that is in memory or frees one that is not.

    Examples:
      >>> Plan((Compute(0), Compute(1), Free(0), Compute(0))).recomputed
      {0: 1}
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        live: set[int] = set()
        for k, step in enumerate(self.steps):
            if isinstance(step, Compute):
                if step.op in live:
                    raise PlanError(
                        f"Step {k} computes op {step.op}, whose value is still in memory. Free it"
                        " first."
                    )
                live.add(step.op)
            elif isinstance(step, Free):
                if step.op not in live:
                    raise PlanError(f"Step {k} frees op {step.op}, whose value is not in memory.")
                live.remove(step.op)
            else:
                raise PlanError(f"Step {k} is {step!r}. A step is Compute(op=i) or Free(op=i).")

    def __repr__(self) -> str:
        return f"Plan({len(self.computed)} evaluations, {len(self.steps)} steps)"

    def _repr_html_(self) -> str:
        """A picture for notebooks: evaluations from left to right, ops from top to bottom,
        recomputations in orange."""
        first, again, seen = "", "", set()
        for k, i in enumerate(self.computed):
            mark = f"M{k} {i}h1"
            first, again = (first, again + mark) if i in seen else (first + mark, again)
            seen.add(i)
        box = f"0 -1 {max(1, len(self.computed))} {max(seen, default=0) + 2}"
        lines = "".join(
            f'<path d="{path}" stroke="{colour}" stroke-width="3"'
            ' vector-effect="non-scaling-stroke"/>'
            for path, colour in ((first, "#0072b2"), (again, "#e69f00"))
            if path
        )
        return (
            f'<p>{self!r}</p><svg viewBox="{box}" preserveAspectRatio="none" width="480"'
            f' height="240" fill="none">{lines}</svg>'
        )

    @property
    def computed(self) -> tuple[int, ...]:
        """The ops in the order of their evaluations, with repeats."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))

    @property
    def recomputed(self) -> dict[int, int]:
        """For each op that runs more than once, the number of its recomputations."""
        counts: dict[int, int] = {}
        for i in self.computed:
            counts[i] = counts.get(i, -1) + 1
        return {i: extra for i, extra in counts.items() if extra}

    @classmethod
    def from_order(cls, graph: DFGraph, order: Iterable[int]) -> Plan:
        """Returns the plan that evaluates ops in `order` and frees each value right after its last
        use.

        A value lives from one evaluation of its op to the last use before the next one. A repeated
        evaluation without a use is left out. The values of `graph.outputs` stay to the end. Ops run
        in place (`Op.in_place`) wherever this order allows it.

        Args:
          graph: The graph of the ops.
          order: Op indices, with repeats. Each op of the graph at least once.

        Raises:
          PlanError: An op reads a value that was never computed before, or an op is missing.
        """
        order = _without_unused_repeats(graph, [int(i) for i in order])
        latest: dict[int, int] = {}  # op -> position of its latest evaluation
        last_use = list(range(len(order)))
        for position, i in enumerate(order):
            for d in graph.deps[i]:
                if d not in latest:
                    raise PlanError(
                        f"Op {i} {graph.ops[i].name!r} at position {position} reads op {d}"
                        f" {graph.ops[d].name!r}, which did not run before."
                    )
                last_use[latest[d]] = position
            latest[i] = position
        missing = [i for i in range(len(graph)) if i not in latest]
        if missing:
            raise PlanError(
                f"{len(missing)} ops never run, the first is op {missing[0]}"
                f" {graph.ops[missing[0]].name!r}. Every op must run at least once."
            )
        kept = {latest[i] for i in graph.outputs}
        ending: list[list[int]] = [[] for _ in order]
        for position, i in enumerate(order):
            if position not in kept:
                ending[last_use[position]].append(i)
        steps: list[Step] = []
        for position, i in enumerate(order):
            steps.append(Compute(i))
            steps.extend(Free(d) for d in ending[position])
        return cls(tuple(steps))

    @classmethod
    def keep_all(cls, graph: DFGraph) -> Plan:
        """Returns the plan of the plain step: every op once, in order, each value freed right after
        its last use.

        Args:
          graph: The graph of the step.
        """
        return cls.from_order(graph, range(len(graph)))


def _without_unused_repeats(graph: DFGraph, order: Sequence[int]) -> list[int]:
    """Drops evaluations that are neither an op's first, nor read, nor an output's last. Runs from
    the end, since a dropped evaluation can leave others without a use."""
    first: dict[int, int] = {}
    for position, i in enumerate(order):
        if not 0 <= i < len(graph):
            raise PlanError(
                f"Position {position} names op {i}; the graph has ops 0 to {len(graph) - 1}."
            )
        first.setdefault(i, position)
    wanted = set(graph.outputs)  # ops whose value is read later in the order
    kept: list[int] = []
    for position in range(len(order) - 1, -1, -1):
        i = order[position]
        if i in wanted or first[i] == position:
            wanted.discard(i)
            wanted.update(graph.deps[i])
            kept.append(i)
    kept.reverse()
    return kept
