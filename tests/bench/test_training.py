"""What benchmarks share that train."""

from checkmate.bench.training import Timed, timed_in_turn


def test_pairs_are_compared_one_by_one_without_the_first():
    """Other work that slows a pair leaves its ratio as it is."""
    plain = iter([9.0, 1.0, 2.0, 10.0])
    other = iter([1.0, 1.0, 3.0, 20.0])
    found = timed_in_turn(
        3,
        lambda: Timed(next(plain), 0, 0, 0.0),
        lambda: Timed(next(other), 0, 0, 0.0),
    )
    assert found == {"plain_s": 2.0, "step_s": 3.0, "ratio_quartiles": [1.25, 1.5, 1.75]}


def test_a_peak_is_counted_from_nothing_or_from_what_rests():
    assert Timed(1.0, 100, 60, 0.5).above_resting_bytes == 40
