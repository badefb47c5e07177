"""Amounts of memory as text, such as "6GiB" or "80%", and as a number of bytes."""

from __future__ import annotations

import numbers
import re
from typing import TypeAlias

from checkmate.errors import BudgetError

Bytes: TypeAlias = int | float | str
"""An amount of memory: a number of bytes, "6GiB", "500 MB", or a share such as "60%"."""

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power

LEAST_BARE = 1000
"""A budget of fewer bytes than this needs a unit: most often a percent sign was forgotten."""

_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(%|[a-z]*)\s*", re.IGNORECASE)


def parse_bytes(amount: Bytes, *, percent_of: int | None = None) -> int:
    """Returns `amount` as a whole number of bytes, at least one.

    Args:
      amount: A number of bytes, or text such as "6GiB", "1.5 GB", "300MB" or "60%". GiB is 2^30
        bytes, GB is 10^9.
      percent_of: The bytes that 100% stands for. Without it a percentage is refused.

    Raises:
      BudgetError: `amount` is no positive amount of memory.

    Examples:
      >>> parse_bytes("1.5 GiB"), parse_bytes("60%", percent_of=1000)
      (1610612736, 600)
    """
    # Real includes NumPy's numbers.
    if isinstance(amount, bool) or not isinstance(amount, (numbers.Real, str)):
        raise BudgetError(
            f"A budget is a number of bytes or text such as '6GiB' or '60%'; got {amount!r}."
        )
    number, unit = _read(amount) if isinstance(amount, str) else (amount, "")
    if unit == "%" and percent_of is None:
        raise BudgetError(
            f"{amount!r} is a share, and here nothing says of what. Give an amount such as '6GiB'."
        )
    if not unit and 0 < number < 1:
        raise BudgetError(
            f"{amount!r} is less than one byte. Did you mean '{_plain(100 * number)}%'?"
        )
    # A share is multiplied first, so that 50% of 58 is 29.
    amount_bytes = number * max(1, percent_of or 0) / 100 if unit == "%" else number * _UNITS[unit]
    if not 0 < amount_bytes < 2**63:  # also refuses nan and infinity
        raise BudgetError(
            f"A budget must be more than zero bytes and less than 2^63; got {amount!r}."
        )
    return max(1, int(amount_bytes))


def _read(text: str) -> tuple[float, str]:
    """Returns the number of an amount and its unit, in lower case."""
    match = _AMOUNT.fullmatch(text)
    unit = match[2].lower() if match else None
    if match is None or (unit not in _UNITS and unit != "%"):
        meant = "Write it like '6GiB', '500MB', '60%' or a number of bytes."
        if match and f"{unit}ib" in _UNITS:
            meant = f"Did you mean '{match[1]}{match[2].upper()}iB'?"
        elif text.strip().lower() == "auto":
            meant = "Did you mean 'auto'?"
        raise BudgetError(f"Cannot read {text!r} as an amount of memory. {meant}")
    return float(match[1]), match[2].lower()


def check_budget(amount: Bytes) -> None:
    """Refuses what cannot be the budget of a training step, before any work is done for it.

    Args:
      amount: As for `parse_bytes`. A share is one of something that is not known yet.

    Raises:
      BudgetError: `amount` is no positive amount of memory, or a number below `LEAST_BARE` without
        a unit.

    Examples:
      >>> check_budget("60%")
      >>> check_budget(6)
      Traceback (most recent call last):
      checkmate.errors.BudgetError: A budget of 6 has no unit. Did you mean '6%', '6GiB' or '6 B'?
    """
    parse_bytes(amount, percent_of=1 << 40)
    match = _AMOUNT.fullmatch(str(amount))
    if match and not match[2] and float(match[1]) < LEAST_BARE:
        number = _plain(float(match[1]))
        raise BudgetError(
            f"A budget of {number} has no unit. Did you mean '{number}%', '{number}GiB' or"
            f" '{number} B'?"
        )


def _plain(number: float) -> str:
    return f"{number:.10g}"


def is_share(amount: Bytes) -> bool:
    """True for a percentage.

    Args:
      amount: As for `parse_bytes`.

    Examples:
      >>> is_share("60%"), is_share("6GiB")
      (True, False)
    """
    return isinstance(amount, str) and amount.strip().endswith("%")


def shown_bytes(count: int) -> int:
    """Returns the least number of bytes, at least `count`, that `format_bytes` writes without
    rounding it below `count`.

    Args:
      count: A number of bytes.

    Examples:
      >>> shown_bytes(1610612737), parse_bytes(format_bytes(shown_bytes(1610612737)))
      (1621350154, 1621350154)
    """
    step = 1024 ** max(0, min(4, (max(1, count).bit_length() - 1) // 10))
    hundredths = count if step == 1 else -(-100 * count // step)
    while (
        found := parse_bytes(format_bytes(hundredths * step / 100 if step > 1 else hundredths))
    ) < count:
        hundredths += 1
    return found


def format_bytes(count: float) -> str:
    """Returns a number of bytes in a binary unit.

    Args:
      count: The number, which may be negative.

    Examples:
      >>> format_bytes(1610612736)
      '1.50 GiB'
    """
    sign, count = ("-" if count < 0 else ""), abs(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{sign}{count:.0f} {unit}" if unit == "B" else f"{sign}{count:.2f} {unit}"
