"""Measurements in fresh processes, with TensorFlow's BFC allocator on the CPU too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkmate.errors import CheckmateError

_ANSWER = "checkmate answers "
"""Begins the lines of a `StepProcess` that are answers."""


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
    variables = _variables() | dict(environment or {})
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
        raise _failure(command, done.returncode, done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


class StepProcess:
    """A process that takes a step whenever it is asked, so that steps of several such processes can
    be timed in turn: other work of the machine then slows all of them. Close it after use.

    Attributes:
      facts: What it said before the first step; see `take_steps`.
    """

    def __init__(self, module: str, arguments: Sequence[str]):
        """Runs `python -m module arguments`, which ends in `take_steps`.

        Raises:
          ProcessDiedError: As `fresh_process`.
          CheckmateError: As `fresh_process`.
        """
        self._command = [sys.executable, "-m", module, *arguments]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- `close` closes it
        self._process = subprocess.Popen(
            self._command,
            env=_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.facts: dict[str, Any] = self._answer()

    def step(self) -> float:
        """Has it take a step, and returns the seconds.

        Raises:
          ProcessDiedError: As `fresh_process`.
          CheckmateError: As `fresh_process`.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and the answer says how
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith(_ANSWER):
                    return json.loads(line.removeprefix(_ANSWER))
            status = self._process.wait()
            self._errors.seek(0)
            failure = _failure(self._command, status, self._errors.read())
        except BaseException:
            self.close()
            raise
        self.close()
        raise failure


def take_steps(facts: dict[str, Any], step: Callable[[], float] | None = None) -> None:
    """The end of a `StepProcess`: tells facts, and then the seconds of a step for each that it is
    asked for; without a step, the facts alone."""
    _say(facts)
    if step:
        for _ in sys.stdin:
            _say(step())


def _say(answer: Any) -> None:
    sys.stdout.write(f"{_ANSWER}{json.dumps(answer)}\n")
    sys.stdout.flush()


def _variables() -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true"}


def _failure(command: Sequence[str], status: int, said: str) -> CheckmateError:
    """The error of a process that ended with this status, from what it said on standard error."""
    refused = re.search(r"^checkmate\.errors\.\w+: (.*)\Z", said.strip(), re.MULTILINE | re.DOTALL)
    if refused:
        return CheckmateError(refused[1])
    tail = "\n".join(said.strip().splitlines()[-6:])
    died = ProcessDiedError if status < 0 else CheckmateError
    return died(f"`{' '.join(command[1:])}` ended with status {status}:\n{tail}")


def last_line(error: Exception) -> str:
    """Returns the last line of an error's message: in a traceback, the error itself."""
    return str(error).strip().splitlines()[-1]
