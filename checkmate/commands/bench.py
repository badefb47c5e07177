"""`checkmate bench`: the benchmarks, one sub-command each.

`checkmate/bench` measures; the commands print its rows. With `--json` each row is printed as soon
as it is measured, one object per line: bytes, seconds, and shares as fractions of 1.
"""

from __future__ import annotations

import click

from checkmate.commands import bench_accept, bench_eager, bench_planning, bench_training, bench_zoo


@click.group()
def bench() -> None:
    """Benchmarks: tables that anyone can reproduce.

    Ratios compare two measurements of one run. Each command takes --json: one object per row, as
    soon as it is measured, in bytes, seconds and fractions.
    """


for group in (bench_training, bench_eager, bench_zoo, bench_planning, bench_accept):
    for command in group.COMMANDS:
        bench.add_command(command)
