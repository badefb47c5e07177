"""`checkmate completion`: what a shell reads to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "checkmate"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print completions for a shell.

    What is printed makes SHELL complete the commands and options of checkmate. Example: checkmate
    completion bash >> ~/.bashrc
    """
    from checkmate.cli import main

    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(main, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
