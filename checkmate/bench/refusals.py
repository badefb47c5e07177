"""`checkmate bench refusals`: what a refusal says is then done, and has to work.

Each model of the zoo is asked to train in far too little memory. The smallest budget that the
refusal names is then given: in the same process, and in another one, where a loop trains and the
allocator counts. What is said to be needed at least must not be more than what that loop takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from checkmate.bench import zoo
from checkmate.bench.process import fresh_process
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
"""Of the plain step's measured peak, which is asked for."""

MIB = 2**20


def rows(chosen: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    """A row for each model chosen, or for all.

    Keys: model, asked_bytes, refused ("proven", "not found", or "no" for what has a plan),
    least_bytes (what is proven to be needed), named_bytes (the smallest budget that the refusal
    names), here (that budget accepted in the same process), peak_bytes (what a loop in another
    process took within it), error (what was said there instead).
    """
    for name in chosen or zoo.names():
        row = {"model": name}
        try:
            row |= fresh_process("checkmate.bench.refusals", [name, str(steps)])
            if row.get("named_bytes"):
                row |= fresh_process(
                    "checkmate.bench.refusals", [name, str(steps), str(row["named_bytes"])]
                )
        except CheckmateError as error:
            row["error"] = str(error).strip().splitlines()[-1]
        yield row


def holds(row: dict[str, Any]) -> bool:
    """True where nothing that was said proved wrong."""
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
    """Asks for too little in this process, and then for what is named."""
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
    """Trains within what was named in another process."""
    step, batch = zoo.training(name)
    return {"peak_bytes": zoo.peak_of(planned(step, name, batch, budget_bytes), batch, steps)}


def planned(step: Any, name: str, batch: tuple[Any, ...], budget_bytes: int) -> Any:
    """The step within a budget; a refusal says what would fit."""
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
