"""Small training steps whose values may depend on the batch's size, other examples and positions.

`STEPS` maps a name to a maker of a step and its batch of 12 examples: arguments whose first axis is
not 12 belong to no example. All is float64, so that rounding does not hide a value that is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

BATCH = 12
STEPS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}

mean, total, longest = tf.reduce_mean, tf.reduce_sum, tf.reduce_max
reshape, turned, gather, sums = tf.reshape, tf.transpose, tf.gather, tf.math.unsorted_segment_sum
softmax_of = tf.nn.softmax_cross_entropy_with_logits
sparse_of = tf.nn.sparse_softmax_cross_entropy_with_logits
uniform = functools.partial(tf.random.stateless_uniform, seed=[1, 2])
below = functools.partial(uniform, minval=0, dtype=tf.int32)
truncated = functools.partial(tf.random.stateless_truncated_normal, seed=[1, 2])
shuffled = functools.partial(tf.random.experimental.stateless_shuffle, seed=[1, 2])
normal = functools.partial(tf.random.stateless_normal, seed=[1, 2], dtype=tf.float64)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + 10 * len(shape)).normal(size=shape)


def whole(below: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, below, shape).astype("int32")


def real(value: Any) -> Any:
    return tf.cast(value, tf.float64)


def off(h: Any, y: Any) -> Any:
    return mean((h - y) ** 2)


def each(h: Any, y: Any) -> Any:
    """A loss of every example."""
    return mean((h - y) ** 2, list(range(1, h.shape.rank)))


def near(value: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of a value, of (h, number of examples, ...), that shall be the labels."""
    return lambda h, y, n, *others: off(value(h, n, *others), y)


def descend(variables: Any, gradients: Any) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))


def trains(
    loss: Callable[..., Any],
    shape: Sequence[int] = (20,),
    width: int = 16,
    trained: Sequence[Any] = (),
    kept: Sequence[Any] = (),
    more: Sequence[Any] = (),
    rule: Callable[..., Any] = lambda gradients, n: gradients,
) -> Any:
    """A step that descends a loss of (h, labels like h, number of examples, variables, arguments).

    Beside the loss there may be results. `rule` changes the gradients.
    """
    weights = [tf.Variable(numbers(shape[-1], width, seed=1) / 4)]
    weights += [tf.Variable(numbers(width, width, seed=2) / 4)]
    weights += [tf.Variable(value) for value in trained]
    states = [tf.Variable(value, trainable=False) for value in kept]

    def step(x, y, *rest):
        n = tf.shape(x)[0]
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.tanh(x @ weights[0]) @ weights[1])
            found = loss(h, y, n, *weights[2:], *states, *rest)
            found = found if isinstance(found, tuple) else (found,)
        descend(weights, rule(tape.gradient(found[0], weights), n))
        return found if len(found) > 1 else found[0]

    labels = numbers(BATCH, *shape[:-1], width, seed=5)
    return step, (numbers(BATCH, *shape, seed=0), labels, *more)


def losses(table: dict[str, Callable[..., Any]], **kinds: Any) -> None:
    assert not STEPS.keys() & table.keys()
    STEPS.update({name: functools.partial(trains, loss, **kinds) for name, loss in table.items()})


def values(table: dict[str, Callable[..., Any]], **kinds: Any) -> None:
    losses({name: near(value) for name, value in table.items()}, **kinds)


# Rows of a table at places that the number of examples tells; numbers as large as it.
values(
    {
        "t[n]": lambda h, n, t: h * t[n],
        "t[n - 1]": lambda h, n, t: h * t[n - 1],
        "t[static n]": lambda h, n, t: h * t[h.shape[0]],
        "sum of t[n - 4:n]": lambda h, n, t: h * total(t[n - 4 : n], 0),
        "t[:n]": lambda h, n, t: h + t[:n],
        "gather(t, range(n))": lambda h, n, t: h * gather(t, tf.range(n)),
        "gather(t, cumsum)": lambda h, n, t: h * gather(t, tf.cumsum(tf.ones([n], "int32"))),
        "one_hot(n)": lambda h, n, t: h * (tf.one_hot([n], 64, dtype=h.dtype) @ t),
        "cycle of five": lambda h, n, t: h * tf.tile(t[:5], [n, 1])[:n],
        "cycle of three": lambda h, n, t: h * tf.tile(t[:3], [n // 3, 1]),
        "tile of one": lambda h, n, t: h * tf.tile(t[:1], [n, 1]),
        "broadcast_to n": lambda h, n, t: h * tf.broadcast_to(t[3], [n, 16]),
        "column n // 4": lambda h, n, t: h * h[:, n // 4, None],
        "where n > 8": lambda h, n, t: tf.where(n > 8, h, 2 * h),
        "if static n > 8": lambda h, n, t: h if h.shape[0] > 8 else 2 * h,
        "clip at n": lambda h, n, t: tf.clip_by_value(4 * h, -1.0, real(n) / 10),
        "rows of a memory too": lambda h, n, t: h @ turned(tf.concat([h, t], 0)[:16]),
    },
    trained=[numbers(64, 16, seed=3)],
)

# What a sum over examples is divided by, and functions of sums.
losses(
    {
        "mean": lambda h, y, n: off(h, y),
        "sum": lambda h, y, n: total((h - y) ** 2) / 100,
        "sum / n": lambda h, y, n: total((h - y) ** 2) / real(n),
        "sum / static n": lambda h, y, n: total((h - y) ** 2) / h.shape[0],
        "sum / (n - 1)": lambda h, y, n: total((h - y) ** 2) / real(n - 1),
        "rows / n": lambda h, y, n: off(h * 9 / real(n), y),
        "mean + constant": lambda h, y, n: off(h, y) + 3.0,
        "mean of masked": lambda h, y, n: mean(tf.boolean_mask(each(h, y), y[:, 0] > 0)),
        "masked by y": lambda h, y, n: total(tf.where(y > 0, h * y, 0)) / total(real(y > 0)),
        "masked by h": lambda h, y, n: total(tf.where(h > 0, h * y, 0)) / total(real(h > 0)),
        "/ count_nonzero": lambda h, y, n: total(h * y) / real(tf.math.count_nonzero(y > 0)),
        "weights' sum": lambda h, y, n: total(y[:, 0] ** 2 * each(h, y)) / total(y[:, 0] ** 2),
        "square of mean": lambda h, y, n: mean(h * y) ** 2,
        "root of mean": lambda h, y, n: tf.sqrt(off(h, y)),
        "logsumexp of batch": lambda h, y, n: mean(tf.reduce_logsumexp(h * y, 0)),
        "cond on mean": lambda h, y, n: tf.cond(mean(h) > 0, lambda: off(h, y), lambda: mean(h)),
        "cond on three": lambda h, y, n: off(h, tf.cond(tf.size(1) < 3, lambda: y, lambda: h)),
        "average loss": lambda h, y, n: tf.nn.compute_average_loss(each(h, y), None, 12),
        "variance of batch": lambda h, y, n: off(h, y) - mean(tf.math.reduce_variance(h, 0)),
        "correlation": lambda h, y, n: off(turned(h) @ y / real(n), np.eye(16)),
        "hardest three": lambda h, y, n: mean(tf.math.top_k(each(h, y), 3).values),
        "positions' weights": lambda h, y, n: mean(each(h, y) * real(tf.range(n))),
        "linspace": lambda h, y, n: mean(each(h, y) * real(tf.linspace(0.0, 1, n))),
        "h[-1:]": lambda h, y, n: off(h[-1:], y[-1:]),
        "h[:5]": lambda h, y, n: off(h[:5], y[:5]),
        "h[::2]": lambda h, y, n: off(h[::2], y[::2]),
        "both reversed": lambda h, y, n: off(tf.reverse(h, [0]), tf.reverse(y, [0])),
        "h[1:] - h[:-1]": lambda h, y, n: off(h[1:], h[:-1]) + off(h, y),
        "halves": lambda h, y, n: mean(tf.nn.relu(0.5 + each(h[: n // 2], h[n // 2 :]))),
        "eye as labels": lambda h, y, n: mean(softmax_of(tf.eye(n, dtype=h.dtype), h @ turned(y))),
        "range as labels": lambda h, y, n: mean(sparse_of(tf.range(n), h @ turned(h))),
    }
)

# Positions in the batch, orders of examples, and statistics of the batch.
values(
    {
        "cumsum": lambda h, n: tf.cumsum(h) / 4,
        "reverse": lambda h, n: tf.reverse(h, [0]),
        "sort": lambda h, n: tf.sort(h, 0),
        "argsort": lambda h, n: gather(h, tf.argsort(h[:, 0])),
        "top of batch": lambda h, n: h * turned(tf.math.top_k(turned(h), 5).values)[-1],
        "mixup": lambda h, n: 0.7 * h + 0.2 * tf.reverse(h, [0]) + 0.1 * tf.roll(h, 1, 0),
        "gather(h, range(n))": lambda h, n: gather(h, tf.range(n)),
        "gather(h, n - 1 - range(n))": lambda h, n: gather(h, n - 1 - tf.range(n)),
        "gather(h, chance)": lambda h, n: h + gather(h, below([n], maxval=n)),
        "eye(n) @ h": lambda h, n: tf.eye(n, dtype=h.dtype) @ h,
        "one_hot(range(n)) @ h": lambda h, n: tf.one_hot(tf.range(n), n, dtype=h.dtype) @ h,
        "triangle @ h": lambda h, n: tf.linalg.band_part(tf.ones([n, n], h.dtype), -1, 0) @ h,
        "diag @ h": lambda h, n: tf.linalg.diag(h[:, 0]) @ h,
        "scatter_nd by position": lambda h, n: tf.scatter_nd(tf.range(n)[:, None], h, [n, 16]),
        "pad of batch": lambda h, n: (tf.pad(h, [[1, 0], [0, 0]])[:-1] + h) / 2,
        "first row written": lambda h, n: tf.tensor_scatter_nd_update(h, [[0]], h[1:2] * 2),
        "softmax of batch": lambda h, n: tf.nn.softmax(h, 0),
        "batch norm": lambda h, n: (h - mean(h, 0)) / (tf.math.reduce_std(h, 0) + 0.1),
        "centred": lambda h, n: h - mean(h, 0),
        "leave one out": lambda h, n: h - (total(h, 0) - h) / real(n - 1),
        "max of batch": lambda h, n: h / tf.reduce_max(tf.abs(h), 0),
        "norm of batch": lambda h, n: h / tf.norm(h),
        "attention among examples": lambda h, n: tf.nn.softmax(h @ turned(h)) @ h,
        "any of batch": lambda h, n: tf.where(tf.reduce_any(h > 0.5, 0), h, 2 * h),
        "pairs": lambda h, n: reshape(tf.nn.softmax(reshape(h, [-1, 2, 16]), 1), [n, 16]),
        "norm of each": lambda h, n: tf.math.l2_normalize(h, 1),
        "top of each": lambda h, n: h * tf.math.top_k(h, 3).values[:, -1:],
        "dropout": lambda h, n: tf.where(uniform([n, 16]) < 0.3, h * 0, h),
        "dropout of features": lambda h, n: h * real(uniform([16]) > 0.3),
        "noise": lambda h, n: h + normal([n, 16]),
        "noise by n": lambda h, n: h + total(normal([n])),
        "noise, batch second": lambda h, n: h + total(normal([3, n, 16]), 0),
        "noise cut": lambda h, n: h + normal([20, 16])[:n],
        "truncated": lambda h, n: h + turned(truncated([16, n], dtype=h.dtype)),
        "whole noise below n": lambda h, n: h * real(below([n, 1], maxval=n)) / 12,
        "shuffled": lambda h, n: gather(h, shuffled(tf.range(n))),
    }
)

written = tf.tensor_scatter_nd_update


@functools.cache
def table() -> Any:
    with tf.init_scope():
        rows = tf.lookup.KeyValueTensorInitializer(np.arange(5, dtype="int32"), numbers(5))
        return tf.lookup.StaticHashTable(rows, 0.0)


def named(n: Any, *labels: Any) -> Any:
    """Index vectors of each example and its labels."""
    return tf.stack([tf.stack([tf.range(n), label], 1) for label in labels], 1)


def square_of(h: Any) -> Any:
    return reshape(h, [-1, 4, 4])


def pooled(h: Any, of_all: bool) -> Any:
    image = reshape(h, [-1, 4, 4, 1])
    found = tf.nn.max_pool_with_argmax(image, 2, 2, "SAME", include_batch_in_index=of_all)
    return found[0] * real(found[1])


# Labels as indices.
losses(
    {
        "sparse labels": lambda h, y, n, k: mean(sparse_of(k, h)),
        "one_hot of labels": lambda h, y, n, k: mean(softmax_of(tf.one_hot(k, 16), h)),
        "gather_nd": lambda h, y, n, k: mean(tf.gather_nd(h * y, tf.stack([tf.range(n), k], 1))),
        "gather_nd of two": lambda h, y, n, k: mean(tf.gather_nd(h, named(n, k, k + 1)) * y[:, :2]),
        "gather_nd of others": lambda h, y, n, k: mean(tf.gather_nd(h * y, tf.stack([k, k], 1))),
        "gather_nd reversed": lambda h, y, n, k: mean(tf.gather_nd(h * y, named(n, k)[::-1])),
        "written at labels": lambda h, y, n, k: off(written(h, named(n, k), h[:, :1] * 2), y),
        "made of labels": lambda h, y, n, k: off(tf.scatter_nd(named(n, k), h[:, :1], [n, 16]), y),
        "searched": lambda h, y, n, k: mean(h * real(tf.searchsorted(tf.sort(y), h))),
        "looked up": lambda h, y, n, k: mean(each(h, y) * table().lookup(k)),
        "diagonals": lambda h, y, n, k: mean(tf.einsum("bii,bij->bj", square_of(h), square_of(y))),
        "spectra": lambda h, y, n, k: mean(tf.abs(tf.signal.rfft2d(square_of(h))) ** 2),
        "eigenvalues": lambda h, y, n, k: mean(tf.linalg.svd(square_of(h), compute_uv=False)),
        "largest, with places": lambda h, y, n, k: mean(pooled(h, False)),
        "largest, with places of all": lambda h, y, n, k: mean(pooled(h, True)),
        "flat positions": lambda h, y, n, k: mean(gather(reshape(h, [-1]), tf.range(n) * 16 + k)),
        "flat segments": lambda h, y, n, k: off(sums(h[:, 0], tf.range(n) * 9 + k, n * 9), 0.1),
        "prototypes": lambda h, y, n, k: off(h, gather(sums(h, k, 9), k)),
        "sums of classes": lambda h, y, n, k: mean(sums(each(h, y), k, 9)),
        "same classes": lambda h, y, n, k: mean(real(k[:, None] == k) * (h @ turned(h)) ** 2),
    },
    more=[whole(5, BATCH)],
)

# A permutation, constants and a rate as arguments.
losses(
    {
        "permuted": lambda h, y, n, order, *_: off(gather(h, order), y),
        "constants and rate": lambda h, y, n, order, five, rate: rate * off(h, five[2]) + five[0],
        "by index": lambda h, y, n, order, five, rate: mean(gather(h * y, tf.cast(five, "int32"))),
    },
    more=[np.arange(1, 61, 5) % 12, np.array([3.0, 1, 2, 5, 0]), np.array(0.7)],
)

# Words: examples with other axes in one, in groups, in another order, more or fewer of them.
values(
    {
        "flat words": lambda h, n, w: words(reshape(h, [n * 7, 16]) @ w, n),
        "time first": lambda h, n, w: turned(turned(h, [1, 0, 2]) @ w, [1, 0, 2]),
        "reshape, then times": lambda h, n, w: words(reshape(h, [7, n, 16]) * w[:7, None], n),
        "transposed, then flat": lambda h, n, w: words(turned(h, [1, 0, 2]), n),
        "heads in batch": lambda h, n, w: in_heads(h, n),
        "each of two": lambda h, n, w: words(tf.tanh(reshape(h, [n // 2, 2, 7, 16])), n),
        "two views before": lambda h, n, w: total(tf.stack([h, h @ w]) ** 2, 0),
        "batch twice": lambda h, n, w: tf.add(*tf.split(tf.concat([h, h**2], 0) @ w, 2)),
        "batch twice, cut": lambda h, n, w: (tf.concat([h, h @ w], 0) ** 2)[n:],
        "repeat": lambda h, n, w: mean(reshape(tf.repeat(h, 2, 0) @ w, [n, 2, 7, 16]), 1),
        "tiled": lambda h, n, w: tf.tile(h, [3, 1, 1])[n : 2 * n] @ w,
        "tiled, shifted": lambda h, n, w: tf.tile(h, [3, 1, 1])[n - 1 : 2 * n - 1] @ w,
        "einsum": lambda h, n, w: tf.einsum("bti,ij,bsj->bts", h, w, h) @ h,
        "causal": lambda h, n, w: tf.linalg.band_part(tf.ones([7, 7], h.dtype), -1, 0) @ h @ w,
        "conv1d": lambda h, n, w: tf.nn.conv1d(h, w[None], 1, "SAME"),
        "fourier": lambda h, n, w: tf.abs(tf.signal.fft(tf.complex(h, h @ w))),
        "fourier of batch": lambda h, n, w: turned(tf.abs(tf.signal.fft(turned(tf.complex(h, h))))),
        "cholesky": lambda h, n, w: tf.linalg.cholesky(h @ turned(h, [0, 2, 1]) + np.eye(7)) @ h,
        "while, zeros": lambda h, n, w: over_time(h, w, tf.zeros([n, 16], h.dtype)),
        "while, of other words": lambda h, n, w: over_time(h, w, tf.repeat(h[:1, 0], n, 0)),
        "while, first word": lambda h, n, w: over_time(h, w, h[:, 0]),
        "scan": lambda h, n, w: turned(tf.scan(tf.add, turned(h, [1, 0, 2])), [1, 0, 2]),
        "scan of batch": lambda h, n, w: tf.scan(lambda s, v: tf.tanh(s @ w + v), h),
        "map_fn": lambda h, n, w: tf.map_fn(lambda v: tf.tanh(v @ w), h),
        "halved": lambda h, n, w: again(lambda i, s: mean(s**2) > 0.01, lambda s, i: s / 2, h),
        "loop of n": lambda h, n, w: h * again(lambda i, s: i < n, lambda s, i: s + h[i], h[0]),
        "loop of three": lambda h, n, w: again(lambda i, s: i < 3, lambda s, i: tf.tanh(s @ w), h),
    },
    shape=(7, 18),
    trained=[numbers(16, 16, seed=3) / 4],
)


def words(h: Any, n: Any) -> Any:
    return reshape(h, [n, 7, 16])


def in_heads(h: Any, n: Any) -> Any:
    """Attention, where each head of an example stands for an example."""
    h = reshape(turned(reshape(h, [n, 7, 4, 4]), [0, 2, 1, 3]), [n * 4, 7, 4])
    h = tf.nn.softmax(tf.matmul(h, h, transpose_b=True)) @ h
    return words(turned(reshape(h, [n, 4, 7, 4]), [0, 2, 1, 3]), n)


def again(goes_on: Any, turn: Any, start: Any) -> Any:
    return tf.while_loop(goes_on, lambda i, s: (i + 1, turn(s, i)), (0, start))[1]


def over_time(h: Any, w: Any, state: Any) -> Any:
    """Every state of a loop over words, which reads them from a list and writes to another."""
    inputs = tf.TensorArray(h.dtype, 7).unstack(turned(h, [1, 0, 2]))

    def body(t, state, states):
        state = tf.tanh(state @ w + inputs.read(t))
        return t + 1, state, states.write(t, state)

    start = (0, state, tf.TensorArray(h.dtype, 7))
    return turned(tf.while_loop(lambda t, *_: t < 7, body, start)[2].stack(), [1, 0, 2])


def two_at_once(h: Any, n: Any) -> Any:
    parts = tf.experimental.Optional.from_value((h, total(h, 1))).get_value()
    return parts[0] * parts[1][:, None]


values({"optional of two": two_at_once})


# What a loop makes at each turn.
TURNS: dict[str, Callable[..., Any]] = {
    "ones": lambda s, i, n, w: s @ w + tf.ones([n, 7, 1], s.dtype),
    "noise in turn": lambda s, i, n, w: s @ w + normal([n, 7, 16], seed=[1, i]),
    "positions in turn": lambda s, i, n, w: s @ w * real(tf.range(n))[:, None, None],
    "gather in turn": lambda s, i, n, w: s + gather(s @ w, tf.range(n)),
    "order in turn": lambda s, i, n, w: s + gather(s, shuffled(tf.range(n))),
    "branch in turn": lambda s, i, n, w: tf.cond(i < 2, lambda: s @ w, lambda: s),
    "zeros in turn": lambda s, i, n, w: s + tf.cond(i < 2, lambda: 0 * s, lambda: s @ w),
    "loop in turn": lambda s, i, n, w: (
        s + in_turn(lambda s, i, n, w: s @ w + tf.ones_like(s), s, n, w)
    ),
}


def in_turn(turn: Any, h: Any, n: Any, w: Any) -> Any:
    return again(lambda i, s: i < 3, lambda s, i: tf.tanh(turn(s, i, n, w)), h)


values(
    {name: functools.partial(in_turn, turn) for name, turn in TURNS.items()},
    shape=(7, 18),
    trained=[numbers(16, 16, seed=3) / 4],
)

# Losses that a loop adds up.
SUMS: dict[str, Callable[..., Any]] = {
    "losses in turn": lambda s, loss: s + loss,
    "losses and a number": lambda s, loss: 0.9 * s + loss + 0.1,
    "losses, the largest": tf.maximum,
    "losses, product": tf.multiply,
}


def adding(turn: Any) -> Callable[..., Any]:
    def loss(h, y, n):
        return again(lambda i, s: i < 7, lambda s, i: turn(s, off(h[:, i], y[:, i])), real(3.0))

    return loss


losses({name: adding(turn) for name, turn in SUMS.items()}, shape=(7, 18))

# Branches, one of which runs: of examples, of what is the same for all of them or a sum over them.
BRANCHES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "zeros": (lambda h, y, n: off(2 * h, y), lambda h, y, n: off(tf.zeros([n, 16], h.dtype), h)),
    "loss or number": (lambda h, y, n: off(h, y), lambda h, y, n: tf.constant(3.0, h.dtype)),
    "two losses": (lambda h, y, n: off(h, y), lambda h, y, n: mean(h * y) + 0.1),
    "noise": (lambda h, y, n: off(h * normal([n, 16]), y), lambda h, y, n: off(h, y)),
    "positions": (lambda h, y, n: off(h, y), lambda h, y, n: mean(each(h, y) * real(tf.range(n)))),
    "table": (lambda h, y, n: off(h + numbers(12, 16), y), lambda h, y, n: off(h, y)),
    "gather": (lambda h, y, n: off(gather(h * y, tf.range(n)), y), lambda h, y, n: off(h, y)),
    "centred": (lambda h, y, n: off(h - mean(h, 0), y), lambda h, y, n: off(h, y)),
}


def branching(first: Any, second: Any) -> Callable[..., Any]:
    def loss(h, y, n, flag):
        return tf.cond(flag > 0, lambda: first(h, y, n), lambda: second(h, y, n))

    return loss


def value_branching(h: Any, n: Any, flag: Any) -> Any:
    """Values of two branches, within a case."""
    noise = normal([n, 16])
    zeros = tf.switch_case(tf.cast(flag, "int32"), [lambda: h * noise, lambda: 0 * h, lambda: h])
    return h + tf.cond(flag > 0, lambda: zeros, lambda: tf.ones([n, 16], h.dtype))


for flag in (0.0, 1.0, 2.0):
    pairs = {f"{name}, {flag}": branching(*pair) for name, pair in BRANCHES.items()}
    losses(pairs if flag < 2 else {}, more=[np.array(flag)])
    values({f"case {flag}": value_branching}, more=[np.array(flag)])


# Axes as long as the batch, or twice as long, that are not the batch's.
square: dict[str, Any] = {
    "transposed square": lambda h, n: (h + turned(h)) / 2,
    "square, reshaped": lambda h, n: reshape(reshape(h, [-1]), [12, n]) * reshape(h, [n, 12]),
    "eye behind": lambda h, n: h @ tf.eye(12, dtype=h.dtype),
    "feature weights": lambda h, n: h * real(tf.range(tf.shape(h)[1])),
    "means of other axis": lambda h, n: h - mean(h, 0)[:, None],
    "diagonal": lambda h, n: h * tf.linalg.diag_part(h @ turned(h))[:, None],
    "diagonal added": lambda h, n: h + tf.eye(n, dtype=h.dtype),
    "divided by width": lambda h, n: h * 12 / real(tf.shape(h)[1]),
}
values(square, shape=(12,), width=12)
cube: dict[str, Any] = {
    "words as many": lambda h, n: h @ turned(h, [0, 2, 1]) @ h,
    "words and examples changed": lambda h, n: (h + turned(h, [1, 0, 2])) / 2,
    "softmax of words": lambda h, n: tf.nn.softmax(h, 1) * real(tf.shape(h)[1]),
}
values(cube, shape=(12, 24), width=24)

# Words that are there, of some; what depends on the longest.
losses(
    {
        "mean of words": lambda h, y, n, size: total(there(size) * h * y) / total(there(size)),
        "mean of means": lambda h, y, n, k: mean(total(there(k) * h * y, 1) / real(k[:, None])),
        "reversed lengths": lambda h, y, n, size: off(tf.reverse_sequence(h, size, 1, 0), y),
        "last word": lambda h, y, n, size: off(gather(h, size - 1, batch_dims=1), y[:, 0]),
        "cut to longest": lambda h, y, n, size: mean(h[:, : longest(size)] ** 2),
        "ramp to longest": lambda h, y, n, size: mean(each(h, y) * real(size / longest(size))),
        "words in a row": lambda h, y, n, k: mean(tf.boolean_mask(h * y, there(k)[..., 0] > 0)),
        "loop to longest": lambda h, y, n, k: mean(
            again(lambda i, s: i < longest(k), lambda s, i: tf.tanh(s + h[:, i]), y[:, 0])
        ),
    },
    shape=(7, 18),
    more=[whole(6, BATCH) + 1],
)


def there(size: Any) -> Any:
    return tf.sequence_mask(size, 7, tf.float64)[:, :, None]


# Results of every kind beside the loss.
losses(
    {
        "results each": lambda h, y, n: (off(h, y), h, each(h, y), tf.argmax(h, 1), h[:, 0] > 0),
        "results of size": lambda h, y, n: (off(h, y), n, tf.shape(h), tf.range(n), real(n) / 2),
        "results of all": lambda h, y, n: (off(h, y), total(h, 0), tf.reduce_max(h), h[::-1]),
        "empty results": lambda h, y, n: (off(h, y), h[:, :0], tf.zeros([0, 3]), h[:0]),
        "results by chance": lambda h, y, n: (off(h, y), normal([n, 16]), normal([16, n])),
    }
)

# States that a step keeps: counters, averages, a memory of examples.
losses(
    {
        "counter": lambda h, y, n, c, m: (off(h, y), c.assign_add(real(n))),
        "rate by counter": lambda h, y, n, c, m: off(h, y) / (c.assign_add(real(n)) + 1),
        "total": lambda h, y, n, c, m: (off(h, y), c.assign_add(total(h))),
        "average": lambda h, y, n, c, m: (off(h, y), c.assign(0.9 * c + 0.1 * mean(h))),
        "average in use": lambda h, y, n, c, m: off(h - c.assign(0.9 * c + 0.1 * mean(h)), y),
        "state of each": lambda h, y, n, c, m: off(m.assign(tf.tanh(h + m)), y),
        "state of others": lambda h, y, n, c, m: (off(h + tf.reverse(m, [0]), y), m.assign(h)),
        "queue": lambda h, y, n, c, m: off(h, mean(m.assign(tf.concat([m[3:], h[:3]], 0)))),
    },
    kept=[np.array(0.0), numbers(BATCH, 16, seed=6)],
)

# What becomes of gradients before they are used.
RULES: dict[str, Callable[..., Any]] = {
    "clipped together": lambda all, n: tf.clip_by_global_norm(all, 0.01)[0],
    "clipped one by one": lambda all, n: [tf.clip_by_norm(g, 0.01) for g in all],
    "gradients / n": lambda all, n: [g * 5 / real(n) for g in all],
    "noise in gradients": lambda all, n: [g + normal(g.shape) / real(n) for g in all],
}
for name, rule in RULES.items():
    losses({name: lambda h, y, n: off(h, y)}, rule=rule)


def embedding():
    """Rows of tables, whose gradients say which: one is written in place."""
    tables = [tf.Variable(numbers(30, 16)), tf.Variable(numbers(30, 16, seed=1))]

    def step(ids, y):
        with tf.GradientTape() as tape:
            h = tf.tanh(gather(tables[0], ids) + tf.nn.embedding_lookup(tables[1], ids))
            loss = off(mean(h, 1), y)
        first, second = tape.gradient(loss, tables)
        tables[0].scatter_sub(tf.IndexedSlices(0.1 * first.values, first.indices))
        descend(tables[1:], [second])
        return loss

    return step, (whole(30, BATCH, 5), numbers(BATCH, 16))


def images():
    kernels = [tf.Variable(numbers(3, 3, 2, 6) / 4), tf.Variable(numbers(3, 3, 6, 2) / 4)]

    def step(x):
        with tf.GradientTape() as tape:
            h = tf.nn.conv2d(x, kernels[0], 2, "SAME")
            h = tf.nn.avg_pool2d(tf.nn.relu(h), 2, 1, "SAME") + mean(h, [1, 2], True)
            h = tf.nn.depthwise_conv2d(h, kernels[1], [1] * 4, "SAME")
            h = tf.nn.conv2d_transpose(tf.tanh(h)[..., :6], kernels[0], tf.shape(x), 2)
            loss = off(h, x)
        descend(kernels, tape.gradient(loss, kernels))
        return loss, h

    return step, (numbers(BATCH, 8, 8, 2),)


def second_order(penalty: Callable[..., Any]) -> Any:
    """A gradient within the loss."""
    weights = [tf.Variable(numbers(20, 16) / 4), tf.Variable(numbers(16, 1, seed=3) / 4)]

    def step(x):
        with tf.GradientTape() as tape:
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                opinion = tf.tanh(x @ weights[0]) @ weights[1]
                loss = mean(opinion**2)
            loss += penalty(inner, opinion, loss, x, weights)
        descend(weights, tape.gradient(loss, weights))
        return loss

    return step, (numbers(BATCH, 20),)


penalties: dict[str, Callable[..., Any]] = {
    "slope of each": lambda t, o, loss, x, w: mean((tf.norm(t.gradient(o, x), axis=1) - 1) ** 2),
    "slope of loss": lambda t, o, loss, x, w: total(t.gradient(loss, x) ** 2),
    "norm of gradient": lambda t, o, loss, x, w: total(t.gradient(loss, w[0]) ** 2),
}


def clipped_each(jacobian: bool) -> Any:
    """Gradients of every example are clipped before their mean is used."""
    weight = tf.Variable(numbers(20, 16) / 4)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = each(x @ weight, y)
        by_hand = x[:, :, None] * (x @ weight - y)[:, None] / 8
        gradients = tape.jacobian(loss, weight) if jacobian else by_hand
        weight.assign_sub(mean(tf.clip_by_norm(gradients, 0.5, [1, 2]), 0))
        return mean(loss), loss

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))


def drawn(shape_of: Callable[..., Any]) -> Any:
    """Numbers of a generator, whose state the step advances."""
    generator = tf.random.Generator.from_seed(3)
    weight = tf.Variable(numbers(20, 16) / 4)

    def step(x, y):
        with tf.GradientTape() as tape:
            chance = generator.normal(shape_of(tf.shape(x)[0]), dtype=x.dtype)
            loss = off(tf.tanh(x @ weight) + mean(chance, -1, True), y)
        descend([weight], tape.gradient(loss, [weight]))
        return loss

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))


def momentum():
    """Momentum by hand, a rate by the step, and an average of weights."""
    weight, speed, slow = (tf.Variable(numbers(20, 16) * k) for k in (0.2, 0, 1))
    steps = tf.Variable(0)

    def step(x, y):
        steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = off(tf.tanh(x @ weight), y) + 0.1 * off(tf.tanh(x @ slow), y)
        speed.assign(0.9 * speed + 0.1 * tape.gradient(loss, weight))
        weight.assign_sub(speed / (tf.norm(speed) + 0.01) / real(steps))
        slow.assign(0.9 * slow + 0.1 * weight)
        return loss, steps

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))


for name, penalty in penalties.items():
    STEPS[name] = functools.partial(second_order, penalty)
STEPS |= {
    "embedding": embedding,
    "images": images,
    "momentum": momentum,
    "clipped for each": functools.partial(clipped_each, False),
    "clipped for each, jacobian": functools.partial(clipped_each, True),
    "generator of each": functools.partial(drawn, lambda n: [n, 16]),
    "generator of features": functools.partial(drawn, lambda n: [16]),
}

# Steps in which a gradient or a result of an example needs values of other examples.
_OTHERS = """
rows of a memory too; masked by h; square of mean; root of mean; logsumexp of batch; cond on mean;
variance of batch; correlation; hardest three; h[1:] - h[:-1]; halves; eye as labels; range as
labels; cumsum; reverse; sort; argsort; top of batch; mixup; gather(h, n - 1 - range(n));
gather(h, chance); triangle @ h; pad of batch; first row written; softmax of batch; batch norm;
centred; leave one out; max of batch; norm of batch; attention among examples; any of batch;
pairs; shuffled; prototypes; same classes; permuted; transposed, then flat; tiled, shifted;
fourier of batch; while, of other words; scan of batch; halved; loop of n; transposed square;
means of other axis; words and examples changed; results of all; average in use; state of others;
queue; norm of gradient; gather_nd of others; gather_nd reversed;
largest, with places of all; order in turn; losses, the largest; losses, product; centred, 0.0;
centred, 1.0
"""
OTHER_EXAMPLES = tuple(" ".join(_OTHERS.split()).split("; "))
