"""Options that commands share."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from checkmate.solvers.solve import SPELLINGS, solver_list
from checkmate.units import check_budget, parse_bytes

Callback = Callable[[click.Context, click.Parameter, Any], Any]
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class NumberFrom(click.FloatRange):
    """A number, at least a minimum. Unlike `FloatRange` it refuses nan."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = super().convert(value, parameter, context)
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", parameter, context)
        return number


class CountOrAuto(click.ParamType):
    name = "COUNT|auto"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        if value == "auto":
            return "auto"
        try:
            return click.IntRange(1).convert(value, parameter, context)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a whole number of at least 1 nor 'auto'.", parameter, context
            )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line instead of a table."
)


def readable_budgets(context: click.Context, parameter: click.Parameter, texts: Any) -> Any:
    """Callback of options that take budgets: one that cannot be read is refused before anything is
    loaded or traced."""
    if texts:
        for amount in _amounts((texts,) if isinstance(texts, str) else texts):
            check_budget(amount)
    return texts


def _amounts(texts: Iterable[str]) -> list[str]:
    found = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not found:
        raise click.UsageError(
            "No budget was given: --budget is empty. Write an amount such as '6GiB' or '60%'."
        )
    return found


class NameOf(click.Choice):
    """One of some names, completed by a shell. An unknown one is refused with those like it."""

    def __init__(self, known: Collection[str], what: str):
        super().__init__([*known])
        self.what = what

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        refuse_unknown([value], [*map(str, self.choices)], self.what)
        return super().convert(value, parameter, context)


budget_option = click.option(
    "--budget",
    "-b",
    "budgets",
    multiple=True,
    default=("60%",),
    show_default=True,
    metavar="AMOUNT",
    callback=readable_budgets,
    help=(
        "All memory in use while the step runs: 6GiB, 800MB, or a share of the plain step's peak."
        " Separate several with commas, or repeat the option."
    ),
)
solver_option = click.option(
    "--solver",
    default="auto",
    show_default=True,
    type=NameOf(SPELLINGS, "solver"),
    metavar="NAME",
    help=f"The solver, for some with an option after a colon: {solver_list()}.",
)
time_limit_option = click.option(
    "--time-limit",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=NumberFrom(0),
    help="For each budget. After it, or after Ctrl-C, the best plan so far is the result.",
)
reorder_option = click.option(
    "--reorder",
    is_flag=True,
    help="Also search for plans that run ops in another order than the graph's.",
)


def _layers_option(name: str, text: str) -> Decorator:
    more = " Several by repeating the option, or with * as in names of files."
    return click.option(f"--{name}", multiple=True, metavar="LAYER", help=text + more)


keep_option = _layers_option("keep", "A layer whose forward ops run once.")
recompute_option = _layers_option(
    "recompute", "A layer whose values are computed again for the backward pass."
)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    solver: str
    time_limit_s: float
    reorder: bool
    keep: tuple[str, ...]
    recompute: tuple[str, ...]


def search_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --solver, --time-limit, --reorder, --keep and --recompute to a command, which is given
    them as `search`."""

    @solver_option
    @time_limit_option
    @reorder_option
    @keep_option
    @recompute_option
    @functools.wraps(command)
    def with_search(*, time_limit: float, **options: Any) -> None:
        own = {each.name for each in dataclasses.fields(SearchOptions)}
        asked = {key: value for key, value in options.items() if key in own}
        others = {key: value for key, value in options.items() if key not in own}
        command(search=SearchOptions(time_limit_s=time_limit, **asked), **others)

    return with_search


batch_option = click.option(
    "--batch", default=32, show_default=True, type=click.IntRange(1), help="Examples in a batch."
)
micro_batches_option = click.option(
    "--micro-batches",
    default="1",
    show_default=True,
    type=CountOrAuto(),
    help="Slices in which a batch runs, one after another; auto chooses them with the plan.",
)
size_option = click.option(
    "--size",
    type=click.IntRange(1),
    help="Pixels of an image's side, or tokens of a sequence, if the model leaves it open.",
)
optimizer_option = click.option(
    "--optimizer", default="adam", show_default=True, help="A Keras optimizer."
)


def output_option(text: str, *, default: str | None = None) -> Decorator:
    folder: Any = click.Path(file_okay=False, path_type=Path)
    is_shown = default is not None
    return click.option(
        "--output", "-o", default=default, show_default=is_shown, type=folder, help=text
    )


def steps_option(default: int, text: str, *, minimum: int = 1) -> Decorator:
    return click.option(
        "--steps", default=default, show_default=True, type=click.IntRange(minimum), help=text
    )


class FileToWrite(click.Path):
    """A file to write, with one of these suffixes, in an existing folder. Both are checked before
    anything is computed."""

    def __init__(self, *suffixes: str):
        super().__init__(dir_okay=False, writable=True)
        self.suffixes = suffixes

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
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
    """The text and bytes of each budget. All are parsed first, so that a mistake in the last is
    reported before the first is solved. `percent_of` is what 100% stands for."""
    return [(budget, parse_bytes(budget, percent_of=percent_of)) for budget in _amounts(budgets)]


def refuse_unknown(names: Iterable[str], known: Collection[str], what: str = "") -> None:
    """Raises `click.BadParameter` for a name that is not known, with those that are like it."""
    for name in names:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        kind = f"{what} " if what else ""
        raise click.BadParameter(f"There is no {kind}{name!r}.{hint} There are {', '.join(known)}.")


def listed(known: Collection[str], also: str = "") -> Callback:
    """Callback of an option that is a comma-separated list of known names, or "all". `also` is a
    regular expression of other names that are allowed."""

    def read(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> list[str] | None:
        if text is None:
            return None
        found = [part.strip().lower().replace("-", "_") for part in text.split(",")]
        if found == ["all"]:
            return list(known)
        refuse_unknown((name for name in found if not re.fullmatch(also, name)), known)
        return found

    return read


rewrites_option = click.option(
    "--rewrites",
    default="tiles,segments",
    show_default=True,
    metavar="KINDS",
    callback=listed(("tiles", "segments"), also="none"),
    help="How ops may be split that need too much: along an axis; loops, by turns; or none.",
)
rounding_option = click.option(
    "--rounding", is_flag=True, help="Also split sums, which are then added up in another order."
)
