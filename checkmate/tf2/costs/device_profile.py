"""DeviceProfile: a device that a step is planned for and that need not be here.

It is a GPU by its name, an amount of memory, or what `checkmate profile` measured on a device and
wrote to a file: the seconds, workspaces and requests of ops that ran alone there. Ops that were not
measured cost what the roofline says of that device, scaled as the measured ones are.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.fields import COUNT, OBJECT, TEXT, Kind, field, is_number, refusal, shown
from checkmate.core.json_files import read_json, write_json
from checkmate.errors import BudgetError, PlanFileError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.cache import Entries, Measurement, cost_cache, measurement, row
from checkmate.tf2.costs.measured import completed, profile, to_measure
from checkmate.tf2.costs.roofline import NAMED, OTHER, Rates, rates_of, roofline
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.budget import AUTO_RESERVE, free_bytes
from checkmate.units import format_bytes, parse_bytes

FORMAT, VERSION = "checkmate-device", 1

RATE = Kind("a number above 0", lambda value: is_number(value) and value > 0)

MOST_S, LEAST_BYTES = 1e6, 1 << 20
"""Seconds that no op takes; memory that no device has."""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device on paper.

    Attributes:
      name: For people.
      memory_bytes: The memory that a program can have of it.
      rates: Its peak rates, for ops that were not measured.
      entries: Measurements by the signatures of ops; empty where nothing was measured.
      tensorflow: The version of TensorFlow that measured them.
    """

    name: str
    memory_bytes: int
    rates: Rates
    entries: Entries = attribute(default_factory=dict, repr=False)
    tensorflow: str = ""

    @classmethod
    def of(cls, device: str | os.PathLike | int) -> DeviceProfile:
        """The device of a name of `NAMED`, of an amount of memory such as "80GB", or of a file of
        `checkmate profile`. Raises `BudgetError` for no such device, and `PlanFileError` for a file
        that cannot be read or is none."""
        text = os.fspath(device) if isinstance(device, os.PathLike) else device
        if isinstance(text, str):
            if text.endswith(".json"):
                return cls.load(text)
            known = {_key(name): name for name in NAMED}
            if name := known.get(_key(text)):
                gpu = NAMED[name]
                return cls(name, gpu.memory_gb * 10**9, gpu.with_tf32)
        try:
            memory = parse_bytes(text)
        except BudgetError as error:
            close = difflib.get_close_matches(str(text).upper(), NAMED, n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else f" {error}"
            raise BudgetError(
                f"There is no device {text!r}.{hint} A device is one of {', '.join(NAMED)}, an"
                " amount of memory such as '80GB', or a .json file of `checkmate profile`."
            ) from error
        if memory < LEAST_BYTES:
            hint = f" Did you mean '{text}GB'?" if str(text).isdigit() else ""
            raise BudgetError(f"A device of {text} has {format_bytes(memory)} only.{hint}")
        return cls("a device of this memory", memory, NAMED[OTHER].with_tf32)

    @classmethod
    def measured(cls, traced: TracedStep, on_progress: Callable[[int, int], None]) -> DeviceProfile:
        """The device that trains here, with the measured ops of a step."""
        device = devices.training_device()
        profile(traced, on_progress)
        _, keys = to_measure(traced, roofline(traced, on_progress))
        name = devices.describe(device)
        with cost_cache(f"{name} / TensorFlow {tf.__version__}") as known:
            entries = {key: known[key] for key in keys if key and known.get(key)}
        return cls(name, free_bytes(device), rates_of(device), entries, tf.__version__)

    @property
    def budget_bytes(self) -> int:
        """The bytes of `budget="auto"`."""
        return int((1 - AUTO_RESERVE) * self.memory_bytes)

    def estimates(self, traced: TracedStep) -> list[Measurement]:
        return roofline(traced, lambda done, total: None, self.rates)

    def cost_model(
        self, traced: TracedStep, on_progress: Callable[[int, int], None]
    ) -> list[Measurement]:
        """The option `cost_model` for this device."""
        estimates = self.estimates(traced)
        if not self.entries:
            return estimates
        isolated, keys = to_measure(traced, estimates)
        found = [self.entries.get(key) if key else None for key in keys]
        return completed(traced, isolated, found, estimates)

    def measured_share(self, traced: TracedStep) -> float:
        """The share of the step's estimated seconds that are of measured ops."""
        estimates = self.estimates(traced)
        pairs = list(zip(to_measure(traced, estimates)[1], estimates, strict=True))
        return sum(each.seconds for key, each in pairs if key in self.entries) / sum(
            each.seconds for _, each in pairs
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes a file, with the measurements that an older one of this device has besides.
        Raises `PlanFileError` where it cannot be written, or is one of another device."""
        whole = self
        if Path(path).exists():
            older = DeviceProfile.load(path)
            if (older.name, older.tensorflow) != (self.name, self.tensorflow):
                raise PlanFileError(
                    f"{path} is a profile of {older.name} with TensorFlow {older.tensorflow}, and"
                    f" this device is {self.name} with TensorFlow {self.tensorflow}. Write to"
                    " another file."
                )
            whole = replace(self, entries={**older.entries, **self.entries})
        write_json(
            path,
            {
                "format": FORMAT,
                "version": VERSION,
                "device": whole.name,
                "tensorflow": whole.tensorflow,
                "memory_bytes": whole.memory_bytes,
                "flops_per_s": whole.rates.flops_per_s,
                "bytes_per_s": whole.rates.bytes_per_s,
                "entries": {key: row(each) for key, each in whole.entries.items() if each},
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> DeviceProfile:
        """Reads a file of `save`. Raises `PlanFileError`."""
        data = read_json(path)
        if data.get("format") != FORMAT:
            raise PlanFileError(
                f"{path} is no device profile. `checkmate profile MODEL -o {path}` writes one, on"
                " the device."
            )
        if (version := data.get("version")) != VERSION:
            raise PlanFileError(
                f"{path} is a device profile of version {shown(version)}, and this library reads"
                f" version {VERSION}. Make it again with `checkmate profile`."
            )
        rates = [field(data, key, RATE, path) for key in ("flops_per_s", "bytes_per_s")]
        rows, entries = field(data, "entries", OBJECT, path), Entries()
        for key, each in rows.items():
            try:
                found = entries[key] = measurement(each)
                if not 0 <= found.seconds < MOST_S or found.workspace_bytes < 0:
                    raise ValueError("no seconds, or no bytes")
            except (TypeError, ValueError, AttributeError, IndexError) as error:
                raise refusal(path, f"entry {key} is {shown(each)}", "a measurement") from error
        return cls(
            field(data, "device", TEXT, path),
            field(data, "memory_bytes", COUNT, path),
            Rates(*rates),
            entries,
            field(data, "tensorflow", TEXT, path),
        )

    def costs_text(self, traced: TracedStep) -> str:
        """Where costs come from, in words."""
        if not self.entries:
            if self.tensorflow:
                return "roofline, by the rates in the file"
            return "roofline, by the data sheet" if self.name in NAMED else "roofline of an A100"
        share = self.measured_share(traced)
        return f"{share:.0%} measured on it with TensorFlow {self.tensorflow}, the rest roofline"

    def __str__(self) -> str:
        return f"{self.name} ({format_bytes(self.memory_bytes)})"


def _key(name: Any) -> str:
    return "".join(c for c in str(name).upper() if c.isalnum()).removeprefix("NVIDIA")
