"""Options that commands share, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from checkmate.solvers.solve import SOLVERS

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a table.")
budget_option = click.option(
    "--budget", "-b", "budgets", multiple=True, default=("60%",), show_default=True, metavar="AMOUNT",
    help="Memory for everything resident while the step runs: 6GiB, 800MB, or a share of the plain step's peak. A list with commas, or again.",
)  # fmt: skip
solver_option = click.option(
    "--solver", default="auto", show_default=True, type=click.Choice(list(SOLVERS)), metavar="NAME",
    help=f"How to find the plan: {', '.join(SOLVERS)}.",
)  # fmt: skip
time_limit_option = click.option(
    "--time-limit", default=60.0, show_default=True, metavar="SECONDS", type=click.FloatRange(0),
    help="For each budget; the best plan until then counts. Ctrl-C ends the search sooner, with the best plan until then.",
)  # fmt: skip
reorder_option = click.option("--reorder", is_flag=True, help="Also look for plans that run ops in another order than the graph's.")


def each_budget(budgets: Iterable[str]) -> Iterator[str]:
    """Budgets that were given with commas or by repeating the option."""
    for budget in budgets:
        yield from filter(None, (part.strip() for part in budget.split(",")))


def numbers(kind: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Returns what reads an option that is a list of numbers with commas between them; a percent sign may follow each."""

    def read(context: click.Context, parameter: click.Parameter, text: str) -> list[Any]:
        try:
            return [kind(part.strip().rstrip("%")) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"{text!r} is no list of numbers, such as {parameter.default}.") from None

    return read
