"""The command `checkmate`: its sub-commands, and how errors of the library end it."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
from typing import Any

import click

import checkmate
from checkmate.commands.demo import demo_command
from checkmate.commands.doctor import doctor_command
from checkmate.commands.plan import plan_command
from checkmate.commands.profile import profile_command
from checkmate.commands.quiet import QUIET
from checkmate.commands.show import show_command
from checkmate.commands.simulate import simulate_command
from checkmate.commands.solve import solve_command
from checkmate.commands.table import INTERRUPTED, complain
from checkmate.solvers.background import BackgroundTask, unfinished_tasks

INVALID_INPUT = (
    checkmate.BudgetError,
    checkmate.GraphError,
    checkmate.LogError,
    checkmate.PlanError,
    checkmate.PlanFileError,
    checkmate.TraceError,
)
"""Errors for names that are not known, input that cannot be read, or files that do not belong
together."""

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error numbers of a full disk or a broken one. Such an error names no file."""


PATIENCE_S = 2.0
"""Seconds of waiting of which nothing is said."""


class _Group(click.Group):
    """Turns the library's errors into a sentence and exit status 1, or 2 for invalid input."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Runs as a program. At its end the process waits only for background tasks whose work
        later processes use."""
        # As on standard error: names of ops may have any characters.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return self._to_the_end(*arguments, **options)
        except SystemExit as end:
            if tasks := unfinished_tasks():
                sys.stdout.flush()
                with contextlib.suppress(KeyboardInterrupt):
                    for task in tasks:
                        _wait_for(task)
                sys.stderr.flush()
                os._exit(end.code if isinstance(end.code, int) else 1)
            raise

    def _to_the_end(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            complain(f"could not write: {error.strerror}. Free disk space, or write elsewhere.")
            # Python would fail again to write its buffer at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def list_commands(self, context: click.Context) -> list[str]:
        """Returns the commands in the order in which a new user needs them."""
        return list(self.commands)

    def invoke(self, context: click.Context) -> None:
        try:
            super().invoke(context)
        except click.UsageError as error:
            # The help of a command without arguments prints itself.
            if error.ctx is None or type(error).show is not click.UsageError.show:
                raise
            click.echo(
                f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n",
                err=True,
            )
            complain(error.format_message())
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            complain("interrupted.")
            sys.exit(INTERRUPTED)
        except checkmate.CheckmateError as error:
            complain(str(error))
            sys.exit(2 if isinstance(error, INVALID_INPUT) else 1)
        except OSError as error:
            # A closed pipe, which click handles, or an error that concerns no file.
            if error.filename is None:
                raise
            complain(f"Cannot read or write {error.filename}: {error.strerror}.")
            sys.exit(2)


def _wait_for(task: BackgroundTask) -> None:
    """Waits for a background task that later processes have a use of, and says so if it takes
    long."""
    if task.use:
        task.wait(PATIENCE_S)
        if task.busy:
            click.echo(f"checkmate: {task.use}", err=True)
            task.wait()


@click.group(cls=_Group)
@click.version_option(checkmate.__version__, package_name="checkmate")
@click.option("--verbose", "-v", is_flag=True, help="Show the library's log on standard error.")
def main(verbose: bool) -> None:
    """Train TensorFlow and Keras models that do not fit, within a memory budget."""
    # TensorFlow reads this when a command imports it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else QUIET)
    if verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("checkmate").setLevel(logging.INFO)


for command in (
    demo_command,
    doctor_command,
    plan_command,
    profile_command,
    show_command,
    solve_command,
    simulate_command,
):
    main.add_command(command)
