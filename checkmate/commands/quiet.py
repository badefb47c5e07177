"""Loading TensorFlow without what its libraries write to standard error on the way."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

QUIET = "3"
"""The value of TF_CPP_MIN_LOG_LEVEL that asks for silence. What TensorFlow's libraries say before
they read it, this does not stop."""


@contextmanager
def quietly() -> Iterator[None]:
    """Keeps what is written to the file descriptor of standard error, and shows it only where
    loading fails or silence was not asked for.

    Python's own standard error, and so the progress line, goes on to the terminal.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != QUIET:
        yield
        return
    before = sys.stderr
    with tempfile.TemporaryFile() as kept, os.fdopen(os.dup(2), "w") as terminal:
        sys.stderr = terminal
        os.dup2(kept.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            os.dup2(terminal.fileno(), 2)
            sys.stderr = before
            if failed:
                kept.seek(0)
                shutil.copyfileobj(kept, terminal.buffer)
