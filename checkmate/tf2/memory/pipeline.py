"""Memory for the batches that an input pipeline makes while a step runs."""

from __future__ import annotations

from checkmate.core.replay import replay
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.table import rule_of

BATCHES_MADE = 2
"""Batches for which memory is set aside at first where a pipeline makes the next batch while a step
runs: that batch, and the one of which it is made."""

MORE_BATCHES, SMALL_SHARE = 6, 0.04
"""How many more batches, where they take no more than this share of the plain step's peak: the
buffers of a pipeline can double within a step. With half the share, `fit` of a dense model from
arrays in 29,000,000 bytes was 1.3 % over in two of six runs, with this one in none of six. With
four more, `python tests/tf2/memory/fit_loop.py ema arrays 60%` was 0.5 % over in one of 13 runs,
with six in none of 15."""


def argument_bytes(traced: TracedStep) -> int:
    """Returns the bytes of one batch."""
    return sum(tensor_bytes(tensor) or 0 for tensor in traced.argument_tensors())


def bytes_ahead(traced: TracedStep, batches: int) -> int:
    """Returns the bytes to set aside for the batches that a pipeline makes while a step runs: for
    at least `batches`, and for none where that is 0."""
    one = argument_bytes(traced) + _taken_bytes(traced)
    if not batches or not one:
        return 0
    plain_peak = replay(traced.graph, traced.plain_plan()).peak_bytes
    return batches_ahead(batches, one, plain_peak) * one


def _taken_bytes(traced: TracedStep) -> int:
    """The bytes of a batch that the step takes from an iterator itself."""
    taken = (o for o in traced.flat.graph.get_operations() if rule_of(o.type).gives_batches)
    return sum(tensor_bytes(tensor) or 0 for o in taken for tensor in o.outputs)


def batches_ahead(batches: int, batch_bytes: int, plain_peak_bytes: int) -> int:
    """Returns for how many batches memory is set aside: more than asked for where they are
    small."""
    cheap = int(SMALL_SHARE * plain_peak_bytes) // batch_bytes
    return max(batches, min(batches + MORE_BATCHES, cheap))
