"""`checkmate bench refusals`: does the budget that a refusal names work?

Each model of the zoo gets a budget that is much too small. Then it gets the smallest budget that
the refusal names: in the same process, and in another one, where a loop trains and the allocator's
peak is measured. The bytes that are proven to be needed must not exceed that peak.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from checkmate.bench import zoo
from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import MIB
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError

COLUMNS = (
    "model",
    "asked MiB",
    "refused",
    "at least MiB",
    "named MiB",
    "accepted here",
    "accepted anew",
    "took MiB",
    "holds",
)
SHARE = 0.3
"""The first budget, as a share of the plain step's measured peak."""


def rows(chosen: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per model.

    asked_bytes is the first budget; refused is "proven", "not found", or "no" if there is a plan;
    least_bytes is the proven lower bound; named_bytes is the smallest budget that the refusal
    names; here is whether that budget was accepted in the same process; peak_bytes is the peak of
    the loop in the other process, or error its message.
    """
    for name in chosen:
        row = {"model": name}
        try:
            row |= fresh_process("checkmate.bench.refusals", [name, str(steps)])
            if row.get("named_bytes"):
                row |= fresh_process(
                    "checkmate.bench.refusals", [name, str(steps), str(row["named_bytes"])]
                )
        except CheckmateError as error:
            row["error"] = last_line(error)
        yield row


def holds(row: dict[str, Any]) -> bool:
    """Whether everything that the refusal says was true."""
    if "error" in row or row["refused"] == "no":
        return "error" not in row
    named = row["named_bytes"]
    return named is None or (
        row["here"] and (row["least_bytes"] or 0) <= row["peak_bytes"] <= named
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""

    def mib(key: str) -> str:
        return f"{row[key] / MIB:.1f}" if row.get(key) else ""

    def yes(key: str) -> str:
        return "" if key not in row else "yes" if row[key] else "NO"

    anew = row["error"][:60] if "error" in row else "yes" if "peak_bytes" in row else ""
    verdict = "yes" if holds(row) else "NO"
    return (
        row["model"],
        mib("asked_bytes"),
        row.get("refused", ""),
        mib("least_bytes"),
        mib("named_bytes"),
        yes("here"),
        anew,
        mib("peak_bytes"),
        verdict,
    )


def refusal(name: str, steps: int) -> dict[str, Any]:
    """Plans within a budget that is too small, and then within the one that the refusal names."""
    import tensorflow as tf

    step, batch = zoo.training(name)
    traced = tf.function(step)
    budget = int(SHARE * zoo.peak_of(traced, batch, steps))
    try:
        planned(traced, name, batch, budget)
        return {"asked_bytes": budget, "refused": "no", "least_bytes": None, "named_bytes": None}
    except (InfeasibleBudgetError, NoPlanFoundError) as error:
        refused, named = (
            ("proven" if isinstance(error, InfeasibleBudgetError) else "not found"),
            error.smallest_budget_bytes,
        )
        least = error.floor_bytes if isinstance(error, InfeasibleBudgetError) else None
    found = {"asked_bytes": budget, "refused": refused, "least_bytes": least, "named_bytes": named}
    return found if named is None else found | {"here": _accepted(traced, name, batch, named)}


def _accepted(step: Any, name: str, batch: tuple[Any, ...], budget_bytes: int) -> bool:
    try:
        planned(step, name, batch, budget_bytes)
    except CheckmateError:
        return False
    return True


def trained(name: str, steps: int, budget_bytes: int) -> dict[str, Any]:
    """Trains within the budget that was named in another process."""
    step, batch = zoo.training(name)
    return {"peak_bytes": zoo.peak_of(planned(step, name, batch, budget_bytes), batch, steps)}


def planned(step: Any, name: str, batch: tuple[Any, ...], budget_bytes: int) -> Any:
    """Returns the step within a budget; an error names the smallest budget that would fit."""
    import tensorflow as tf

    from checkmate.tf2.compile import PlannedStep
    from checkmate.tf2.options import PlanOptions
    from checkmate.tf2.planning.request import PlanRequest

    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), batch)
    options = PlanOptions(budget_bytes, verbose=False)
    return PlannedStep(PlanRequest(step, name, options), specs, batch)


if __name__ == "__main__":
    model, count, *named = sys.argv[1:]
    print(
        json.dumps(
            trained(model, int(count), int(named[0])) if named else refusal(model, int(count))
        )
    )
