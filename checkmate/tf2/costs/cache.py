"""Where measurements are kept: in the process, and on disk for the next process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def cost_cache(device: str) -> Iterator[Entries]:
    """The measurements of one device, of this process and of the disk; `device` describes the
    device and the software measured. At the end of the block new ones are written to disk, also
    after an interruption. A file that is damaged, or that cannot be written, is a note in the
    log."""
    path = cache_folder() / f"profile-{hashlib.sha256(device.encode()).hexdigest()[:12]}.json"

    def parsed(data: dict[str, Any]) -> Entries:
        if (data["format"], data["version"], data["device"]) != (FORMAT, VERSION, device):
            return {}
        return {str(key): measurement(each) for key, each in data["entries"].items()}

    def read() -> Entries:
        return read_cached(path, parsed) or {}

    entries = _of_process.setdefault(device, {})
    if not entries:
        entries.update(read())
    count = len(entries)
    try:
        yield entries
    finally:
        if len(entries) > count:
            rows = {key: row(found) for key, found in (read() | entries).items() if found}
            data = {"format": FORMAT, "version": VERSION, "device": device, "entries": rows}
            write_cached(path, data)


def row(found: Measurement) -> list[Any]:
    footprints = [each and each.row() for each in found.footprints]
    return [found.seconds, found.workspace_bytes, found.in_place, footprints]


def measurement(row: list[Any]) -> Measurement:
    seconds, space, over, footprints = row
    seen = tuple(None if each is None else Footprint.of_row(each) for each in footprints)
    return Measurement(float(seconds), int(space), tuple(map(int, over)), seen)
