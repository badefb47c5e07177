"""Several replicas: the same losses as plain training under the same strategy, one plan for all."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from processes import found, started

PROGRAM = Path(__file__).with_name("distributed.py")


def check(result):
    assert result["recomputed"]
    assert len(set(result["plain"]["losses"])) > 1, "nothing is trained"
    np.testing.assert_allclose(result["planned"]["losses"], result["plain"]["losses"], rtol=1e-6)
    np.testing.assert_allclose(result["planned"]["weights"], result["plain"]["weights"], rtol=1e-6)
    measured, budget = result["peaks"]
    assert measured <= budget
    assert result["rooms"] and not any(result["rooms"]), (
        "the plan is replayed by the function of all replicas, and nobody would use them"
    )


@pytest.mark.slow
def test_two_mirrored_devices():
    """The last batch is smaller, and of equal parts."""
    check(found(started(PROGRAM, "mirrored", 1024, 2 * 1024 + 200, 2)))


@pytest.mark.usefixtures("tensorflow")
def test_strategies_that_one_plan_cannot_serve():
    import tensorflow as tf

    import checkmate

    # Of devices that this machine need not have.
    mixed = object.__new__(tf.distribute.MirroredStrategy)
    mixed._extended = SimpleNamespace(worker_devices=("/device:GPU:0", "/device:CPU:0"))
    for strategy, text in (
        (mixed, r"unequal devices \(CPU, GPU\)"),
        (tf.distribute.OneDeviceStrategy("CPU:0"), "OneDeviceStrategy"),
    ):
        with pytest.raises(checkmate.TraceError, match=text):
            checkmate.tf2.function(tf.reduce_sum, budget="1GiB", strategy=strategy)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_two_workers():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [
        started(
            PROGRAM,
            "workers",
            1024,
            1024 * 10,
            2,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}}
            ),
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
    assert results[0]["planned"]["losses"] == pytest.approx(
        results[1]["planned"]["losses"], rel=1e-6
    )
    assert results[0]["steps"] == results[1]["steps"], "the workers run one plan"
