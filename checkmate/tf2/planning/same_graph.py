"""analyse_same(): a step as another replica traced it, refused where it has another graph."""

from __future__ import annotations

from typing import Any

from checkmate.core.files import fingerprint
from checkmate.errors import TraceError
from checkmate.tf2.graph.trace import TracedStep, analyse


def analyse_same(concrete: Any, main: TracedStep, name: str) -> TracedStep:
    """Returns what a replica traced, analysed, so that it can run a plan of the first replica's.

    Args:
      main: What the first replica traced.
      name: The name of the step.

    Raises:
      TraceError: The graphs differ.
    """
    traced = analyse(concrete, name=main.graph.name)
    if fingerprint(traced.graph) != fingerprint(main.graph):
        raise TraceError(
            f"The replicas of {name!r} do not run the same graph ({len(main.graph)} and"
            f" {len(traced.graph)} ops, or other sizes), so one plan cannot serve them. Use"
            " batches that are a multiple of the number of replicas; drop_remainder=True drops"
            " the last."
        )
    return traced
