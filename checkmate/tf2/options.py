"""PlanOptions: the one list of options of everything that plans a training step."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from checkmate.errors import PlanFileError, TraceError
from checkmate.solvers.layer_rules import Patterns, as_patterns
from checkmate.solvers.search import Solver, check_time_limit
from checkmate.solvers.solve import make_solver
from checkmate.tf2.costs.measured import CostModel
from checkmate.tf2.rewrites.split import KINDS, Split
from checkmate.units import Bytes, check_budget


class PlanKeywords(TypedDict, total=False):
    """The fields of `PlanOptions` but the budget as keyword arguments, for editors and type
    checkers."""

    batch_size: int | None
    solver: str | Solver
    cost_model: str | CostModel
    time_limit_s: float | None
    verbose: bool
    plan: str | os.PathLike | None
    micro_batches: int | str
    keep: Patterns
    recompute: Patterns
    rewrites: Sequence[str]
    rounding: bool
    jit_compile: bool | str


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `rematerialize`, `Rematerialize`, `compile`, `function`, `fits`, `max_batch`,
    `max_length`.

    Attributes:
      budget: The limit for all bytes resident on the device while a step runs: variables, optimizer
        slots, the batch, activations, gradients, workspaces, and the results of the step before.
        "6GiB", a number of bytes, "60%" of the plain step's predicted peak, or "auto": 90 % of
        the free bytes of the device, or 96 % of the allocator's own limit
        (TF_CPU_BFC_MEM_LIMIT_IN_MB).
      batch_size: The largest first dimension of later calls; by default that of the first call. A
        smaller batch runs under the same plan, a larger one is refused.
      solver: See `checkmate.solve`.
      cost_model: "profile" measures each distinct op on the device; "roofline" and "unit" run
        nothing; or a function.
      time_limit_s: The most seconds that the solver takes for one plan; its best plan until then is
        used. The solver is called up to eight times, and up to three times once a plan is within
        the budget. By default two seconds for the first call and half for the others, and more for
        graphs of more than a thousand ops; and the default solver ends before where it has taken
        longer than a cheaper plan could save in a thousand steps.
      verbose: Show on standard error what planning does, and at its end one line about the plan: in
        a terminal and in a notebook in place, elsewhere a line for each phase that takes seconds.
      plan: A .json file that `save` wrote, to run its plan; the plan must be for this very step,
        and with a budget other than "auto" within it. Or a folder: a plan in it for this step and
        these options is run, else one is made and stored there.
      micro_batches: In how many slices a batch runs, one after another, under one plan; the
        optimizer is applied once, on the gradients of the whole batch. "auto" chooses the number
        together with the plan, where the step's values on slices make those on the whole batch
        (BatchNormalization binds examples together, for one), and else does not split. The page
        on batches in slices says more.
      keep: Names of layers, one or several, with `*` as in names of files ("block3*"): their
        forward ops run once. A layer within another is named by either's name, or by both with a
        slash between.
      recompute: Names of layers whose values are not kept for the backward pass, whatever the
        budget: it reads values computed again, as far as ops may run again. What a plan recomputes
        besides may read values of the forward pass. The plan is the cheapest one, within the proven
        gap, of those that hold to both.
      rewrites: How ops may be split that would need too much of the budget: "tiles", along an axis
        of their values; "segments", loops by their turns. () leaves all ops as they are.
      rounding: Whether sums may be added up in another order, part by part, so that more ops can be
        split. The numbers are then the model's up to the last bits; micro-batches do the same.
      jit_compile: Whether XLA compiles the step: as a whole where it fits as it is, else the parts
        of its plan for which that pays and that fit. "auto": as Keras would run the model, by
        what `model.compile` was told; other steps run without XLA. The numbers are then XLA's,
        rounded otherwise. A batch in slices and replicas of a strategy run without.

    Raises:
      BudgetError: A budget or a time limit that cannot be read.
      SolverUnavailableError: A solver that is not there, or makes no plans.
      TraceError: A batch size or a number of micro-batches that is not a whole number of at least
        1.
      PlanFileError: There is no such plan file.
      GraphError: `keep` or `recompute` is no text.

    Examples:
      >>> PlanOptions(budget="6GiB", time_limit_s=10).solver
      'auto'
    """

    budget: Bytes = "auto"
    batch_size: int | None = None
    solver: str | Solver = "auto"
    cost_model: str | CostModel = "profile"
    time_limit_s: float | None = None
    verbose: bool = True
    plan: str | os.PathLike | None = None
    micro_batches: int | str = 1
    keep: Patterns = ()
    recompute: Patterns = ()
    rewrites: Sequence[str] = KINDS
    rounding: bool = False
    jit_compile: bool | str = "auto"

    def __post_init__(self) -> None:
        make_solver(self.solver)  # an unknown name is refused
        object.__setattr__(self, "keep", as_patterns(self.keep))
        object.__setattr__(self, "recompute", as_patterns(self.recompute))
        object.__setattr__(self, "rewrites", _kinds(self.rewrites))
        if self.budget != "auto":
            check_budget(self.budget)
        if self.time_limit_s is not None:
            check_time_limit(self.time_limit_s)
        if self.plan and Path(self.plan).suffix == ".json" and not Path(self.plan).exists():
            raise PlanFileError(
                f"There is no plan file {self.plan}; `save` writes one. To have plans stored and"
                " found, name a folder, which is made where it is missing."
            )
        if self.batch_size is not None and not is_count(self.batch_size):
            raise TraceError(
                "batch_size is the largest batch that will come, a whole number of at least 1; got"
                f" {self.batch_size!r}."
            )
        if not isinstance(self.jit_compile, bool) and self.jit_compile != "auto":
            raise TraceError(
                "jit_compile says whether XLA compiles the step, or parts of it: True, False, or"
                f' "auto"; got {self.jit_compile!r}.'
            )
        if self.micro_batches != "auto" and not is_count(self.micro_batches):
            raise TraceError(
                "micro_batches is the number of slices in which a batch runs, a whole number of at"
                f' least 1, or "auto"; got {self.micro_batches!r}.'
            )

    @classmethod
    def of(
        cls,
        function: str,
        budget: Bytes,
        keywords: Mapping[str, Any],
        refused: Mapping[str, str] | None = None,
        own: Sequence[str] = (),
    ) -> PlanOptions:
        """Checks the options of a public function.

        Args:
          function: The name of the function, for messages.
          budget: Its budget.
          keywords: Its other options.
          refused: Option -> why this function does not take it, as a sentence.
          own: Options that this function has besides.

        Raises:
          TypeError: An unknown option, or a refused one.
        """
        refused = refused or {}
        known = [each.name for each in fields(cls) if each.name not in refused]
        for name in keywords:
            if name in refused:
                raise TypeError(f"{function}() does not take {name}: {refused[name]}")
            if name not in known:
                names = [*own, *known]
                close = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(
                    f"{function}() has no option {name!r}.{hint} The options are"
                    f" {', '.join(names)}."
                )
        return cls(budget, **keywords)

    def like_keras(self, model: Any) -> PlanOptions:
        """Returns the options with "auto" resolved as Keras does.

        Args:
          model: A Keras model, compiled or not.
        """
        asked = self.jit_compile
        by_keras = bool(getattr(model, "compiled", False) and model.jit_compile)
        return replace(self, jit_compile=by_keras if asked == "auto" else asked)

    @property
    def split(self) -> Split:
        """How ops may be split."""
        return Split(0, tuple(self.rewrites), self.rounding, tried=self.cost_model == "profile")

    @property
    def key(self) -> tuple[Any, ...]:
        """The options that decide about a plan, for the name of its file in a folder."""
        solver = self.solver if isinstance(self.solver, str) else self.solver.name
        cost_model = getattr(self.cost_model, "__qualname__", self.cost_model)
        micro_batches = () if self.micro_batches == 1 else (self.micro_batches,)
        rules = (self.keep, self.recompute) if self.keep or self.recompute else ()
        split = () if (self.split.kinds, self.rounding) == (KINDS, False) else (self.split,)
        return self.budget, solver, cost_model, self.time_limit_s, *micro_batches, *rules, *split


def _kinds(asked: Sequence[str]) -> tuple[str, ...]:
    kinds = (asked,) if isinstance(asked, str) else tuple(asked)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise TraceError(
            f"rewrites names how ops may be split, of {', '.join(KINDS)}; got {unknown[0]!r}."
        )
    return kinds


def is_count(value: object) -> bool:
    """True for a whole number of at least 1."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)
