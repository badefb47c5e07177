"""Programs of the tests that need a process of their own; each prints what it found as JSON behind
the word FOUND."""

import json
import os
import subprocess
import sys
from pathlib import Path

import checkmate


def started(program, *arguments, **environment):
    """The process, which runs on; `found` waits for it."""
    search = os.pathsep.join(
        [str(Path(checkmate.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return subprocess.Popen(
        [sys.executable, str(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": search, **environment},
    )


def found(process):
    """What it found, when it has ended."""
    output, _ = process.communicate(timeout=500)
    lines = [line for line in output.splitlines() if line.startswith("FOUND ")]
    assert lines, output[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))
