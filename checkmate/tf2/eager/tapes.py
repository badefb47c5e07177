"""The tapes of this thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from checkmate.tf2.eager import private_api


def is_recording() -> bool:
    """Whether some tape records."""
    return not private_api.tape_is_empty() and not private_api.tape_is_stopped()


@contextmanager
def stopped() -> Iterator[None]:
    """A context in which no tape records."""
    was_recording = is_recording()
    if was_recording:
        private_api.tape_stop()
    try:
        yield
    finally:
        if was_recording:
            private_api.tape_restart()


def linked(handle: Any, value: Any) -> Any:
    """A copy of a real tensor that tapes take for the result of `handle`; the tensor itself where
    no tape records the handle."""
    if not is_recording() or not private_api.tape_records([handle]):
        return value
    with stopped():
        copy = tf.identity(value)
    private_api.tape_record("Identity", [copy], [handle], lambda gradient: [gradient], None)
    return copy
