"""`python -m benchmarks dtr-eager --ops`: the cost of an op under `checkmate.tf2.dtr` where
nothing is evicted.

A chain of matrix products under a tape, forward and backward; the backward pass runs as many ops as
the forward pass. In each round every kind takes a step in turn, on one thread, so that a slow
moment of the machine hits all; differences and ratios are medians over the rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from checkmate.demo.process import fresh_process

COLUMNS = ("width", "pass", "plain us", "dtr(): + us", "")
WIDTHS = (16, 128, 448)
FAR = "8GiB"
"""A budget that is far away: nothing is evicted."""


def measure(widths: tuple[int, ...] = WIDTHS) -> Iterator[dict[str, Any]]:
    """What was found, for each width of the matrices one row for the forward and one for the
    backward pass.

    Keys: width, pass; plain_s, seconds of an op under a plain tape; more_s, what it took more under
    `dtr`; ratio, of the whole.
    """
    for width in widths:
        rounds = fresh_process("benchmarks.eager_ops", [str(width)])
        for part, label in enumerate(("forward", "backward")):
            plain = [each["plain"][part] for each in rounds]
            pairs = [
                (before, each["dtr"][part]) for before, each in zip(plain, rounds, strict=True)
            ]
            yield {
                "width": width,
                "pass": label,
                "plain_s": statistics.median(plain),
                "more_s": statistics.median(after - before for before, after in pairs),
                "ratio": statistics.median(after / before for before, after in pairs),
            }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    times = (f"{row['plain_s'] * 1e6:.0f}", f"{row['more_s'] * 1e6:.1f}")
    return (str(row["width"]), row["pass"], *times, f"{row['ratio'] - 1:+.1%}")


def run(width: int, *, seconds: float = 12, ops: int = 100) -> list[dict[str, tuple[float, float]]]:
    """For each round and kind the thread's seconds per op of the forward and of the backward pass,
    over `seconds` or at least nine rounds."""
    import tensorflow as tf

    from checkmate import tf2

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    start = tf.Variable(tf.random.stateless_normal((width, width), (1, 2)))
    factor = tf.random.stateless_normal((width, width), (1, 3)) / width**0.5

    def step() -> tuple[float, float]:
        began = time.thread_time()
        with tf.GradientTape() as tape:
            value = tf.convert_to_tensor(start)
            for _ in range(ops):
                value = tf.matmul(value, factor)
        between = time.thread_time()
        gradient = tape.gradient(value, start)
        assert gradient is not None
        return (between - began) / ops, (time.thread_time() - between) / ops

    rounds: list[dict[str, tuple[float, float]]] = []
    until = time.perf_counter() + seconds
    while len(rounds) < 10 or time.perf_counter() < until:
        found = {"plain": step()}
        with tf2.dtr(FAR, smallest_bytes=0):
            step()  # every new shape is sized once per context
            found["dtr"] = step()
        rounds.append(found)
    return rounds[1:]


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
