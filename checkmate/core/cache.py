"""Caches: files that spare work and that nothing depends on. One that cannot be used (its disk is
full, its folder read-only or another user's, the file damaged) is a note in the log and costs time;
it never ends what uses it."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from checkmate.core.json_files import read_json, write_json
from checkmate.errors import PlanFileError

log = logging.getLogger("checkmate")

Parsed = TypeVar("Parsed")

UNUSABLE = (OSError, PlanFileError)
"""Errors of folders and files that cannot be read or written."""

DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError),
    pickle.PickleError,
)
"""Errors of reading a file with unexpected contents."""

_noted: set[str] = set()


@contextmanager
def forgiven(
    folder: str | os.PathLike, errors: tuple[type[BaseException], ...] = UNUSABLE
) -> Iterator[None]:
    """Ends the block at an error of a cache, and says so in the log, once for each folder."""
    try:
        yield
    except errors as error:
        if str(folder) not in _noted:
            _noted.add(str(folder))
            log.warning(
                "The cache in %s is not used, so work is done again that it would spare: %s Set"
                " CHECKMATE_CACHE_DIR (for compiled code NUMBA_CACHE_DIR) to a folder that can be"
                " written to.",
                folder,
                error,
            )


def read_cached(path: Path, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed | None:
    """Returns the result of `parse` for a file's object; None without a file, or where it cannot be
    used."""
    with forgiven(path.parent, UNUSABLE + DAMAGED):
        if os.path.lexists(path):
            return parse(read_json(path))
    return None


def write_cached(path: Path, data: dict[str, Any]) -> None:
    """Writes a file whole or not at all, and its folder before."""
    with forgiven(path.parent):
        if path.parts[0] == "~":
            raise PlanFileError(f"Cannot write {path}: there is no home folder.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, data)
