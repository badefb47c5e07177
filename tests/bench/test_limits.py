"""What `bench limits` says of its rows."""

import pytest

from checkmate.bench.limits import cells, not_monotone, off_by, summary


def row(
    model="net", budget_bytes=100, peak_bytes=98, overhead=1.1, predicted_bytes=97, recomputed=3
):
    return {
        "model": model,
        "budget": "50%",
        "budget_bytes": budget_bytes,
        "peak_bytes": peak_bytes,
        "overhead": overhead,
        "predicted_bytes": predicted_bytes,
        "recomputed": recomputed,
    }


def test_a_broken_budget_is_counted_and_shown():
    within, over = row(), row(peak_bytes=101)
    assert "1 over budget" in summary([within, over])
    assert "NO" in cells(over) and "NO" not in cells(within)
    assert off_by(row(predicted_bytes=97, peak_bytes=100)) == pytest.approx(-0.03)


def test_a_model_that_could_not_be_planned_is_counted():
    assert summary(
        [row(), {"model": "net", "budget": "1%", "budget_bytes": 1, "error": "no"}]
    ).startswith("1 of 2 planned")
    assert summary([]) == "Nothing could be planned."


def test_what_is_not_monotone_is_counted_within_a_model_only():
    low, high = (
        row(budget_bytes=100, peak_bytes=98, overhead=1.2),
        row(budget_bytes=200, peak_bytes=197, overhead=1.1),
    )
    assert not_monotone([high, low]) == 0
    assert not_monotone([low, {**high, "overhead": 1.3}]) == 1
    assert not_monotone([low, {**high, "peak_bytes": 90}]) == 1
    assert not_monotone([low, {**high, "overhead": 1.3, "model": "another"}]) == 0
