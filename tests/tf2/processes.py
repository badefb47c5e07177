"""Programs of the tests that need a process of their own; each prints what it found as JSON behind
the word FOUND."""

import json
import os
import socket
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


def found_by_workers(program, *arguments, count=2):
    """What each of the workers found that run the program as one cluster."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(count)]
    workers = [
        started(
            program,
            *arguments,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}}
            ),
        )
        for k in range(count)
    ]
    try:
        return [found(worker) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
