"""Parts of a line of `checkmate bench accept` that take processes of their own: `stage` starts one,
and this file runs in it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from checkmate.bench.accept_outcome import NotRunError
from checkmate.bench.process import fresh_process

LIMIT_S = 900
"""The most seconds that a part may take."""


def stage(
    function: Callable[..., dict[str, Any]],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs a function of one of our modules in a process of its own.

    Args:
      arguments: What JSON can write, as is what the function returns.
      environment: Variables that the process gets besides.

    Raises:
      NotRunError: The function raised it.
      CheckmateError: The process failed.
    """
    found = fresh_process(
        "checkmate.bench.accept_stage",
        [function.__module__, function.__qualname__, json.dumps(arguments)],
        environment=environment,
        timeout_s=LIMIT_S,
    )
    if "not_run" in found:
        raise NotRunError(found["not_run"])
    return found


def run(module: str, function: str, arguments: list[Any]) -> dict[str, Any]:
    """Runs a function in this process; {"not_run": why} where this machine cannot."""
    try:
        return getattr(importlib.import_module(module), function)(*arguments)
    except NotRunError as error:
        return {"not_run": str(error)}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
