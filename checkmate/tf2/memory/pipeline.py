"""What lies on the device beside the step: an input pipeline's batches, results that are still
referenced, other tensors.

A plan counts what is in use when it is made, and memory for the next batch. A pipeline may come to
hold more later, as its buffers fill and TensorFlow tunes their sizes. Bytes in use are therefore
looked at before each step, and the step is planned anew where its peak would be above the budget by
what came in addition.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from checkmate.core.replay import replay
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import output_buffers_bytes
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep

if TYPE_CHECKING:
    from checkmate.tf2.planning.planned import Planned

BATCHES_MADE = 2
"""For how many batches memory is left at first where a pipeline makes the next one while a step
runs: for it, and for what it is made of."""

MORE_BATCHES, SMALL_SHARE = 6, 0.04
"""For how many more where they take no more than this share of the plain step's peak: buffers of a
pipeline can double within a step. With half the share, `fit` of a dense model from arrays in
29,000,000 bytes was 1.3 % over in two of six runs, with this one in none of six. With four more,
`python tests/tf2/memory/fit_loop.py ema arrays 60%` was 0.5 % over in one of 13 runs, with six in
none of 15."""

MOST_PLANS_ANEW = 3
"""How often a step is planned anew at most because more is in use; a warning follows."""


def argument_bytes(traced: TracedStep) -> int:
    """Returns the bytes of one batch."""
    return sum(tensor_bytes(tensor) or 0 for tensor in traced.argument_tensors())


def bytes_ahead(traced: TracedStep, batches: int) -> int:
    """Returns the memory to leave for what a pipeline makes while a step runs: for at least so many
    batches, none where nothing is made."""
    one = argument_bytes(traced)
    if not batches or not one:
        return 0
    cheap = int(SMALL_SHARE * replay(traced.graph, traced.plain_plan()).peak_bytes) // one
    return max(batches, min(batches + MORE_BATCHES, cheap)) * one


def function_bytes(planned: Planned) -> int:
    """Returns what the function of a plan has in memory between two steps: constants, and the
    buffers of its results."""
    return planned.held_bytes + output_buffers_bytes(planned.run)


def too_much(planned: Planned, budget_bytes: int) -> int:
    """Returns by how many bytes the step's peak would be above the budget now, for what came to be
    in use since it was planned; 0 for none.

    Call it right before a step. A device that does not report has nothing to compare.
    """
    measured = planned.report.measured_peak_bytes
    if not measured or not planned.in_use_bytes:
        return 0
    device = devices.training_device()
    allowed = budget_bytes - measured + _expected_bytes(planned)
    if devices.bytes_in_use(device) <= allowed:
        return 0
    gc.collect()  # what is in cycles only counts as long as nobody looks
    devices.synchronize()
    return max(0, devices.bytes_in_use(device) - allowed)


def _expected_bytes(planned: Planned) -> int:
    """What the plan takes to be in use right before a step, the results of the step before
    included."""
    results = sum(tensor_bytes(tensor) or 0 for tensor in planned.traced.flat.outputs)
    return (
        planned.in_use_bytes
        + function_bytes(planned)
        + max(0, results - output_buffers_bytes(planned.run))
    )
