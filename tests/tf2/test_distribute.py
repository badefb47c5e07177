"""Several replicas: the same losses as plain training under the same strategy, one plan for all."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import checkmate

PROGRAM = Path(__file__).with_name("distributed.py")


def started(*arguments, **environment):
    search = os.pathsep.join([str(Path(checkmate.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": search, **environment},
    )


def found(process):
    output, _ = process.communicate(timeout=500)
    lines = [line for line in output.splitlines() if line.startswith("FOUND ")]
    assert lines, output[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def check(result):
    assert result["recomputed"]
    assert len(set(result["plain"]["losses"])) > 1, "nothing is trained"
    np.testing.assert_allclose(result["planned"]["losses"], result["plain"]["losses"], rtol=1e-6)
    np.testing.assert_allclose(result["planned"]["weights"], result["plain"]["weights"], rtol=1e-6)
    measured, budget = result["peaks"]
    assert measured <= budget


def test_two_mirrored_devices():
    """The last batch is smaller, and of equal parts."""
    check(found(started("mirrored", 1024, 2 * 1024 + 200, 2)))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_two_workers():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [
        started(
            "workers", 1024, 1024 * 10, 2, TF_CONFIG=json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}})
        )
        for k in range(2)
    ]
    try:
        results = [found(worker) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for result in results:
        check(result)
        assert len(result["plain"]["losses"]) == 20
    assert results[0]["planned"]["losses"] == pytest.approx(results[1]["planned"]["losses"], rel=1e-6)
    assert results[0]["steps"] == results[1]["steps"], "the workers run one plan"
