"""`checkmate profile`: measures ops of training steps here, for plans made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import FileToWrite, batch_option, optimizer_option, size_option
from checkmate.commands.quiet import quietly
from checkmate.commands.table import say
from checkmate.progress import Progress


@click.command("profile")
@click.argument("models", nargs=-1, required=True)
@batch_option
@size_option
@optimizer_option
@click.option(
    "--output", "-o", required=True, type=FileToWrite(".json"), help="The file; it is added to."
)
def profile_command(models: tuple[str, ...], output: Path, **training: Any) -> None:
    """Measure the ops of models' training steps on this device, for plans made elsewhere.

    MODELS are as for `checkmate plan`. Each distinct op runs alone, on inputs of its own; no step
    runs. `checkmate plan --device FILE` and `checkmate.tf2.fits(..., device=FILE)` then plan for
    this device on any machine.

    Example: checkmate profile resnet50 --batch 64 -o a100.json
    """
    with Progress("profile", {"loading TensorFlow": 1, **{each: 2 for each in models}}) as progress:
        with progress.phase("loading TensorFlow"), quietly():
            from checkmate.tf2.costs.device_profile import DeviceProfile
            from checkmate.tf2.models import step_on_paper
        for model in models:
            with progress.phase(model):
                traced = step_on_paper(model, loss=None, **training)[0].traced
                found = DeviceProfile.measured(traced, progress.advance)
                found.save(output)
    whole = DeviceProfile.load(output)
    say(f"{len(whole.entries)} ops measured on {whole}, with TensorFlow {whole.tensorflow}.")
    say(f"Written: {output}", is_whole=True)
