"""Loading TensorFlow without the messages that its libraries write to standard error."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

QUIET = "3"
"""The value of TF_CPP_MIN_LOG_LEVEL for silence. It does not stop messages that TensorFlow's
libraries write before they read it."""


@contextmanager
def quietly() -> Iterator[None]:
    """Captures the file descriptor of standard error, and prints it if the block fails; only if
    TF_CPP_MIN_LOG_LEVEL is `QUIET`. Python's own `sys.stderr`, and so the progress line, still goes
    to the terminal."""
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
