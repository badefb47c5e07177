"""The machine code of the annealer: whether it is there, and how it comes to be.

Numba keeps it in a cache beside the sources (or in the user's cache folder where that cannot be written), and a process loads it from there
in a second. Only the first search ever needs it made, which takes some 15 seconds of work: a process of its own does
that, and outlives the search that began it. So no search waits for it that has other things to do, and no later one at all.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LONGEST_S = 300.0
"""Seconds after which a process that compiles counts as dead."""

LOOK_S = 0.1
"""Seconds between two looks at what the process has made."""


def is_compiled() -> bool:
    """Whether all machine code of this version is there: in this process, or in the cache."""
    changed = _last_change()
    cached = {code.name.partition("-")[0] for code in _cached("nbc") if code.stat().st_mtime >= changed}
    return _in_this_process() or len(cached) == len(_functions())


def wait_until_compiled() -> None:
    """Returns when the machine code is in the cache, made by a process of its own where need be; or when no such process can make it."""
    child: subprocess.Popen | None = None
    while not is_compiled() and (folder := _folder()) is not None:
        if child is None and _claim(folder):
            child = _compile_apart()
        if child is not None and child.poll() is not None:
            return
        time.sleep(LOOK_S)


def compile_here() -> None:
    """What the process does: calls each function once, which compiles it."""
    from checkmate.core.graph import DFGraph, Op
    from checkmate.solvers.annealer import Annealer

    try:
        Annealer(DFGraph((Op("op"),)), 0, (0,))
    finally:
        folder = _folder()
        if folder is not None:
            _claim_of(folder).unlink(missing_ok=True)


def forget_stale_code() -> None:
    """Deletes machine code in numba's cache that is older than its sources. Numba itself looks at the file of `anneal` only, not at what that calls."""
    changed = _last_change()
    for code in [*_cached("nbi"), *_cached("nbc")]:
        if code.stat().st_mtime < changed:
            code.unlink(missing_ok=True)


def _compile_apart() -> subprocess.Popen:
    path = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    command = [sys.executable, "-c", "from checkmate.solvers.machine_code import compile_here; compile_here()"]
    nowhere = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(command, env=environment, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def _claim(folder: Path) -> bool:
    """Whether it falls to this process to have the code compiled, and not to another one that has begun."""
    claim = _claim_of(folder)
    with contextlib.suppress(OSError):
        if time.time() - claim.stat().st_mtime > LONGEST_S:
            claim.unlink()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim.touch(exist_ok=False)
    except OSError:
        return False
    return True


def _claim_of(folder: Path) -> Path:
    return folder / "annealing.compiling"


def _in_this_process() -> bool:
    return all(function.signatures for function in _functions())


def _last_change() -> float:
    from checkmate.solvers import annealing, choices, evaluation_order

    return max(Path(file).stat().st_mtime for file in (annealing.__file__, choices.__file__, evaluation_order.__file__))


def _functions() -> tuple[Any, ...]:
    """The compiled functions that are called from Python."""
    from checkmate.solvers import annealing, evaluation_order

    return annealing.anneal, evaluation_order.append


def _folder() -> Path | None:
    """Where numba keeps the code; None where it has no place to write to."""
    folder = _functions()[0].stats.cache_path
    return Path(folder) if folder else None


def _cached(ending: str) -> list[Path]:
    found: list[Path] = []
    for function in _functions():
        folder, name = function.stats.cache_path, f"{function.py_func.__module__.rpartition('.')[2]}.{function.py_func.__name__}"
        found.extend(Path(folder).glob(f"{name}-*.{ending}") if folder else ())
    return found
