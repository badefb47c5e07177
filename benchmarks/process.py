"""Processes that take a training step whenever they are asked, and limits on their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from checkmate.demo.process import failure, process_variables

_ANSWER = "checkmate answers "
"""Begins the lines of a `StepProcess` that are answers."""


class StepProcess:
    """A process that takes a step whenever it is asked, so that steps of several such processes can
    be timed in turn: other work of the machine then slows all of them. Close it after use.

    Attributes:
      facts: What it said before the first step; see `take_steps`.
    """

    def __init__(self, module: str, arguments: Sequence[str]):
        """Runs `python -m module arguments`, which ends in `take_steps`.

        Raises:
          ProcessDiedError: As `checkmate.demo.process.fresh_process`.
          CheckmateError: As `fresh_process`.
        """
        self._command = [sys.executable, "-m", module, *arguments]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- `close` closes it
        self._process = subprocess.Popen(
            self._command,
            env=process_variables(),
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
            failed = failure(self._command, status, self._errors.read())
        except BaseException:
            self.close()
            raise
        self.close()
        raise failed


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


def limit_memory(limit_bytes: int) -> None:
    """Gives the allocator of the device that will train a limit, rounded down to MiB: on a GPU the
    `memory_limit` of its logical device, else `TF_CPU_BFC_MEM_LIMIT_IN_MB`, which counts where
    TF_CPU_ALLOCATOR_USE_BFC is set. To be called before TensorFlow runs its first op."""
    import tensorflow as tf

    visible = tf.config.get_visible_devices("GPU")
    mebibytes = limit_bytes >> 20
    if visible:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=mebibytes)
        tf.config.set_logical_device_configuration(visible[0], [part])
    else:
        os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(mebibytes)


def is_out_of_memory(error: Any) -> bool:
    """True where an op failed for lack of memory. On a GPU a convolution that finds memory for none
    of its algorithms says that it has none."""
    import tensorflow as tf

    return isinstance(error, tf.errors.ResourceExhaustedError) or any(
        sign in (error.message or "") for sign in ("RESOURCE_EXHAUSTED", "No algorithm worked")
    )
