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

mean, total, turned, reshape, gather = (
    tf.reduce_mean,
    tf.reduce_sum,
    tf.transpose,
    tf.reshape,
    tf.gather,
)
uniform = functools.partial(tf.random.stateless_uniform, seed=[1, 2])
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


def written(maker: Callable[[], Any]) -> Callable[[], Any]:
    """A maker that is written in full."""
    STEPS[maker.__name__] = maker
    return maker


# Rows of a table at places that the number of examples tells; numbers as large as it.
values(
    {
        "t[n]": lambda h, n, t: h * t[n],
        "t[n - 1]": lambda h, n, t: h * t[n - 1],
        "t[-n]": lambda h, n, t: h * t[-n],
        "t[static n]": lambda h, n, t: h * t[h.shape[0]],
        "sum of t[n - 4:n]": lambda h, n, t: h * total(t[n - 4 : n], 0),
        "slice at n": lambda h, n, t: h * tf.slice(t, [n - 3, 0], [1, 16]),
        "t[:n]": lambda h, n, t: h + t[:n],
        "t[:static n]": lambda h, n, t: h * t[: h.shape[0]],
        "t[n:2n]": lambda h, n, t: h + t[n : 2 * n],
        "gather(t, n)": lambda h, n, t: h * gather(t, n),
        "gather(t, range(n))": lambda h, n, t: h * gather(t, tf.range(n)),
        "gather(t, cumsum)": lambda h, n, t: h * gather(t, tf.cumsum(tf.ones([n], "int32"))),
        "one_hot(n)": lambda h, n, t: h * (tf.one_hot([n], 64, dtype=h.dtype) @ t),
        "cycle of five": lambda h, n, t: h * tf.tile(t[:5], [n, 1])[:n],
        "end of a cycle": lambda h, n, t: h * tf.tile(t[:5], [n, 1])[n : 2 * n],
        "cycle of three": lambda h, n, t: h * tf.tile(t[:3], [n // 3, 1]),
        "repeat of three": lambda h, n, t: h * tf.repeat(t[:3], n // 3, axis=0),
        "tile of one": lambda h, n, t: h * tf.tile(t[:1], [n, 1]),
        "broadcast_to n": lambda h, n, t: h * tf.broadcast_to(t[3], [n, 16]),
        "fill with n": lambda h, n, t: h * tf.fill([n, 1], real(n)) / 12 + t[0],
        "column n // 4": lambda h, n, t: h * h[:, n // 4, None],
        "roll features by n": lambda h, n, t: tf.roll(h, n // 4, 1),
        "even rows": lambda h, n, t: tf.where(tf.range(n)[:, None] % 2 == 0, h, t[0]),
        "where n > 8": lambda h, n, t: tf.where(n > 8, h, 2 * h),
        "if static n > 8": lambda h, n, t: h if h.shape[0] > 8 else 2 * h,
        "clip at n": lambda h, n, t: tf.clip_by_value(4 * h, -1.0, real(n) / 10),
        "concat with memory": lambda h, n, t: tf.nn.softmax(h @ turned(tf.concat([h, t], 0)))[
            :, :16
        ],
    },
    trained=[numbers(64, 16, seed=3)],
)

# What a sum over examples is divided by, and functions of sums.
losses(
    {
        "mean": off,
        "sum": lambda h, y, n: total((h - y) ** 2) / 100,
        "sum / n": lambda h, y, n: total((h - y) ** 2) / real(n),
        "sum / static n": lambda h, y, n: total((h - y) ** 2) / h.shape[0],
        "sum / (n - 1)": lambda h, y, n: total((h - y) ** 2) / real(n - 1),
        "sum / sqrt(n)": lambda h, y, n: total(each(h, y)) / tf.sqrt(real(n)),
        "sum / size": lambda h, y, n: total((h - y) ** 2) / real(tf.size(h)),
        "rows / n": lambda h, y, n: off(h * 9 / real(n), y),
        "mean + constant": lambda h, y, n: off(h, y) + 3.0,
        "sum of each + constant": lambda h, y, n: total(each(h, y) + 0.5),
        "mean of masked": lambda h, y, n: mean(tf.boolean_mask(each(h, y), y[:, 0] > 0)),
        "masked by y": lambda h, y, n: total(tf.where(y > 0, h * y, 0)) / total(real(y > 0)),
        "masked by h": lambda h, y, n: total(tf.where(h > 0, h * y, 0)) / total(real(h > 0)),
        "/ count_nonzero": lambda h, y, n: total(h * y) / real(tf.math.count_nonzero(y > 0)),
        "divide_no_nan": lambda h, y, n: tf.math.divide_no_nan(total(h * y), real(n)),
        "weights' sum": lambda h, y, n: total(y[:, 0] ** 2 * each(h, y)) / total(y[:, 0] ** 2),
        "square of mean": lambda h, y, n: mean(h * y) ** 2,
        "product of means": lambda h, y, n: off(h, y) * mean(h**2),
        "root of mean": lambda h, y, n: tf.sqrt(off(h, y)),
        "log of sum": lambda h, y, n: tf.math.log(total((h - y) ** 2)),
        "logsumexp of batch": lambda h, y, n: mean(tf.reduce_logsumexp(h * y, 0)),
        "cond on mean": lambda h, y, n: tf.cond(mean(h) > 0, lambda: off(h, y), lambda: mean(h)),
        "cond on three": lambda h, y, n: tf.cond(
            tf.size([1]) < 3, lambda: off(h, y), lambda: mean(h)
        ),
        "cond on n": lambda h, y, n: tf.cond(n > 8, lambda: off(h, y), lambda: 2 * off(h, y)),
        "average loss": lambda h, y, n: tf.nn.compute_average_loss(each(h, y), None, 12),
        "variance of batch": lambda h, y, n: off(h, y) - mean(tf.math.reduce_variance(h, 0)),
        "correlation": lambda h, y, n: off(turned(h) @ y / real(n), np.eye(16)),
        "bilinear": lambda h, y, n: mean(turned(h) @ y),
        "distances": lambda h, y, n: mean(total((h[:, None] - h) ** 2, -1) ** 2),
        "loss of mean": lambda h, y, n: off(mean(h, 0), 0.3),
        "max of losses": lambda h, y, n: tf.reduce_max(each(h, y)),
        "hardest three": lambda h, y, n: mean(tf.math.top_k(each(h, y), 3).values),
        "positions' weights": lambda h, y, n: mean(each(h, y) * real(tf.range(n))),
        "linspace": lambda h, y, n: mean(each(h, y) * real(tf.linspace(0.0, 1, n))),
        "weights i / n": lambda h, y, n: mean(each(h, y) * real(tf.range(n)) / real(n)),
        "weights static range": lambda h, y, n: mean(each(h, y) * np.arange(12.0)),
        "first example": lambda h, y, n: off(h, y) + each(h, y)[0],
        "h[-1:]": lambda h, y, n: off(h[-1:], y[-1:]),
        "h[:5]": lambda h, y, n: off(h[:5], y[:5]),
        "h[n // 2:]": lambda h, y, n: off(h[n // 2 :], y[n // 2 :]),
        "h[::2]": lambda h, y, n: off(h[::2], y[::2]),
        "both reversed": lambda h, y, n: off(tf.reverse(h, [0]), tf.reverse(y, [0])),
        "h[1:] - h[:-1]": lambda h, y, n: off(h[1:], h[:-1]) + off(h, y),
        "halves": lambda h, y, n: mean(tf.nn.relu(0.5 + each(h[: n // 2], h[n // 2 :]))),
        "halves by split": lambda h, y, n: off(*tf.split(h, 2)) + off(h, y),
        "unstacked": lambda h, y, n: tf.add_n([tf.norm(row) for row in tf.unstack(h)[:7]]),
        "eye as labels": lambda h, y, n: mean(softmax_of(tf.eye(n, dtype=h.dtype), h @ turned(y))),
        "range as labels": lambda h, y, n: mean(sparse_of(tf.range(n), h @ turned(h))),
    }
)
softmax_of = tf.nn.softmax_cross_entropy_with_logits
sparse_of = tf.nn.sparse_softmax_cross_entropy_with_logits

# Positions in the batch, orders of examples, and statistics of the batch.
values(
    {
        "cumsum": lambda h, n: tf.cumsum(h) / 4,
        "cumsum from the end": lambda h, n: tf.cumsum(h, exclusive=True, reverse=True) / 4,
        "reverse": lambda h, n: tf.reverse(h, [0]),
        "roll": lambda h, n: tf.roll(h, 1, 0),
        "sort": lambda h, n: tf.sort(h, 0),
        "argsort": lambda h, n: gather(h, tf.argsort(h[:, 0])),
        "rank": lambda h, n: h * real(tf.argsort(tf.argsort(h[:, :1], 0), 0)),
        "top of batch": lambda h, n: h * turned(tf.math.top_k(turned(h), 5).values)[-1],
        "mixup": lambda h, n: 0.7 * h + 0.3 * tf.reverse(h, [0]),
        "gather(h, range(n))": lambda h, n: gather(h, tf.range(n)),
        "gather(h, n - 1 - range(n))": lambda h, n: gather(h, n - 1 - tf.range(n)),
        "gather(h, chance)": lambda h, n: (
            h + gather(h, uniform([n], minval=0, maxval=n, dtype="int32"))
        ),
        "eye(n) @ h": lambda h, n: tf.eye(n, dtype=h.dtype) @ h,
        "one_hot(range(n)) @ h": lambda h, n: tf.one_hot(tf.range(n), n, dtype=h.dtype) @ h,
        "triangle @ h": lambda h, n: tf.linalg.band_part(tf.ones([n, n], h.dtype), -1, 0) @ h,
        "diag @ h": lambda h, n: tf.linalg.diag(h[:, 0]) @ h,
        "pad of batch": lambda h, n: (tf.pad(h, [[1, 0], [0, 0]])[:-1] + h) / 2,
        "first row written": lambda h, n: tf.tensor_scatter_nd_update(h, [[0]], h[1:2] * 2),
        "scatter_nd by position": lambda h, n: tf.scatter_nd(tf.range(n)[:, None], h, [n, 16]),
        "softmax of batch": lambda h, n: tf.nn.softmax(h, 0),
        "batch norm": lambda h, n: (h - mean(h, 0)) / (tf.math.reduce_std(h, 0) + 0.1),
        "centred": lambda h, n: h - mean(h, 0),
        "centred, stopped": lambda h, n: h - tf.stop_gradient(mean(h, 0)),
        "leave one out": lambda h, n: h - (total(h, 0) - h) / real(n - 1),
        "max of batch": lambda h, n: h / tf.reduce_max(tf.abs(h), 0),
        "norm of batch": lambda h, n: h / tf.norm(h),
        "attention among examples": lambda h, n: tf.nn.softmax(h @ turned(h)) @ h,
        "neighbours": lambda h, n: tf.nn.conv1d(h[None], np.ones((3, 16, 16)) / 48, 1, "SAME")[0],
        "any of batch": lambda h, n: tf.where(tf.reduce_any(h > 0.5, 0), h, 2 * h),
        "median of batch": lambda h, n: h - tf.sort(h, 0)[n // 2],
        "norm of pairs": lambda h, n: reshape(
            tf.math.l2_normalize(reshape(h, [n // 2, 2, 16]), 1), [n, 16]
        ),
        "norm of each": lambda h, n: tf.math.l2_normalize(h, 1),
        "sort of each": lambda h, n: tf.sort(h, 1),
        "top of each": lambda h, n: h * tf.math.top_k(h, 3).values[:, -1:],
        "dropout": lambda h, n: tf.where(uniform([n, 16]) < 0.3, 0, h),
        "dropout of shape": lambda h, n: h * real(uniform(tf.shape(h)) > 0.3),
        "dropout of features": lambda h, n: h * real(uniform([16]) > 0.3),
        "dropout of examples": lambda h, n: h * real(uniform([n, 1]) > 0.3),
        "noise": lambda h, n: h + normal([n, 16]),
        "noise by n": lambda h, n: h + total(normal([n])),
        "noise's seed n": lambda h, n: h + normal([16], seed=[n, 2]),
        "noise, batch second": lambda h, n: h + total(normal([3, n, 16]), 0),
        "noise cut": lambda h, n: h + normal([20, 16])[:n],
        "truncated": lambda h, n: h + turned(truncated([16, n], [1, 2], dtype=h.dtype)),
        "whole noise below n": lambda h, n: (
            h * real(uniform([n, 1], minval=0, maxval=n, dtype=tf.int32)) / 12
        ),
        "shuffled": lambda h, n: gather(h, shuffle(tf.range(n), [3, 4])),
    }
)
truncated, shuffle = (
    tf.random.stateless_truncated_normal,
    tf.random.experimental.stateless_shuffle,
)

# Labels as indices.
losses(
    {
        "sparse labels": lambda h, y, n, k: mean(sparse_of(k, h)),
        "one_hot of labels": lambda h, y, n, k: mean(softmax_of(tf.one_hot(k, 16), h)),
        "gather_nd at labels": lambda h, y, n, k: (
            -mean(tf.gather_nd(tf.nn.log_softmax(h), tf.stack([tf.range(n), k], 1)))
        ),
        "gather, batch_dims": lambda h, y, n, k: mean(gather(h, k[:, None], batch_dims=1)),
        "flat positions": lambda h, y, n, k: mean(gather(reshape(h, [-1]), tf.range(n) * 16 + k)),
        "segments at flat positions": lambda h, y, n, k: mean(
            tf.math.unsorted_segment_sum(each(h, y), tf.range(n) * 16 + k, n * 16) ** 2
        ),
        "prototypes": lambda h, y, n, k: off(h, gather(tf.math.unsorted_segment_mean(h, k, 16), k)),
        "sums of classes": lambda h, y, n, k: mean(tf.math.unsorted_segment_sum(each(h, y), k, 16)),
        "same classes": lambda h, y, n, k: mean(real(k[:, None] == k) * (h @ turned(h)) ** 2),
        "number of classes": lambda h, y, n, k: off(h, y) * real(tf.size(tf.unique(k % 5)[0])),
        "counts of classes": lambda h, y, n, k: total(
            each(h, y) / gather(real(tf.math.bincount(k, minlength=16)), k)
        ),
    },
    more=[whole(16, BATCH)],
)

# A permutation, constants and a rate as arguments.
losses(
    {
        "permuted": lambda h, y, n, order, *_: off(gather(h, order), y),
        "and back": lambda h, y, n, order, *_: off(gather(gather(h, order), tf.argsort(order)), y),
        "constants and rate": lambda h, y, n, order, five, rate: rate * off(h, five[2]) + five[0],
        "examples by index": lambda h, y, n, order, five, rate: mean(
            gather(h, tf.cast(five, "int32"))
        ),
    },
    more=[np.arange(BATCH) * 5 % 12, np.array([3.0, 1, 2, 5, 0]), np.array(0.7)],
)

# Words: examples with other axes in one, in groups, in another order, more or fewer than there were.
values(
    {
        "flat words": lambda h, n, w: words(reshape(h, [n * 7, 16]) @ w, n),
        "flat words, -1": lambda h, n, w: reshape(reshape(h, [-1, 16]) @ w, [-1, 7, 16]),
        "flat words, static": lambda h, n, w: reshape(reshape(h, [84, 16]) @ w, [12, 7, 16]),
        "flat softmax": lambda h, n, w: words(tf.nn.softmax(reshape(h, [n, 112])), n),
        "time first": lambda h, n, w: turned(turned(h, [1, 0, 2]) @ w, [1, 0, 2]),
        "reshape for transpose": lambda h, n, w: words(reshape(h, [7, n, 16]) @ w, n),
        "reshape, then times": lambda h, n, w: words(reshape(h, [7, n, 16]) * w[:7, None], n),
        "transposed, then flat": lambda h, n, w: words(turned(h, [1, 0, 2]), n),
        "heads in batch": lambda h, n, w: joined(attention(heads(h, n)), n),
        "softmax of two": lambda h, n, w: words(tf.nn.softmax(reshape(h, [-1, 2, 7, 16]), 1), n),
        "each of two": lambda h, n, w: words(tf.tanh(reshape(h, [n // 2, 2, 7, 16])), n),
        "squeezed": lambda h, n, w: tf.squeeze(tf.expand_dims(h, 0) @ w, 0),
        "two views before": lambda h, n, w: total(tf.stack([h, h @ w]) ** 2, 0),
        "two views behind": lambda h, n, w: tf.reduce_max(tf.stack([h, h @ w], 1), 1),
        "batch twice": lambda h, n, w: tf.add(*tf.split(tf.concat([h, h**2], 0) @ w, 2)),
        "batch twice, cut": lambda h, n, w: (tf.concat([h, h @ w], 0) ** 2)[n:],
        "repeat": lambda h, n, w: mean(reshape(tf.repeat(h, 2, 0) @ w, [n, 2, 7, 16]), 1),
        "tiled": lambda h, n, w: tf.tile(h, [3, 1, 1])[n : 2 * n] @ w,
        "tiled, shifted": lambda h, n, w: tf.tile(h, [3, 1, 1])[n - 1 : 2 * n - 1] @ w,
        "tensordot": lambda h, n, w: tf.tensordot(h, w, 1),
        "einsum": lambda h, n, w: tf.einsum("bti,ij,bsj->bts", h, w, h) @ h,
        "einsum, batch summed": lambda h, n, w: h * tf.einsum("bti,bsi->ts", h, h)[:, :1],
        "place of word": lambda h, n, w: h + w[:7] * real(tf.range(tf.shape(h)[1]))[:, None],
        "causal": lambda h, n, w: tf.linalg.band_part(tf.ones([7, 7], h.dtype), -1, 0) @ h @ w,
        "padded words": lambda h, n, w: tf.pad(h, [[0, 0], [1, 0], [0, 0]])[:, :-1] @ w,
        "reversed words": lambda h, n, w: tf.reverse(h, [1]) @ w,
        "differences": lambda h, n, w: (h[:, 1:] - h[:, :-1])[:, 2:3] @ w,
        "conv1d": lambda h, n, w: tf.nn.conv1d(h, w[None], 1, "SAME"),
        "pool": lambda h, n, w: tf.nn.max_pool1d(h, 3, 1, "SAME") @ w,
        "depthwise": lambda h, n, w: tf.nn.depthwise_conv2d(
            h[:, None], w[:3, :, None][None], [1] * 4, "SAME"
        )[:, 0],
        "fourier": lambda h, n, w: tf.math.real(tf.signal.ifft(spectrum(h) * (1 + 2j))),
        "fourier of batch": lambda h, n, w: tf.math.real(turned(spectrum(turned(h)))),
        "cholesky": lambda h, n, w: tf.linalg.cholesky(gram(h)) @ h,
        "solve": lambda h, n, w: tf.linalg.solve(gram(h), h),
        "while": lambda h, n, w: tf.while_loop(
            lambda t, s: t < 7,
            lambda t, s: (t + 1, tf.tanh(s @ w + h[:, t])),
            (0, tf.zeros([n, 16], h.dtype)),
        )[1][:, None],
        "while, array": lambda h, n, w: turned(
            over_time(h, w, tf.zeros([n, 16], h.dtype)), [1, 0, 2]
        ),
        "while, first word": lambda h, n, w: turned(over_time(h, w, h[:, 0]), [1, 0, 2]),
        "while, divided by n": lambda h, n, w: turned(
            over_time(h / real(n), w, h[:, 0]), [1, 0, 2]
        ),
        "while, of mean": lambda h, n, w: turned(
            over_time(h, w, mean(h, [0, 1])[None] + tf.zeros([n, 1], h.dtype)), [1, 0, 2]
        ),
        "scan": lambda h, n, w: turned(
            tf.scan(lambda s, v: tf.tanh(s @ w + v), turned(h, [1, 0, 2])), [1, 0, 2]
        ),
        "scan of batch": lambda h, n, w: tf.scan(lambda s, v: tf.tanh(s @ w + v), h),
        "map_fn": lambda h, n, w: tf.map_fn(lambda v: tf.tanh(v @ w), h),
        "vectorized_map": lambda h, n, w: tf.vectorized_map(lambda v: tf.tanh(v @ w), h),
        "count by data": lambda h, n, w: (
            tf.while_loop(lambda s: mean(s**2) > 0.01, lambda s: (s / 2,), (h,))[0] @ w
        ),
        "loop of n": lambda h, n, w: (
            tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + h[i] / 9), (0, h[0]))[1] @ w
        ),
        "loop of n on all": lambda h, n, w: tf.while_loop(
            lambda i, s: i < n, lambda i, s: (i + 1, tf.tanh(s @ w)), (0, h)
        )[1],
        "recomputed": lambda h, n, w: tf.recompute_grad(lambda h: tf.tanh(h @ w) @ w)(h),
    },
    shape=(7, 18),
    trained=[numbers(16, 16, seed=3) / 4],
)


def words(h: Any, n: Any) -> Any:
    return reshape(h, [n, 7, 16])


def gram(h: Any) -> Any:
    return h @ turned(h, [0, 2, 1]) + tf.eye(7, dtype=h.dtype)


def spectrum(h: Any) -> Any:
    return tf.signal.fft(tf.cast(h, tf.complex128))


def heads(h: Any, n: Any) -> Any:
    return reshape(turned(reshape(h, [n, 7, 4, 4]), [0, 2, 1, 3]), [n * 4, 7, 4])


def attention(h: Any) -> Any:
    return tf.nn.softmax(tf.matmul(h, h, transpose_b=True)) @ h


def joined(h: Any, n: Any) -> Any:
    return words(turned(reshape(h, [n, 4, 7, 4]), [0, 2, 1, 3]), n)


def over_time(h: Any, w: Any, state: Any) -> Any:
    """Every state of a loop over words, which reads them from a list and writes to another."""
    inputs = tf.TensorArray(h.dtype, 7).unstack(turned(h, [1, 0, 2]))

    def body(t, state, states):
        state = tf.tanh(state @ w + inputs.read(t))
        return t + 1, state, states.write(t, state)

    start = (0, state, tf.TensorArray(h.dtype, 7))
    return tf.while_loop(lambda t, *_: t < 7, body, start)[2].stack()


# Axes as long as the batch, or twice as long, that are not the batch's.
square: dict[str, Any] = {
    "transposed square": lambda h, n: (h + turned(h)) / 2,
    "square, reshaped": lambda h, n: (
        reshape(reshape(h, [-1]), [12, 12]) + reshape(turned(h), [n, 12])
    ),
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
        "mean of words": lambda h, y, n, size: (
            total(there(size) * (h - y) ** 2) / total(there(size))
        ),
        "mean of means": lambda h, y, n, size: mean(
            total(there(size) * h * y, [1, 2]) / real(size)
        ),
        "reversed lengths": lambda h, y, n, size: off(tf.reverse_sequence(h, size, 1, 0), y),
        "last word": lambda h, y, n, size: off(gather(h, size - 1, batch_dims=1), y[:, 0]),
        "cut to longest": lambda h, y, n, size: mean(h[:, : tf.reduce_max(size)] ** 2),
        "ramp to longest": lambda h, y, n, size: mean(
            each(h, y) * real(size / tf.reduce_max(size))
        ),
        "words in a row": lambda h, y, n, size: mean(
            tf.boolean_mask(h * y, there(size)[..., 0] > 0)
        ),
        "loop to longest": lambda h, y, n, size: off(
            tf.while_loop(
                lambda t, s: t < tf.reduce_max(size),
                lambda t, s: (t + 1, tf.tanh(s + h[:, t])),
                (0, tf.zeros([n, 16], h.dtype)),
            )[1],
            y[:, 0],
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
        "results of all": lambda h, y, n: (off(h, y), total(h, 0), tf.reduce_max(h), h[3], h[::-1]),
        "empty results": lambda h, y, n: (off(h, y), h[:, :0], tf.zeros([0, 3]), h[:0]),
        "results by chance": lambda h, y, n: (off(h, y), normal([n, 16]), normal([16, n])),
        "results squared": lambda h, y, n: (off(h, y), h @ turned(h), turned(h)),
        "correct ones": lambda h, y, n: (
            off(h, y),
            tf.math.count_nonzero(h > y),
            n,
            mean(real(h > y)),
        ),
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
        "largest": lambda h, y, n, c, m: (off(h, y), c.assign(tf.maximum(c, tf.reduce_max(h)))),
        "state of each": lambda h, y, n, c, m: off(m.assign(tf.tanh(h + m)), y),
        "state read": lambda h, y, n, c, m: (off(h + m, y), m.assign_add(h)),
        "state of others": lambda h, y, n, c, m: (off(h + tf.reverse(m, [0]), y), m.assign(h)),
        "memory's row": lambda h, y, n, c, m: (off(h, y), m.scatter_nd_update([[2]], h[:1])),
        "queue": lambda h, y, n, c, m: (off(h, mean(m, 0)), m.assign(tf.concat([m[3:], h[:3]], 0))),
    },
    kept=[np.array(0.0), numbers(BATCH, 16, seed=6)],
)

# What becomes of gradients before they are used.
RULES: dict[str, Any] = {
    "clipped together": lambda gradients, n: tf.clip_by_global_norm(gradients, 0.01)[0],
    "clipped one by one": lambda gradients, n: [tf.clip_by_norm(g, 0.01) for g in gradients],
    "gradients / n": lambda gradients, n: [g * 5 / real(n) for g in gradients],
    "signs": lambda gradients, n: [tf.sign(g) for g in gradients],
    "noise in gradients": lambda gradients, n: [g + normal(g.shape) / real(n) for g in gradients],
    "all or none": lambda gradients, n: [tf.where(tf.norm(g) < 1, g, 0) for g in gradients],
}
for name, rule in RULES.items():
    losses({name: lambda h, y, n: off(h, y)}, rule=rule)


@written
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


@written
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
for name, penalty in penalties.items():
    STEPS[name] = functools.partial(second_order, penalty)


def clipped_each(jacobian: bool) -> Any:
    """Gradients of every example are clipped before their mean is used."""
    weight = tf.Variable(numbers(20, 16) / 4)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = each(x @ weight, y)
        if jacobian:
            gradients = tape.jacobian(loss, weight)
        else:
            gradients = x[:, :, None] * (x @ weight - y)[:, None] / 8
        weight.assign_sub(mean(tf.clip_by_norm(gradients, 0.5, [1, 2]), 0))
        return mean(loss), loss

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))


STEPS["clipped for each"] = functools.partial(clipped_each, False)
STEPS["clipped for each, jacobian"] = functools.partial(clipped_each, True)


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


STEPS["generator of each"] = functools.partial(drawn, lambda n: [n, 16])
STEPS["generator of features"] = functools.partial(drawn, lambda n: [16])


@written
def momentum():
    """Adam by hand, a rate by the step, and weights' averages."""
    weight, first, second, slow = (tf.Variable(numbers(20, 16) * k) for k in (0.2, 0, 0, 1))
    steps = tf.Variable(0)

    def step(x, y):
        steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = off(tf.tanh(x @ weight), y) + 0.1 * off(tf.tanh(x @ slow), y)
        gradient = tape.gradient(loss, weight)
        first.assign(0.9 * first + 0.1 * gradient)
        second.assign(0.99 * second + 0.01 * gradient**2)
        weight.assign_sub(0.1 * first / (tf.sqrt(second) + 0.01) / real(steps))
        slow.assign(0.9 * slow + 0.1 * weight)
        return loss, steps

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))


@written
def accumulated():
    """Gradients are summed, and used in every second step."""
    weight, sums = (tf.Variable(numbers(20, 16) * k) for k in (0.2, 0))
    seen = tf.Variable(0)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = total(each(tf.tanh(x @ weight), y))
        sums.assign_add(tape.gradient(loss, weight))
        seen.assign_add(tf.shape(x)[0])
        used = real(seen % 24 == 0)
        weight.assign_sub(used * sums / real(seen))
        sums.assign((1 - used) * sums)
        return loss

    return step, (numbers(BATCH, 20), numbers(BATCH, 16))
