"""Without the lines that libraries write past Python."""

from __future__ import annotations

import ctypes
import io
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_LOCKS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


@contextmanager
def unlogged(descriptor: int, words: Collection[bytes]) -> Iterator[None]:
    """Leaves out lines with any of the words from a file descriptor: 1 is standard output, 2
    standard error. All others are written when the block ends. Of several threads the first one
    does so for all, until its own block ends."""
    if not _LOCKS[descriptor].acquire(blocking=False):
        yield
        return
    try:
        with _unlogged(descriptor, words):
            yield
    finally:
        _LOCKS[descriptor].release()


@contextmanager
def _unlogged(descriptor: int, words: Collection[bytes]) -> Iterator[None]:
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    # Each write goes to the end, wherever the file is read.
    with tempfile.TemporaryFile("ab+", buffering=0) as kept:
        try:
            terminal = os.dup(descriptor)
        except OSError:  # it is closed
            yield
            return
        if libc:  # what was printed before is the caller's
            libc.fflush(None)
        os.dup2(kept.fileno(), descriptor)
        try:
            yield
        finally:
            if libc:
                libc.fflush(None)
            os.dup2(terminal, descriptor)
            os.close(terminal)
            time.sleep(0.001)  # a write of another thread that began before `dup2` may go on
            size = os.fstat(kept.fileno()).st_size
            for line in io.BytesIO(os.pread(kept.fileno(), size, 0)):
                if not any(each in line for each in words):
                    os.write(descriptor, line)
