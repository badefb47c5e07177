"""Python scripts in processes of their own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path


def run_python(
    script: str, *folders: str | Path, arguments: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess:
    """The end of a script, which finds modules in these folders too."""
    path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables)
