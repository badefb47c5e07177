"""Amounts of memory: what is read, what is refused, and what people are shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import BudgetError
from checkmate.units import check_budget, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("amount", "count"),
    [
        *((1, 1), (1.5e9, 1_500_000_000), ("100", 100), ("1b", 1), ("2 KiB", 2048)),
        ("2kb", 2000),
        ("1MiB", 2**20),
        ("1 MB", 10**6),
        ("6GiB", 6 * 2**30),
        ("1.5 GB", 1_500_000_000),
        (".5tib", 2**39),
        ("1e3", 1000),
        ("  7 GB ", 7 * 10**9),
        (np.int64(5), 5),
        (np.float32(8), 8),
        (np.int8(3), 3),
    ],
)
def test_read(amount, count):
    assert parse_bytes(amount) == count
    assert type(parse_bytes(amount)) is int


@pytest.mark.parametrize(
    "amount",
    [
        *("", "GiB", "6 GiBs", "six", "-1", -1, 0, "0 GiB"),
        float("nan"),
        float("inf"),
        2**63,
        "1e30",
        True,
        None,
        [],
        "5..1",
        "1 2",
        b"1",
    ],
)
def test_refused(amount):
    with pytest.raises(BudgetError) as caught:
        parse_bytes(amount)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("amount", [0.6, "0.6", np.float64(0.6), " .6 "])
def test_a_fraction_is_asked_whether_it_is_a_share(amount):
    with pytest.raises(BudgetError, match=r"less than one byte. Did you mean '60%'\?"):
        parse_bytes(amount)
    assert parse_bytes("0.6 B") == 1


@pytest.mark.parametrize("amount", [60, "60", 60.0, np.int64(60), " 6e1"])
def test_a_budget_of_few_bytes_says_its_unit(amount):
    assert parse_bytes(amount) == 60
    with pytest.raises(BudgetError, match=r"has no unit. Did you mean '60%', '60GiB' or '60 B'\?"):
        check_budget(amount)
    for unit in ("60B", "60 B", "60%", "60GiB", 1000, "1000"):
        check_budget(unit)


@pytest.mark.parametrize(
    ("amount", "meant"), [("6G", "6GiB"), ("1.5 m", "1.5MiB"), ("auto ", "auto"), ("AUTO", "auto")]
)
def test_what_was_meant_is_offered(amount, meant):
    with pytest.raises(BudgetError, match=f"Did you mean '{meant}'"):
        check_budget(amount)


def test_a_share_needs_a_whole():
    assert parse_bytes("60%", percent_of=1000) == 600
    assert parse_bytes("12.5 %", percent_of=80) == 10
    assert parse_bytes("50%", percent_of=58) == 29
    with pytest.raises(BudgetError, match="share"):
        parse_bytes("60%")


@given(st.integers(1, 2**62))
def test_whole_numbers_are_exact(count):
    assert parse_bytes(count) == count


@given(st.integers(1, 2**50))
def test_what_is_shown_reads_back_close(count):
    shown = format_bytes(count)
    assert abs(parse_bytes(shown) - count) <= max(1, 0.006 * count)
    assert format_bytes(-count) == "-" + shown


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (2**51, "2048.00 TiB"),
    ],
)
def test_shown(count, text):
    assert format_bytes(count) == text
