"""on_replicas(): a plan on each replica of this process, for a function of all of them to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.trace import TracedStep, analyse_same
from checkmate.tf2.micro_batches.pieces import Pieces
from checkmate.tf2.micro_batches.sliced_run import SlicedRun
from checkmate.tf2.micro_batches.sliced_step import Functions
from checkmate.tf2.planning.request import Planned


def on_replicas(planned: Planned, traced: Sequence[TracedStep]) -> list[Callable[..., Any]]:
    """The function of each replica. The ops run in the plan's order also where a step or a slice
    needs no plan: the function that calls them would run them in any.

    Args:
      planned: The step of the first replica, planned with the others in its request.
      traced: The step of each replica, with the same graph.

    Raises:
      TraceError: A slice has another graph on another replica.
    """
    if not isinstance(planned.run, SlicedRun):
        return [Replayed(each, planned.plan) for each in traced]
    pieces, name = planned.run.pieces, planned.report.name
    return [_sliced(pieces, each, name) for each in (pieces.functions, *pieces.others)]


def _sliced(pieces: Pieces, functions: Functions, name: str) -> SlicedRun:
    def replayed(concrete: Any, piece: Planned) -> Replayed:
        return Replayed(analyse_same(concrete, piece.traced, name), piece.plan)

    each = {size: replayed(functions.each[size], piece) for size, piece in pieces.each.items()}
    after = replayed(functions.after, pieces.after)
    return SlicedRun(pieces.slices, functions.before, each, after, pieces)
