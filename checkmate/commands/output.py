"""Results of `solve`, `plan` and `show` as JSON and as tables.

`--json` prints one JSON object per line and budget, with at least the keys `KEYS`. Bytes are whole
numbers, `seconds` is the time of the search, `cost` and `bound` are in the unit of the graph's
costs, `overhead` is the plan's cost divided by the plain step's, and `gap` is cost / bound - 1.
Without a plan, cost, overhead, gap and peak_bytes are null. `status` is a name of `SolveStatus`;
`bound_covers` names the plans for which the bound holds.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from checkmate.commands.options import SearchOptions, each_budget
from checkmate.commands.table import INTERRUPTED, complain, print_json, print_table, say
from checkmate.core.files import save_plan
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, plain_peak
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.progress import Progress
from checkmate.solvers.result import SolveResult, SolveStatus, gap_text
from checkmate.solvers.solve import solve
from checkmate.units import format_bytes

KEYS = (
    "status",
    "cost",
    "overhead",
    "bound",
    "gap",
    "peak_bytes",
    "budget_bytes",
    "floor_bytes",
    "seconds",
    "solver",
)

COLUMNS = ("peak", "extra time", "gap", "recomputed")

WITHOUT_A_PLAN: dict[type[BaseException], SolveStatus] = {
    InfeasibleBudgetError: SolveStatus.INFEASIBLE,
    NoPlanFoundError: SolveStatus.NOT_FOUND,
    KeyboardInterrupt: SolveStatus.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one budget, as in the option's text, with the values of `KEYS`. Without a
    plan, `message` tells why."""

    budget: str
    facts: dict[str, Any]
    plan: Plan | None = field(repr=False)
    message: str = ""
    file: Path | None = None


def solve_each(
    graph: DFGraph, budgets: Iterable[str], search: SearchOptions, *, percent_of: int | None = None
) -> Iterator[Found]:
    """Solves `graph` for each budget. `percent_of` is by default the plain step's peak. Ctrl-C ends
    the search for a budget with the best plan so far; later budgets are left out."""
    asked = each_budget(budgets, percent_of=percent_of or plain_peak(graph))
    phases = {f"solving for {budget}": number for number, (budget, _) in enumerate(asked, 1)}
    for budget, budget_bytes in asked:
        with (
            Progress(graph.name or "graph", phases) as progress,
            progress.phase(f"solving for {budget}", limit_s=search.time_limit_s),
        ):
            found = _solve_one(graph, budget, budget_bytes, search, progress)
        yield found
        if is_interrupted(found):
            break


def is_interrupted(found: Found) -> bool:
    return found.facts["status"] == SolveStatus.INTERRUPTED.name


def written(
    one: Found,
    graph: DFGraph,
    folder: Path | None,
    graph_file: str,
    save: Callable[..., None] = save_plan,
) -> Found:
    """Writes the plan, if there is one and a folder, by `save(plan, path, graph=, **facts)`."""
    if one.plan is None or folder is None:
        return one
    amount = re.sub("[^0-9A-Za-z.]", "", one.budget.replace("%", "pct"))
    file = folder / f"{Path(graph_file).name.split('.', 1)[0]}-{amount}.plan.json"
    save(one.plan, file, graph=graph, graph_file=graph_file, **one.facts)
    return replace(one, file=file)


def _solve_one(
    graph: DFGraph, budget: str, budget_bytes: int, search: SearchOptions, progress: Progress
) -> Found:
    lowest = floor(graph).bytes
    started = time.monotonic()
    try:
        result = solve(graph, budget_bytes, on_progress=progress.improved, **asdict(search))
    except (InfeasibleBudgetError, NoPlanFoundError, KeyboardInterrupt) as error:
        status = next(status for kind, status in WITHOUT_A_PLAN.items() if isinstance(error, kind))
        facts: dict[str, Any] = dict.fromkeys(KEYS) | {
            "status": status.name,
            "budget_bytes": budget_bytes,
            "floor_bytes": max(lowest, getattr(error, "floor_bytes", 0)),
            "bound": getattr(error, "bound", None),
            "seconds": time.monotonic() - started,
            "solver": search.solver,
        }
        return Found(
            budget, facts, None, str(error) or f"Interrupted before there was a plan for {budget}."
        )
    return Found(budget, _facts(result, lowest), result.plan)


def _facts(result: SolveResult, floor_bytes: int) -> dict[str, Any]:
    facts = {key: getattr(result, key, None) for key in KEYS} | {
        "status": result.status.name,
        "floor_bytes": floor_bytes,
        "seconds": result.stats.seconds,
        "solver": result.stats.solver,
        "bound_covers": result.bound_covers,
    }
    return {key: _finite(value) for key, value in facts.items()}


def _finite(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_found(
    graph: DFGraph,
    found: list[Found],
    *,
    as_json: bool,
    graph_file: str,
    plain_bytes: int = 0,
    more: Iterable[str] = (),
) -> None:
    plain = plain_bytes or plain_peak(graph)
    if as_json:
        for one in found:
            files = {
                "plan_file": str(one.file) if one.file else None,
                "graph_file": graph_file,
                "message": one.message or None,
            }
            print_json({**one.facts, "plain_peak_bytes": plain, **files})
        return
    print_plans(graph, found, plain)
    for line in more:
        say(line, is_whole=True)
    for one in found:
        if one.message:
            complain(one.message)


def print_plans(graph: DFGraph, found: list[Found], plain_bytes: int) -> None:
    title = f"Plans of {graph.name or 'the graph'}, {len(graph)} ops"
    print_table(title, ("budget", *COLUMNS, "solved in"), [cells(graph, one) for one in found])
    lowest = max(one.facts["floor_bytes"] for one in found)
    say(
        f"The plain peak is {format_bytes(plain_bytes)}; below {format_bytes(lowest)} there is no"
        " plan. Peaks are what ops ask for."
    )
    if any(one.plan for one in found):
        is_given = any(one.facts.get("bound_covers") == "given order" for one in found)
        order = "this order" if is_given else "any order"
        say(f"The gap bounds how much faster another plan in {order} of ops could be.")
    if found[-1].plan is not None and is_interrupted(found[-1]):
        say("Interrupted: the last plan is the best found until then.")
    for one in found:
        if one.file:
            say(f"Written: {one.file}", is_whole=True)


def cells(graph: DFGraph, one: Found) -> tuple[str, ...]:
    facts = one.facts
    budget = one.budget
    if facts["budget_bytes"] is not None:
        share = f" ({one.budget})" if "%" in one.budget else ""
        budget = format_bytes(facts["budget_bytes"]) + share
    seconds = f"{facts['seconds']:.1f} s" if facts["seconds"] is not None else "?"
    if one.plan is None:
        proven = (facts["bound"] or 0) / (graph.total_cost or 1) - 1
        status = facts["status"].lower().replace("_", " ")
        return budget, status, f">= {proven:+.2%}" if proven > 0 else "-", "-", "-", seconds
    again = sum(one.plan.recomputed.values())
    times, extra = f"{again} time{'s' * (again != 1)}", f"{facts['overhead'] - 1:+.2%}"
    return budget, format_bytes(facts["peak_bytes"]), extra, gap(facts), times, seconds


def proof(facts: dict[str, Any]) -> str:
    """The proven quality of the plan, in a few words."""
    found = gap(facts)
    if not found:
        return "nothing"
    space = "" if facts.get("bound_covers") == "any order" else " in this order of ops"
    if found == "none":
        return f"no plan{space} is faster"
    return f"at most {found} slower than the best plan{space}"


def gap(facts: dict[str, Any]) -> str:
    """The gap as text, "none" for an optimal plan, "" if no bound is known."""
    if facts["status"] == SolveStatus.OPTIMAL.name:
        return "none"
    return "" if facts["gap"] is None else gap_text(facts["gap"])


def status_of(found: list[Found]) -> int:
    if any(map(is_interrupted, found)):
        return INTERRUPTED
    return int(any(one.plan is None for one in found))
