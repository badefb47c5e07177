"""A process of `checkmate bench accept`: runs one line of the table, and prints what it found."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from checkmate.bench.accept_lines import LINES, Line
from checkmate.bench.accept_outcome import NotRunError, Outcome


def run(name: str) -> dict[str, Any]:
    """Runs a line in this process, and returns the fields of its `Outcome`; {"not_run": why} where
    this machine cannot."""
    try:
        return asdict(_run(LINES[name]))
    except NotRunError as error:
        return {"not_run": str(error)}


def _run(line: Line) -> Outcome:
    if line.gpus:
        import tensorflow as tf

        found = len(tf.config.list_physical_devices("GPU"))
        if found < line.gpus:
            seen = "no GPU" if not found else f"{found} GPU" if found == 1 else f"{found} GPUs"
            wanted = f", and this takes {line.gpus}" if found else ""
            raise NotRunError(f"TensorFlow sees {seen}{_under(line)}{wanted}")
    return line.run(*line.arguments)


def _under(line: Line) -> str:
    """The setting that hides GPUs from this line, as part of a sentence. What the line asked for
    hangs on the process that started this one."""
    name = "CUDA_VISIBLE_DEVICES"
    return f" with {name}={os.environ.get(name)}" if name in line.environment else ""


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
