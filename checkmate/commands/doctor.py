"""`checkmate doctor`: which parts of an installation are present or missing, and what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

import checkmate
from checkmate.commands.options import json_option
from checkmate.commands.quiet import quietly
from checkmate.commands.table import print_json, print_table, say
from checkmate.demo import trial
from checkmate.demo.process import last_line
from checkmate.errors import CheckmateError
from checkmate.progress import Progress
from checkmate.units import format_bytes

PACKAGES = ["tensorflow", "keras", "numpy", "scipy", "networkx", "numba", "matplotlib"]
"""What every command needs. The modules have the names of the packages."""

SOLVERS = {"cylp": "milp, lp_rounding", "ortools": "milp:scip, milp:cp_sat, retention"}
"""The package of a solver -> the solvers that need it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis, and a cure. The state is "ok"; "missing" for something that every
    command needs; "note" for something that only some functions need; "wrong" for a training that
    is not as it should be. A limit on memory has its bytes, and who sets it."""

    what: str
    state: str
    found: str
    cure: str = ""
    bytes: int | None = None
    by: str = ""


@click.command("doctor")
@click.option(
    "--run",
    "train",
    is_flag=True,
    help="Also train a small net plain and planned, in less than a minute, and compare.",
)
@json_option
def doctor_command(train: bool, as_json: bool) -> None:
    """Check this installation.

    Versions, solvers, devices, every limit on memory, and whether the allocator reports the bytes
    in use.

    With --run, the device that trains is tried, in a process of its own: is the measured peak
    within the budget, are the losses the plain step's, and did every planned evaluation run?

    Exit status: 0 if nothing that is needed is missing or wrong, else 1.

    JSON: what, state, found, cure, bytes, by; the last two of limits.
    """
    with Progress("doctor", {"training": 1, "checking": 2} if train else None) as progress:
        # First, as this process takes the memory of a GPU when it looks at it.
        trained: list[Finding] = []
        if train:
            with progress.phase("training"):
                trained = list(_trained())
        with progress.phase("checking"):
            findings = [*examine(), *trained]
    if as_json:
        for finding in findings:
            print_json(asdict(finding))
    else:
        columns = ("what", "state", "found")
        rows = [(finding.what, finding.state, finding.found) for finding in findings]
        print_table(f"checkmate {checkmate.__version__}", columns, rows, left=columns)
        for finding in findings:
            if finding.cure:
                say(f"{finding.what}: {finding.cure}")
    sys.exit(int(any(finding.state in ("missing", "wrong") for finding in findings)))


def examine() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("Python", "ok", f"{platform.python_version()} on {system}")
    for name in PACKAGES:
        yield _package(name, "missing", f"pip install {name}")
    for name, solvers in SOLVERS.items():
        yield _package(name, "note", f"pip install {name}, for the solvers {solvers}")
    if importlib.util.find_spec("tensorflow") is not None:
        try:
            yield from _devices()
        except Exception as error:  # a broken installation can raise anything
            found = f"{type(error).__name__}: {error}"
            yield Finding("devices", "missing", found, "Reinstall TensorFlow.")


def _trained() -> Iterator[Finding]:
    try:
        checks = trial.checks(trial.run_trial())
    except checkmate.CheckmateError as error:
        yield Finding("training", "wrong", last_line(error), trial.REPORT_IT)
        return
    for what, is_right, found in checks:
        yield Finding(what, *(("ok", found) if is_right else ("wrong", found, trial.REPORT_IT)))


def _package(name: str, state: str, cure: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, state, "not installed", cure)
    return Finding(name, "ok", importlib.metadata.version(name))


def _devices() -> Iterator[Finding]:
    with quietly():
        from checkmate.demo.memory_limits import memory_limits
        from checkmate.tf2 import device as devices
        from checkmate.tf2.memory.budget import free_bytes

        backend = devices.keras_backend()
    if backend != "tensorflow":
        cure = "Set KERAS_BACKEND=tensorflow before Keras is imported."
        yield Finding("Keras backend", "missing", backend, cure)
    training = devices.training_device()
    found = f"{training}: {devices.describe(training)}"
    yield Finding("training device", "ok", found, _gpu_cure(training))
    try:
        yield Finding("free memory", "ok", format_bytes(free_bytes(training)))
    except CheckmateError as error:
        cure = "pip install nvidia-ml-py, for budget='auto'"
        yield Finding("free memory", "note", str(error), cure)
    for limit in memory_limits(training):
        found = f"{format_bytes(limit.bytes)} by {limit.by}"
        yield Finding("limit", "ok", found, bytes=limit.bytes, by=limit.by)
    if devices.allocator_reports(training):
        yield Finding("allocator", "ok", "reports the bytes in use: peaks are measured")
    else:
        found = "does not report the bytes in use: peaks are predicted, not measured"
        cure = "Set TF_CPU_ALLOCATOR_USE_BFC=true before TensorFlow is imported."
        yield Finding("allocator", "note", found, cure)


def _gpu_cure(training: str) -> str:
    if training.startswith("GPU") or not os.path.exists("/proc/driver/nvidia"):
        return ""
    return (
        "There is an NVIDIA driver, but TensorFlow sees no GPU: pip install 'tensorflow[and-cuda]'"
    )
