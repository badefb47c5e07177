"""What was measured of a step, kept on disk for the next process that trains it: its plain peak and
time, and the footprints of its ops.

There is a file in the user's cache folder (or $CHECKMATE_CACHE_DIR) for each step. Its name stands
for all that the figures depend on: the graph, its sizes, the device with its threads and allocator,
and the versions. A step whose file is damaged or of another version is measured anew, and its file
replaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.files import fingerprint
from checkmate.core.footprint import Footprint
from checkmate.core.json_files import read_json, write_json
from checkmate.errors import PlanFileError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.cache import cache_folder
from checkmate.tf2.execution.plan_writer import EVALUATION_MARK
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.plain_step import PlainStep
from checkmate.version import __version__

log = logging.getLogger("checkmate")

FORMAT, VERSION = "checkmate-step", 1

MAX_FILES = 200
"""How many files are kept: the ones written last."""


@dataclass(frozen=True, slots=True)
class KnownStep:
    """What was measured of a step.

    Attributes:
      plain: What the plain step took; None where that is not known.
      footprints: As `core.events.learn` returns them; empty where no step was watched.
    """

    plain: PlainStep | None = None
    footprints: Mapping[str, Footprint] = field(default_factory=dict)


def load(traced: TracedStep) -> KnownStep:
    """Returns what the file of a step says; nothing where there is none."""
    path, numbered = _path(traced), _numbers(traced)
    names = {number: name for name, number in numbered.items()}
    try:
        data = read_json(path)
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            return KnownStep()
        return KnownStep(
            _plain(data["plain"]),
            {
                _renamed(key, names): Footprint.of_row(row)
                for key, row in data["footprints"].items()
            },
        )
    except (PlanFileError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if path.exists():
            log.info("The file %s of a step is not used: %s", path, error)
        return KnownStep()


def save(traced: TracedStep, known: KnownStep) -> None:
    """Writes what is known of a step; where the folder cannot be written to, the next process
    measures again."""
    path, numbered = _path(traced), _numbers(traced)
    rows = {
        _renamed(name, numbered): footprint.row() for name, footprint in known.footprints.items()
    }
    plain = None if known.plain is None else [known.plain.peak_bytes, known.plain.seconds]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"format": FORMAT, "version": VERSION, "plain": plain, "footprints": rows})
        for old in sorted(path.parent.glob("step-*.json"), key=os.path.getmtime)[:-MAX_FILES]:
            old.unlink()
    except (OSError, PlanFileError) as error:
        log.info("What was measured of a step is not kept: %s", error)


def _path(traced: TracedStep) -> Path:
    arguments = [
        f"{tensor.dtype.name}{tensor.shape.as_list()}" for tensor in traced.argument_tensors()
    ]
    types = [operation.type for operation in traced.flat.graph.get_operations()]
    device = devices.describe(devices.training_device())
    facts = [
        fingerprint(traced.graph),
        traced.graph.fixed_bytes,
        arguments,
        types,
        device,
        tf.__version__,
        __version__,
    ]
    return cache_folder() / f"step-{hashlib.sha256(repr(facts).encode()).hexdigest()[:20]}.json"


def _numbers(traced: TracedStep) -> dict[str, str]:
    """A number for each op by its name: Keras counts its layers in each process, so that names
    differ."""
    return {
        operation.name: f"#{k}" for k, operation in enumerate(traced.flat.graph.get_operations())
    }


def _renamed(name: str, names: Mapping[str, str]) -> str:
    op, mark, number = name.partition(EVALUATION_MARK)
    return f"{names.get(op, op)}{mark}{number}"


def _plain(row: Any) -> PlainStep | None:
    if row is None:
        return None
    peak, seconds = row
    if type(peak) is not int or type(seconds) is not float or peak < 1 or seconds <= 0:
        raise ValueError("the plain step's peak and time are no positive numbers")
    return PlainStep(peak, seconds)
