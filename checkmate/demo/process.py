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
    """Runs `python -m module arguments` and returns the JSON value in its last line. Raises
    `ProcessDiedError` if a signal ended it, and `CheckmateError`, with the library's message or the
    end of standard error, if it failed or lasted longer."""
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
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true"}


def failure(command: Sequence[str], status: int, said: str) -> CheckmateError:
    refused = re.search(r"^checkmate\.errors\.\w+: (.*)\Z", said.strip(), re.MULTILINE | re.DOTALL)
    if refused:
        return CheckmateError(refused[1])
    tail = "\n".join(said.strip().splitlines()[-6:])
    died = ProcessDiedError if status < 0 else CheckmateError
    return died(f"`{' '.join(command[1:])}` ended with status {status}:\n{tail}")


def last_line(error: Exception) -> str:
    """In a traceback, the error itself."""
    return str(error).strip().splitlines()[-1]
