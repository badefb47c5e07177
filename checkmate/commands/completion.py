"""`checkmate completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "checkmate"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete checkmate's commands and options.

    Example: checkmate completion bash >> ~/.bashrc
    """
    maker = get_completion_class(shell)
    assert maker is not None
    program = context.find_root().command
    click.echo(maker(program, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
