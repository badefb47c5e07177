"""The largest batch that fits, in few questions."""

from __future__ import annotations

from collections.abc import Callable

HUNDREDTH = 0.01
"""Closer than predictions on paper are to the real allocator."""


def largest_fitting(
    fits: Callable[[int], bool], largest: int, *, known: int = 0, share: float = HUNDREDTH
) -> int:
    """Returns the largest number up to `largest` that fits, to about a share of it, when all below
    it do; `known` fits or is 0."""
    low, high = known, max(1, 2 * known)
    while high <= largest and fits(high):
        low, high = high, 2 * high
    high = min(high, largest + 1)
    return _bisected(fits, low, high, share)


def largest_near(
    fits: Callable[[int], bool],
    guess: int,
    largest: int,
    *,
    known: int,
    share: float = HUNDREDTH,
) -> int:
    """Returns the same as `largest_fitting`, in few questions where it is near a guess."""
    step = max(1, guess // 64)
    if fits(guess):
        low, high = guess, guess + step
        while high <= largest and fits(high):
            step *= 2
            low, high = high, high + step
        high = min(high, largest + 1)
    else:
        low, high = max(known, guess - step), guess
        while low > known and not fits(low):
            step *= 2
            low, high = max(known, low - step), low
    return _bisected(fits, low, high, share)


TENTH = 0.1
"""As close as the largest batch in slices is found, each of which is planned for real."""


def largest_in_slices(
    fits: Callable[[int], bool], whole: int, largest: int, count: int | str
) -> int:
    """Returns the largest batch that fits in slices, to about a tenth; 0 for none.

    Args:
      whole: The largest that fits without.
      count: How many slices; with "auto" any number.
    """
    if count == "auto":
        return largest_fitting(fits, largest, known=whole, share=TENTH)
    times = int(count)
    most = largest // times
    if not whole or not most:
        return 0
    return times * largest_near(
        lambda size: fits(times * size), min(whole, most), most, known=0, share=TENTH
    )


def _bisected(fits: Callable[[int], bool], low: int, high: int, share: float) -> int:
    """The largest number that fits, to about a share of it; `low` does and `high` does not."""
    while high - low > max(1, int(low * share)):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
