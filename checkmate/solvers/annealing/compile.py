"""Compilation by numba, with a cache. This file imports numba: import it inside functions only.

The machine code is kept in numba's cache: beside the sources, or in the user's cache folder where
that cannot be written. The first search on a machine compiles it, which takes some 15 seconds of
work; later processes load it in a second. Numba looks for changes only in the file of a function
that Python calls: after a change of what that calls, in another file, touch the first one (the
tests have a cache for each state of these files).
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

# Where colorama is installed, numba colours its errors by exchanging `sys.stdout` for a moment. It
# raises and catches hundreds while it compiles, in a thread here, beside a program that may print.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

from numba import njit
from numba.core.caching import FunctionCache

from checkmate.core.cache import DAMAGED, UNUSABLE, forgiven

inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)  # type: ignore[call-overload]
"""For functions that compiled ones call. Without the parts that let Python call them, they compile
in half the time; without counting references to arrays, which they neither make nor keep, they run
four times as fast."""


class _Cache(FunctionCache):
    """Numba's cache of a function. Where the folder came to be full, read-only or damaged since the
    process began, numba itself would raise."""

    def load_overload(self, *arguments):
        with forgiven(self.cache_path, UNUSABLE + DAMAGED):
            return super().load_overload(*arguments)

    def save_overload(self, *arguments):
        with forgiven(self.cache_path, UNUSABLE + DAMAGED):
            super().save_overload(*arguments)


def entry(function):
    """For functions that Python calls. Their machine code is kept, unless numba has no folder to
    write to."""
    compiled = njit(nogil=True)(function)
    with contextlib.suppress(RuntimeError):
        compiled._cache = _Cache(function)
    return compiled


def announce_compilation(function) -> None:
    """Logs that a function is about to be compiled, where this process has not loaded it and
    numba's cache does not have it."""
    folder = function.stats.cache_path
    name = f"{function.py_func.__module__.rpartition('.')[2]}.{function.py_func.__name__}"
    if not function.signatures and not (folder and any(Path(folder).glob(f"{name}-*.nbi"))):
        where = (
            f"kept in {folder}"
            if folder
            else "not kept, as numba has no folder to write to (set NUMBA_CACHE_DIR)"
        )
        logging.getLogger("checkmate").info(
            "Compiling the annealer beside the search: about 15 s of work, once; %s.", where
        )
