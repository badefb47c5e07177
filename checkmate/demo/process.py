"""Measurements in fresh processes, with TensorFlow's BFC allocator on the CPU too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from checkmate.errors import CheckmateError


class ProcessDiedError(CheckmateError):
    """A signal ended the process, for example a crash inside TensorFlow."""


def fresh_process(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 3600,
) -> Any:
    """Runs `python -m module arguments` and returns the JSON value in its last line.

    Args:
      environment: Variables that it gets besides those of this process.

    Raises:
      ProcessDiedError: A signal ended the process.
      CheckmateError: The process failed or took longer than `timeout_s`. The message is that of
        the library's error, or the end of standard error.
    """
    variables = process_variables() | dict(environment or {})
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckmateError(
            f"`{' '.join(command[1:])}` was stopped after {timeout_s:.0f} s."
        ) from error
    if done.returncode:
        raise failure(command, done.returncode, done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def process_variables() -> dict[str, str]:
    """Returns the environment of such a process."""
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true"}


def failure(command: Sequence[str], status: int, said: str) -> CheckmateError:
    """Returns the error of a process that ended with this status and standard error."""
    refused = re.search(r"^checkmate\.errors\.\w+: (.*)\Z", said.strip(), re.MULTILINE | re.DOTALL)
    if refused:
        return CheckmateError(refused[1])
    tail = "\n".join(said.strip().splitlines()[-6:])
    died = ProcessDiedError if status < 0 else CheckmateError
    return died(f"`{' '.join(command[1:])}` ended with status {status}:\n{tail}")


def last_line(error: Exception) -> str:
    """Returns the last line of an error's message: in a traceback, the error itself."""
    return str(error).strip().splitlines()[-1]
