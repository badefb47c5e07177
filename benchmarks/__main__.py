"""The command `python -m benchmarks`, run in a checkout."""

from __future__ import annotations

import click

from benchmarks import backends, dtr, eager, fits, foreign, layered, paper, solvers, training


@click.group()
def benchmarks() -> None:
    """Tables that anyone can reproduce.

    Ratios compare two measurements of one run. Each command takes --json: one object per row, as
    soon as it is measured, in bytes, seconds and fractions.
    """


for module in (training, fits, backends, foreign, solvers, dtr, eager, layered, paper):
    benchmarks.add_command(module.command)

if __name__ == "__main__":
    benchmarks(prog_name="python -m benchmarks")
