"""`checkmate bench clients`: does code that others wrote train under a budget, in one line?

Programs are models of public packages, built by their own constructors with random weights, and
training code in the style of published examples (`checkmate/bench/client_models`). Each trains
plain and under each budget, in processes of their own that know no costs: a model by its `fit`,
with `checkmate.tf2.rematerialize` before it, another step by `checkmate.tf2.function`. The peak is
the allocator's over the steps after the first, resident bytes included. Where a budget is refused,
the smallest budget that the refusal names is tried in another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from checkmate.bench import first_step
from checkmate.bench.client_programs import programs
from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import MIB
from checkmate.errors import CheckmateError

COLUMNS = (
    "program",
    "budget",
    "answer",
    "MiB",
    "of MiB",
    "plain MiB",
    "losses",
    "first step s",
    "/ plain",
    "step / plain",
)

CLOSE = 1e-3
"""Relative difference of losses that rounding may come to in a few steps."""


def rows(chosen: Sequence[str], budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per program and budget, and one for each package that is missing.

    Of each row: budget_bytes, peak_bytes, plain_bytes, difference (the largest relative one of any
    loss), first_step_s, step_s, and the same of plain; or refused ("proven", "not found"), with
    message, op, least_bytes, named_bytes, and named_peak_bytes or named_error of the loop within
    the budget that was named; or error.
    """
    known, missing = programs()
    unknown = set(chosen) - set(known)
    if unknown and not missing:
        raise CheckmateError(
            f"There is no program {', '.join(sorted(unknown))}. Known: {', '.join(known)}."
        )
    for package in missing:
        text = f"{package} is not installed; pip install 'checkmate-tf[clients]' installs it"
        yield {"program": package, "budget": "", "error": text}
    first_step.compile_annealer()
    for name in [name for name in chosen or known if name in known]:
        yield from _rows_of(name, budgets, steps)


def _rows_of(name: str, budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    try:
        plain = _in_a_process(name, steps)
    except CheckmateError as error:
        yield {"program": name, "budget": "plain", "error": last_line(error)}
        return
    for budget in budgets.split(","):
        row = {"program": name, "budget": budget, "plain_bytes": plain["peak_bytes"]}
        try:
            found = _in_a_process(name, steps, budget)
        except CheckmateError as error:
            yield row | {"error": last_line(error)}
            continue
        if "refused" in found:
            yield row | found | _named(name, steps, found["named_bytes"])
            continue
        times = {f"plain_{key}": plain[key] for key in ("first_step_s", "step_s")}
        differs = difference(found.pop("losses"), plain["losses"])
        yield row | found | times | {"difference": differs}


def _in_a_process(name: str, steps: int, *budget: str) -> dict[str, Any]:
    return fresh_process("checkmate.bench.client_programs", [name, str(steps), *budget])


def _named(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """What came of the budget that a refusal names."""
    if budget_bytes is None:
        return {}
    try:
        found = _in_a_process(name, steps, f"{budget_bytes}B")
    except CheckmateError as error:
        return {"named_error": last_line(error)}
    if "refused" in found:
        return {"named_error": found["message"]}
    return {"named_peak_bytes": found["peak_bytes"]}


def difference(ours: Sequence[float], plain: Sequence[float]) -> float:
    """Returns the largest relative difference of any loss; infinite where there is another number
    of them."""
    if len(ours) != len(plain):
        return float("inf")
    pairs = zip(ours, plain, strict=True)
    return max((abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in pairs if a != b), default=0.0)


def answer(row: dict[str, Any]) -> str:
    """Returns what came of a program under a budget: "trained", by how much it took more, or why
    it was refused and whether the budget that was named holds."""
    if "error" in row:
        return f"FAILED: {row['error'][:100]}"
    if "refused" in row:
        named = row["named_bytes"]
        took = row.get("named_peak_bytes")
        if named is None:
            verdict = "no budget named"
        elif took is None:
            verdict = f"{named / MIB:.1f} MiB named, NOT accepted"
        else:
            verdict = f"{named / MIB:.1f} MiB named, {'holds' if took <= named else 'NOT kept'}"
        return f"refused ({row['refused']}; {verdict}) {row['op']}"
    if row["difference"] > CLOSE:
        return "trained, OTHER LOSSES"
    excess = row["peak_bytes"] / row["budget_bytes"] - 1
    return "trained" if excess <= 0 else f"trained, OVER by {excess:.1%}"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["program"], row["budget"], answer(row))
    if "error" in row or "refused" in row:
        return start
    return (
        *start,
        f"{row['peak_bytes'] / MIB:.1f}",
        f"{row['budget_bytes'] / MIB:.1f}",
        f"{row['plain_bytes'] / MIB:.1f}",
        f"{row['difference']:.0e}" if row["difference"] else "bits",
        f"{row['first_step_s']:.1f}",
        f"{row['first_step_s'] / row['plain_first_step_s']:.1f}",
        f"{row['step_s'] / row['plain_step_s']:.2f}",
    )


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Returns the table in a sentence."""
    answers = [answer(row) for row in found]
    refused = [row for row in found if "refused" in row]
    held = sum("holds" in answer(row) for row in refused)
    first = [
        row["first_step_s"] / row["plain_first_step_s"] for row in found if "first_step_s" in row
    ]
    slowest = f"; the first step took at most {max(first):.1f} times plain's" if first else ""
    return (
        f"{answers.count('trained')} of {len(found)} trained within the budget with plain's losses,"
        f" {sum('OVER' in each for each in answers)} over it, {len(refused)} were refused"
        f" ({held} of them name a budget that holds),"
        f" {sum(each.startswith('FAILED') for each in answers)} failed{slowest}."
    )
