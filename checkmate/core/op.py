"""Op: one operation of a training step, with the value that it computes."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate.errors import GraphError


@dataclass(frozen=True, slots=True)
class Op:
    """One operation and the one value that it computes.

    Args:
      name: Unique in its graph.
      deps: Indices of the ops whose values the op reads, without repeats. All of these values must
        be in memory while the op runs.
      cost: The cost of one evaluation, in the graph's unit (seconds when profiled).
      output_bytes: Size of the value. Several outputs count as one value, computed and freed
        together.
      workspace_bytes: Memory in use only while the op runs, beyond its inputs and its value.
      is_backward: Whether the op belongs to the backward pass or to the optimizer's update.
      recomputable: Whether the op may run more than once. False for ops with state.
      control_deps: Ops that must have run before the op's first evaluation; their values need not
        be in memory any more.
      overwrites: Ops that must have run before the op's first evaluation, and may not run again
        after it, because the op changes a variable that they read.
      kind: The type of op ("Conv2D"), for people and reports. No solver decides by it.
      in_place: The deps whose memory the value may reuse (buffer forwarding): one of them at a
        time, and only if the plan frees that dep directly after the op. Each is at least as large
        as the op's value.
      fused: Names of ops of other layers that run within it, as a convolution does within its
        activation, for people and for rules that name layers.

    Examples:
      >>> Op("relu", deps=(0,), cost=0.001, output_bytes=4096, in_place=(0,)).recomputable
      True
    """

    name: str
    deps: tuple[int, ...] = ()
    cost: float = 1.0
    output_bytes: int = 0
    workspace_bytes: int = 0
    is_backward: bool = False
    recomputable: bool = True
    control_deps: tuple[int, ...] = ()
    overwrites: tuple[int, ...] = ()
    kind: str = ""
    in_place: tuple[int, ...] = ()
    fused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("deps", "control_deps", "overwrites", "in_place"):
            indices = tuple(int(i) for i in getattr(self, key))
            if len(set(indices)) != len(indices):
                raise GraphError(
                    f"Op {self.name!r} lists an op twice in {key}: {indices}. List each once."
                )
            object.__setattr__(self, key, indices)
        object.__setattr__(
            self, "control_deps", tuple(i for i in self.control_deps if i not in self.deps)
        )
        for d in self.in_place:
            if d not in self.deps:
                raise GraphError(
                    f"Op {self.name!r} has op {d} in in_place, but does not read it: deps are"
                    f" {self.deps}. List deps only."
                )
        if not _is_cost(self.cost):
            raise GraphError(
                f"Op {self.name!r} has cost {reprlib.repr(self.cost)}. A cost is a finite number,"
                " zero or more."
            )
        for key in ("output_bytes", "workspace_bytes"):
            object.__setattr__(
                self, key, whole_bytes(getattr(self, key), f"Op {self.name!r} has {key}")
            )


def whole_bytes(value: Any, what: str) -> int:
    """Returns `value` as an int. Raises `GraphError` with `what` if it is not a whole number, zero
    or more."""
    try:
        if value == int(value) and value >= 0:
            return int(value)
    except (TypeError, ValueError, OverflowError):  # not a number, or not a finite one
        pass
    raise GraphError(
        f"{what} {reprlib.repr(value)}. It must be a whole number of bytes, zero or more."
    )


def _is_cost(cost: object) -> bool:
    try:
        return isinstance(cost, (int, float, np.number)) and math.isfinite(cost) and bool(cost >= 0)
    except OverflowError:  # an int can be larger than any float
        return False
