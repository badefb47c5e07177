"""The garbage of planning: traced functions that are no longer needed, which keep memory of the
device in reference cycles until Python collects them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Collects garbage, leaves all other objects out of collections until the end of the block, and
    collects in it only where asked to.

    Planning asks after each function that it runs and drops. A process that has TensorFlow and a
    model has half a million objects, and to look at all of them takes longer than to trace a small
    step. Older objects that become garbage in the block are collected after it. A program that uses
    `gc.freeze` itself is left as it is.
    """
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
