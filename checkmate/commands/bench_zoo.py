"""The benchmarks on the models of the zoo."""

from __future__ import annotations

from collections.abc import Sequence

import click

from checkmate.bench import refusals as refusals_benchmark
from checkmate.bench import zoo as zoo_benchmark
from checkmate.commands.options import json_option, refuse_unknown, steps_option
from checkmate.commands.quiet import quietly
from checkmate.commands.table import RowTable, stream

zoo_argument = click.argument("models", nargs=-1)


def zoo_names(models: Sequence[str]) -> Sequence[str]:
    """Returns the names of models of the zoo, or all of them; TensorFlow is loaded for that.

    Raises:
      click.BadParameter: The zoo has no such model.
    """
    with quietly():
        known = list(zoo_benchmark.models())
    refuse_unknown(models, known, "model in the zoo")
    return models or known


@click.command("zoo")
@zoo_argument
@steps_option(2, "Training steps of each kind.")
@json_option
def zoo(models: tuple[str, ...], steps: int, as_json: bool) -> None:
    """Does every model train within a budget, and how much memory does each save?

    MODELS are names of the zoo; all by default. The budget is 60% of the plain step's measured
    peak, resident bytes included, or the lowest of some larger shares that has a plan.

    JSON: model, plain_bytes, budget_bytes, peak_bytes, predicted_bytes, values, verified, not_run,
    run_again, recomputed, ops, tracing_s, phases, notes, smallest, seconds; or error.
    """
    b = zoo_benchmark
    chosen = zoo_names(models)
    title = (
        "two steps within 60% of the plain step's peak; the smallest budgets whose predicted time"
        " is 1.10 and 1.30 times the plain step's"
    )
    table = RowTable(title, b.COLUMNS, b.cells, ("model",))
    done = stream(b.rows(chosen, steps), table, as_json=as_json)
    if not as_json:
        click.echo(
            f"{sum(map(b.trained, done))} of {len(done)} models trained within their budget, with"
            " the plain step's values."
        )


@click.command("refusals")
@zoo_argument
@steps_option(4, "Training steps.")
@json_option
def refusals(models: tuple[str, ...], steps: int, as_json: bool) -> None:
    """Does the budget that a refusal names work?

    MODELS are names of the zoo; all by default. The budget is 30% of the plain step's peak; then
    the smallest budget that the refusal names, in the same process and in another.

    JSON: model, asked_bytes, refused, least_bytes, named_bytes, here, peak_bytes; or error.
    """
    b = refusals_benchmark
    chosen = zoo_names(models)
    title = "30% of the plain step's peak, and then the smallest budget that the refusal names"
    table = RowTable(title, b.COLUMNS, b.cells, ("model", "refused", "accepted anew"))
    done = stream(b.rows(chosen, steps), table, as_json=as_json)
    if not as_json:
        click.echo(f"{sum(map(b.holds, done))} of {len(done)} answers hold.")


COMMANDS = (zoo, refusals)
