"""Options that commands share, and how their text is read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import click

from checkmate.solvers.solve import SOLVERS
from checkmate.units import parse_bytes


class NumberFrom(click.FloatRange):
    """A number that is not below a least one. Unlike a `FloatRange`, which compares only, it
    refuses nan."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Checks the number."""
        number = super().convert(value, parameter, context)
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", parameter, context)
        return number


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line instead of a table."
)
budget_option = click.option(
    "--budget",
    "-b",
    "budgets",
    multiple=True,
    default=("60%",),
    show_default=True,
    metavar="AMOUNT",
    help=(
        "Memory for everything resident while the step runs: 6GiB, 800MB, or a share of the plain"
        " step's peak. A list with commas, or again."
    ),
)
solver_option = click.option(
    "--solver", default="auto", show_default=True, type=click.Choice(list(SOLVERS)), metavar="NAME",
    help=f"How to find the plan: {', '.join(SOLVERS)}.",
)  # fmt: skip
time_limit_option = click.option(
    "--time-limit",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=NumberFrom(0),
    help=(
        "For each budget; the best plan until then counts. Ctrl-C ends the search sooner, with the"
        " best plan until then."
    ),
)
reorder_option = click.option(
    "--reorder",
    is_flag=True,
    help="Also look for plans that run ops in another order than the graph's.",
)


class FileToWrite(click.Path):
    """A file that can be written: of one of these kinds, in a folder that exists. Said before
    anything is computed for it."""

    def __init__(self, *suffixes: str):
        super().__init__(dir_okay=False, writable=True)
        self.suffixes = suffixes

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Checks the name."""
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        if path.suffix.lower() not in self.suffixes:
            self.fail(
                f"{str(path)!r} does not end in {' or '.join(self.suffixes)}.", parameter, context
            )
        if not path.parent.is_dir():
            self.fail(f"There is no folder {str(path.parent)!r}.", parameter, context)
        return path


PICTURE = FileToWrite(".png", ".svg", ".pdf")


def each_budget(budgets: Iterable[str], *, percent_of: int) -> list[tuple[str, int]]:
    """Budgets that were given with commas or by repeating the option, at least one: each as it was
    written, and its bytes.

    All are read before the first is worked on: a mistake in the last must not cost the time of the
    others.

    Args:
      percent_of: The bytes that 100% stands for.
    """
    found = [part.strip() for budget in budgets for part in budget.split(",") if part.strip()]
    if not found:
        raise click.UsageError(
            "No budget was given: --budget is empty. Write an amount such as '6GiB' or '60%'."
        )
    return [(budget, parse_bytes(budget, percent_of=percent_of)) for budget in found]


def numbers(
    kind: Callable[[str], Any],
) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """Returns what reads an option that is a list of numbers with commas between them; a percent
    sign may follow each."""

    def read(context: click.Context, parameter: click.Parameter, text: str) -> list[Any]:
        try:
            return [kind(part.strip().rstrip("%")) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is no list of numbers, such as {parameter.default}."
            ) from None

    return read


def listed(
    known: Collection[str], also: tuple[str, ...] = ()
) -> Callable[[click.Context, click.Parameter, str | None], list[str] | None]:
    """Returns what reads an option that is a list of names with commas between them.

    Args:
      also: What a name may begin with that is not known.
    """

    def read(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> list[str] | None:
        if text is None:
            return None
        found = [part.strip().lower().replace("-", "_") for part in text.split(",")]
        if found == ["all"]:
            return list(known)
        for name in found:
            if name not in known and not name.startswith(also):
                raise click.BadParameter(f"There is no {name!r}. There are {', '.join(known)}.")
        return found

    return read
