"""Where measurements are kept: in the process, and on disk for the next process."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from checkmate.core.cache import read_cached, write_cached
from checkmate.core.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Measurement:
    """The costs of an op: `seconds` of one evaluation, `workspace_bytes` besides inputs and value,
    the deps that its value reuses (`in_place`), and the footprint of each TensorFlow op of its
    group, None if it was not seen; empty if none was."""

    seconds: float
    workspace_bytes: int
    in_place: tuple[int, ...] = ()
    footprints: tuple[Footprint | None, ...] = ()


FORMAT, VERSION = "checkmate-profile", 6

Entries = dict[str, Measurement | None]
"""Measurements by the signature of an op; None for an op that TensorFlow refused to run."""

_of_process: dict[str, Entries] = {}


def cache_folder() -> Path:
    """The user's cache folder, or $CHECKMATE_CACHE_DIR. It need not exist."""
    folder = os.environ.get("CHECKMATE_CACHE_DIR") or platformdirs.user_cache_dir("checkmate")
    return Path(os.path.expanduser(folder))


def forget() -> None:
    _of_process.clear()


class CostCache:
    """The measurements of one device, for use in a `with` statement. At its end new ones are
    written to disk, also after an interruption. A file that is damaged, or that cannot be written,
    is a note in the log. `device` describes the device and the software measured; `entries` are the
    measurements of this process and of the disk."""

    def __init__(self, device: str):
        self._device = device
        name = hashlib.sha256(device.encode()).hexdigest()[:12]
        self._path = cache_folder() / f"profile-{name}.json"
        self.entries: Entries = {}
        self._count = 0

    def __enter__(self) -> CostCache:
        self.entries = _of_process.setdefault(self._device, {})
        if not self.entries:
            self.entries.update(self._read())
        self._count = len(self.entries)
        return self

    def __exit__(self, *exception: Any) -> None:
        if len(self.entries) == self._count:
            return
        rows = {key: row(found) for key, found in (self._read() | self.entries).items() if found}
        data = {"format": FORMAT, "version": VERSION, "device": self._device, "entries": rows}
        write_cached(self._path, data)

    def _read(self) -> Entries:
        return read_cached(self._path, self._parsed) or {}

    def _parsed(self, data: dict[str, Any]) -> Entries:
        if (data["format"], data["version"], data["device"]) != (FORMAT, VERSION, self._device):
            return {}
        return {str(key): measurement(each) for key, each in data["entries"].items()}


def row(found: Measurement) -> list[Any]:
    footprints = [each and each.row() for each in found.footprints]
    return [found.seconds, found.workspace_bytes, found.in_place, footprints]


def measurement(row: list[Any]) -> Measurement:
    seconds, space, over, footprints = row
    seen = tuple(None if each is None else Footprint.of_row(each) for each in footprints)
    return Measurement(float(seconds), int(space), tuple(map(int, over)), seen)
