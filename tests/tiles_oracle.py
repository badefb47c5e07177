"""Runs a step as it was written and in tiles, from the same variables, and compares all that it
returns and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from slices_oracle import traced_on

from checkmate.core.replay import replay
from checkmate.tf2.axes.regions import largest_need
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.rewrites.split import Split


def parts(traced: TracedStep, divided: int, *, sums: bool = False) -> TracedStep | None:
    """The step whose ops need at most so small a part of what the largest needs, if it may be."""
    need = largest_need(Function(traced.flat.graph, traced.function.graph))
    return Split(max(1, need // divided), ("tiles",), sums).of(traced)


def numbers(traced: TracedStep, batch: Any, plan: Any = None, steps: int = 2) -> list[np.ndarray]:
    """What a plan returns and leaves in variables, in a few steps from the same state."""
    before = [variable.numpy() for variable in traced.variables]
    run = Replayed(traced, plan or traced.plain_plan())
    flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(batch)]
    found = [np.array(each) for _ in range(steps) for each in tf.nest.flatten(run(*flat))]
    found += [variable.numpy() for variable in traced.variables]
    for variable, value in zip(traced.variables, before, strict=True):
        variable.assign(value)
    return found


def check(
    make: Any, divided: Any = (2, 8), *, sums: bool = False, plans: Any = (), splits: bool = True
) -> None:
    """Holds the plain plan, and those that `plans` make of a graph, to the numbers of the step."""
    step, batch = make()
    traced = traced_on(step, batch)
    expected = numbers(traced, batch)
    split = [found for each in divided if (found := parts(traced, each, sums=sums))]
    assert split or not splits
    for found in split:
        for plan in (found.plain_plan(), *(make(found.graph) for make in plans)):
            replay(found.graph, plan)
            for wanted, value in zip(expected, numbers(found, batch, plan), strict=True):
                if sums:
                    np.testing.assert_allclose(value, wanted, rtol=1e-8, atol=1e-9)
                else:
                    assert value.tobytes() == wanted.tobytes()
