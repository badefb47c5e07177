"""solve(): the one door to every solver. It checks the question, runs the solver, and reports only
what the judge says."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import Floor, floor, plain_peak, replay
from checkmate.errors import (
    InfeasibleBudgetError,
    NoPlanFoundError,
    PlanError,
    SolverFailedError,
    SolverUnavailableError,
)
from checkmate.solvers.layer_rules import LayerRules, Patterns
from checkmate.solvers.ordering.reorder import Reorder
from checkmate.solvers.result import OrderSpace, SolveResult, SolveStats, SolveStatus
from checkmate.solvers.search import (
    OPTIMALITY_TOLERANCE,
    Search,
    Solver,
    check_graph,
    check_time_limit,
)
from checkmate.units import Bytes, format_bytes, parse_bytes

SOLVERS: dict[str, tuple[str, str]] = {
    "auto": ("checkmate.solvers.auto.solver", "Auto"),
    "state_space": ("checkmate.solvers.exact.a_star", "AStar"),
    "milp": ("checkmate.solvers.paper.milp", "MILP"),
    "retention": ("checkmate.solvers.paper.retention", "Retention"),
    "lp_rounding": ("checkmate.solvers.paper.lp", "LPRounding"),
    "checkpoint_all": ("checkmate.solvers.baselines.chen", "CheckpointAll"),
    "checkpoint_last": ("checkmate.solvers.baselines.chen", "CheckpointLast"),
    "chen_sqrt_n": ("checkmate.solvers.baselines.chen", "ChenSqrtN"),
    "chen_greedy": ("checkmate.solvers.baselines.chen", "ChenGreedy"),
    "revolve": ("checkmate.solvers.baselines.revolve", "Revolve"),
    "min_cut": ("checkmate.solvers.baselines.min_cut", "MinCut"),
    "dtr": ("checkmate.solvers.baselines.dtr", "DTR"),
}
"""Name -> module and class. A solver is imported when it is asked for, so that `import checkmate`
stays light."""

OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "milp": ("engine", ("cbc", "scip", "highs", "cp_sat")),
    "chen_sqrt_n": ("form", ("ap", "linearized")),
    "chen_greedy": ("form", ("ap", "linearized")),
}
"""Name -> argument of the class that may follow the name after a colon ("milp:scip"), and its
values."""

SPELLINGS = (
    *SOLVERS,
    *(f"{name}:{value}" for name, (_, values) in OPTIONS.items() for value in values),
)
"""Everything that `solve(solver=...)` accepts as text."""


def solver_list() -> str:
    """Returns the names of all solvers with their options, for help and errors."""
    return ", ".join(
        f"{name}[:{'|'.join(OPTIONS[name][1])}]" if name in OPTIONS else name for name in SOLVERS
    )


def make_solver(solver: str | Solver) -> Solver:
    """Returns the solver of this name ("auto", "milp:scip"), or the object itself. Raises
    `SolverUnavailableError` with the known ones."""
    if not isinstance(solver, str):
        if not callable(getattr(solver, "run", None)):
            raise SolverUnavailableError(
                f"{solver!r} is no solver: give a name ({solver_list()}) or an object with"
                " run(search)."
            )
        return solver
    key = solver.lower().replace("-", "_")
    if key not in SPELLINGS:
        close = difflib.get_close_matches(key, SPELLINGS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SolverUnavailableError(
            f"There is no solver {solver!r}.{hint} Known: {solver_list()}."
        )
    name, _, value = key.partition(":")
    module, kind = SOLVERS[name]
    options = {OPTIONS[name][0]: value} if value else {}
    return getattr(importlib.import_module(module), kind)(**options)


def solve(
    graph: DFGraph,
    budget: Bytes,
    *,
    solver: str | Solver = "auto",
    time_limit_s: float = 60,
    deterministic: bool = False,
    reorder: bool = False,
    keep: Patterns = (),
    recompute: Patterns = (),
    throw: bool = True,
    on_progress: Callable[[Search], None] | None = None,
) -> SolveResult:
    """Finds a cheap plan of `graph` whose peak is within `budget`.

    Whatever the solver, the figures of the result are the judge's own (`replay`). When the plain
    step fits, that is the answer and no solver runs. A budget below `floor(graph)` is refused with
    the proof. Ctrl-C during the search returns the best plan found, with status INTERRUPTED; with
    none found yet it is raised on.

    Args:
      graph: The problem.
      budget: A number of bytes, "6GiB", or "60%" of the plain step's peak. It counts
        `graph.fixed_bytes`.
      solver: A name of `SOLVERS`, for some with an option after a colon ("milp:scip"), or an object
        with `run(search)`.
      time_limit_s: Wall-clock seconds after which the best plan found so far is the answer.
      deterministic: No clock is read, and `time_limit_s` not looked at: solvers stop at their own
        limits of work, so that the same question has the same plan on a busy machine as on an idle
        one. "auto" then takes seconds to minutes; exact engines end when done.
      reorder: Also look for plans that run ops in another order than the graph's, as far as
        dependencies, control dependencies and overwritten variables allow. Such a plan can be
        cheaper; it has no R and S. The bound of the result then covers any order.
      keep: Names of layers, with `*` as in names of files: their forward ops run once.
      recompute: Names of layers whose values are not kept for the backward pass: it reads values
        computed again, as far as ops may run again. What a plan recomputes besides may read values
        of the forward pass. Bound, gap and refusals are then those of plans that hold to both.
      throw: False returns the two refusals as a result without a plan instead of raising them.
      on_progress: Called with the `Search` each time plan or bound improves; its `stop()` ends it.

    Returns:
      The judged plan with cost and bound in the graph's cost unit.

    Raises:
      InfeasibleBudgetError: No plan exists.
      NoPlanFoundError: The solver found none, and nothing is proven.
      SolverUnavailableError: The solver is not known, or its package cannot be imported.
      SolverFailedError: The package behind the solver broke, before any plan was found.
      BudgetError: The budget or the time limit cannot be understood.
      GraphError: What was given is no graph, or `keep` or `recompute` names no layer of it.

    Examples:
      >>> from checkmate import DFGraph, Op, solve
      >>> ops = (Op("a", (), 1, 4), Op("b", (0,), 1, 4), Op("c", (1,), 1, 1), Op("d", (0, 2), 1, 1))
      >>> result = solve(DFGraph(ops, outputs=(3,)), 8)  # the plain step needs 9 bytes
      >>> result.cost, result.peak_bytes, result.plan.recomputed  # a runs again for d
      (5.0, 8, {0: 1})

    Source: the problem is that of Checkmate (Jain et al., MLSys 2020), equation 1.
    """
    check_graph(graph, "solve")
    if not deterministic:
        check_time_limit(time_limit_s)
    engine = Reorder(make_solver(solver)) if reorder else make_solver(solver)
    name = solver if isinstance(solver, str) else getattr(solver, "name", type(solver).__name__)
    plain_bytes = plain_peak(graph)
    budget_bytes = parse_bytes(budget, percent_of=plain_bytes)
    rules = LayerRules.of(graph, keep, recompute)
    search = Search(
        rules.expansion.after,
        budget_bytes,
        time_limit_s=time_limit_s,
        deterministic=deterministic,
        reorder=reorder,
        on_progress=on_progress,
    )
    search.offer(Plan.keep_all(rules.expansion.after), by="checkpoint-all")
    interrupted = False
    if search.plan is None:
        lowest = floor(rules.once)
        if budget_bytes < lowest.bytes:
            return _refuse(_below_floor(rules, budget_bytes, lowest), search, name, throw, rules)
        try:
            engine.run(search)
        except KeyboardInterrupt:
            if search.plan is None:
                raise
            interrupted = True
        except PlanError as error:
            raise SolverFailedError(
                f"Solver {name!r} made an illegal plan; this is a bug of the solver. {error}"
            ) from error
        except SolverFailedError as error:
            if search.plan is None:
                raise
            logging.getLogger("checkmate").warning(
                "Solver %r broke; what it had found until then is the answer. %s", name, error
            )
    if search.plan is None:
        if search.infeasible and not rules.again:
            refusal: InfeasibleBudgetError | NoPlanFoundError = InfeasibleBudgetError(
                f"No plan fits {format_bytes(budget_bytes)}{_with(rules)}: {search.infeasible}"
                " Raise the budget.",
                budget_bytes=budget_bytes,
                floor_bytes=budget_bytes + 1,
            )
        else:
            refusal = _not_found(search, name, plain_bytes, rules)
        return _refuse(refusal, search, name, throw, rules)
    status = SolveStatus.INTERRUPTED if interrupted else SolveStatus.FEASIBLE
    return _result(SolveStatus.OPTIMAL if search.optimal else status, search, name, rules)


def _result(status: SolveStatus, search: Search, name: str, rules: LayerRules) -> SolveResult:
    stats = SolveStats(
        name,
        search.elapsed_s,
        search.found_by,
        search.proven_by,
        search.best_peak_bytes,
        tuple(search.history),
    )
    graph = rules.expansion.before
    plan = search.plan and rules.expansion.expand(search.plan)
    timeline = replay(graph, plan) if plan else None
    bound = rules.bound(search.bound)
    if timeline is not None:
        bound = min(bound, timeline.cost)
        if status is SolveStatus.OPTIMAL and timeline.cost > bound * (1 + OPTIMALITY_TOLERANCE):
            status = SolveStatus.FEASIBLE
    covers: OrderSpace = "any order" if bound <= search.any_order_bound else "given order"
    return SolveResult(
        status,
        graph,
        search.budget_bytes,
        plan,
        timeline,
        bound,
        stats,
        covers,
        rules.bound(search.given_order_bound),
        rules.text,
    )


def _refuse(
    error: InfeasibleBudgetError | NoPlanFoundError,
    search: Search,
    name: str,
    throw: bool,
    rules: LayerRules,
) -> SolveResult:
    if throw:
        raise error
    proven = isinstance(error, InfeasibleBudgetError)
    return _result(SolveStatus.INFEASIBLE if proven else SolveStatus.NOT_FOUND, search, name, rules)


def _with(rules: LayerRules) -> str:
    return f" with {rules.text}" if rules.text else ""


def _below_floor(rules: LayerRules, budget_bytes: int, lowest: Floor) -> InfeasibleBudgetError:
    graph = rules.expansion.before
    name, without = graph.ops[lowest.op].name, floor(graph).bytes
    asked = f" Without what is asked of layers, {format_bytes(without)}." if rules.text else ""
    return InfeasibleBudgetError(
        f"No plan fits {format_bytes(budget_bytes)}{_with(rules)}: op {lowest.op} {name!r} with its"
        f" inputs and what must stay in memory needs {format_bytes(lowest.bytes)},"
        f" {format_bytes(lowest.bytes - budget_bytes)} too much.{asked}"
        f" {_advice(graph, budget_bytes)}",
        budget_bytes=budget_bytes,
        floor_bytes=lowest.bytes,
        op=lowest.op,
        op_name=name,
    )


def _advice(graph: DFGraph, budget_bytes: int) -> str:
    """The end of a refusal. Of batches a graph knows nothing."""
    fixed = graph.fixed_bytes
    if fixed < budget_bytes:
        return "Raise the budget, or have that op need less."
    return f"Raise the budget: {format_bytes(fixed)} are resident whatever runs, as variables are."


def _not_found(search: Search, name: str, plain_bytes: int, rules: LayerRules) -> NoPlanFoundError:
    best, total = search.best_peak_bytes or plain_bytes, rules.once.total_cost
    bound = rules.bound(search.bound)
    proven = (
        f" If there is one, it takes at least {bound / total - 1:.2%} more time than the"
        " plain step."
        if bound > total
        else ""
    )
    advice = f"Raise the budget to {format_bytes(best)}: a plan with that peak was found."
    if name.lower() != "auto":
        advice += " Or try solver='auto'."
    message = (
        f"Solver {name!r} found no plan within {format_bytes(search.budget_bytes)}"
        f"{_with(rules)} in {search.elapsed_s:.1f} s; the lowest peak it reached is"
        f" {format_bytes(best)}, {format_bytes(best - search.budget_bytes)} too much.{proven}"
        f" {advice}"
    )
    return NoPlanFoundError(message, best_peak_bytes=best, bound=bound)
