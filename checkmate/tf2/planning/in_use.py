"""Whether more came to be in use on the device since a step was planned.

A plan counts what is in use when it is made, and memory for further batches. More may come to be
in use later: the buffers of a pipeline fill, and TensorFlow tunes their sizes; the program makes
another model, or another step. Bytes in use are therefore read before each step, and the step is
planned anew where its peak would be above the budget.
"""

from __future__ import annotations

import gc

from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import output_buffers_bytes
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.planning.planned import Planned


def function_bytes(planned: Planned) -> int:
    """Returns what the function of a plan has in memory between two steps: constants, and the
    buffers of its results."""
    return planned.function_bytes + output_buffers_bytes(planned.run)


def excess_bytes(planned: Planned, budget_bytes: int) -> int:
    """Returns by how many bytes the step's peak would be above the budget now, for what came to be
    in use since it was planned; 0 for none.

    Call it right before a step. Where the allocator does not report, the excess is 0.
    """
    measured = planned.report.measured_peak_bytes
    if not measured or not planned.in_use_bytes:
        return 0
    device = devices.training_device()
    allowed = budget_bytes - measured + _expected_bytes(planned)
    if devices.bytes_in_use(device) <= allowed:
        return 0
    gc.collect()  # what is in reference cycles is in use only until it is collected
    devices.synchronize()
    return max(0, devices.bytes_in_use(device) - allowed)


def _expected_bytes(planned: Planned) -> int:
    """What the plan takes to be in use right before a step, the results of the step before
    included."""
    results = sum(tensor_bytes(tensor) or 0 for tensor in planned.traced.flat.outputs)
    beyond_buffers = max(0, results - output_buffers_bytes(planned.run))
    return planned.in_use_bytes + function_bytes(planned) + beyond_buffers
