"""Candidate and Found: a plan that a solver found, and the function of one within the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checkmate.core.plan import Plan
from checkmate.solvers.result import SolveResult
from checkmate.tf2.memory.confirm import Confirmed
from checkmate.tf2.memory.prediction import PlanOnPaper


@dataclass(slots=True, eq=False)
class Candidate:
    """A plan that the solver found.

    Attributes:
      predicted_bytes: Its peak in the budget's terms, by the simulated allocator or by the judge;
        None where memory runs out.
      measured_bytes: Its peak in the confirming steps.
    """

    result: SolveResult
    plan: Plan
    peak_bytes: int
    paper: PlanOnPaper | None = None
    predicted_bytes: int | None = None
    measured_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A function within the budget.

    Attributes:
      expected_bytes: The peak that is expected in training, in the budget's terms.
      measured_bytes: The peak of the confirming steps; None where there were none.
      confirmed: What was found in them.
    """

    result: SolveResult
    plan: Plan
    run: Callable[..., Any] = field(repr=False)
    expected_bytes: int | None
    measured_bytes: int | None = None
    confirmed: Confirmed | None = None
