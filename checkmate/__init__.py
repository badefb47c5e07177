"""Checkmate: train TensorFlow and Keras models that do not fit, by optimal rematerialization.

`checkmate.tf2.compile` makes a training step that stays within a memory budget; `checkmate.solve`
plans any dataflow graph. TensorFlow is imported on the first touch of `checkmate.tf2`, not before.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Compute, Free, Plan
from checkmate.core.replay import Floor, MemoryTimeline, floor, replay
from checkmate.core.schedule import Schedule, lower
from checkmate.errors import (
    BudgetError,
    CheckmateError,
    EvictionError,
    GraphError,
    InfeasibleBudgetError,
    LogError,
    NoPlanFoundError,
    PlanError,
    PlanFileError,
    SolverFailedError,
    SolverUnavailableError,
    TraceError,
    UnsupportedError,
)
from checkmate.solvers.curve import Curve, solve_curve
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.solve import solve
from checkmate.version import __version__ as __version__

if TYPE_CHECKING:
    from checkmate import plot as plot
    from checkmate import tf2 as tf2
    from checkmate.dtr.simulator import simulate

# Without "tf2" and "plot": `from checkmate import *` must not import TensorFlow and Matplotlib.
__all__ = [
    "BudgetError",
    "CheckmateError",
    "Compute",
    "Curve",
    "DFGraph",
    "EvictionError",
    "Floor",
    "Free",
    "GraphError",
    "InfeasibleBudgetError",
    "LogError",
    "MemoryTimeline",
    "NoPlanFoundError",
    "Op",
    "Plan",
    "PlanError",
    "PlanFileError",
    "Schedule",
    "SolveResult",
    "SolveStatus",
    "SolverFailedError",
    "SolverUnavailableError",
    "TraceError",
    "UnsupportedError",
    "floor",
    "lower",
    "replay",
    "simulate",
    "solve",
    "solve_curve",
]


_DOORS = (
    "compile",
    "dtr",
    "fits",
    "function",
    "max_batch",
    "max_length",
    "rematerialize",
    "verify",
)


def __getattr__(name: str):
    if name in ("tf2", "plot"):
        return importlib.import_module(f"checkmate.{name}")
    if name == "simulate":
        return importlib.import_module("checkmate.dtr.simulator").simulate
    names = [*__all__, *(f"tf2.{door}" for door in _DOORS)]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f". Did you mean checkmate.{close[0]}?" if close else ""
    raise AttributeError(f"module 'checkmate' has no attribute {name!r}{hint}")
