"""How numba compiles the annealer's functions. Importing this imports numba, which takes a moment: do it inside functions only."""

from __future__ import annotations

from numba import njit

inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)  # type: ignore[call-overload]
"""For functions that compiled ones call. Without the parts that let Python call them, they compile in half the time; without counting
references to arrays, which they neither make nor keep, they run four times as fast."""


def entry(function):
    """For functions that Python calls. Their machine code is kept, unless numba has no folder to write to."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)
