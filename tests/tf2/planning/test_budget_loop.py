"""For which budget the solver is asked next; pure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.tf2.planning.budget_loop import TUNING, Attempt, could_save, next_target

FIXED, LIMIT = 10_000_000, 110_000_000
ACTIVATIONS = LIMIT - FIXED
STEP = int(TUNING.close_share * ACTIVATIONS)


def share(part):
    """So much of the activation budget, on top of what is fixed."""
    return FIXED + int(part * ACTIVATIONS)


def tried(target, peak, *, asked=None, recomputes=True):
    """A plan for a share of the activation budget that asks for all of it, unless said, and takes
    another; None for no plan."""
    if peak is None:
        return Attempt(share(target), None, None)
    return Attempt(
        share(target), share(target if asked is None else asked), share(peak), recomputes
    )


def ran_out(target):
    return Attempt(share(target), share(target), None)


def searched(limit, fixed, took):
    """All that is tried until no other plan is worth asking for; `took(target)` is what comes of
    it."""
    found = []
    while (target := next_target(limit, fixed, found)) is not None:
        assert len(found) < 100, "it does not end"
        found.append(took(target))
    return found


def test_the_first_plan_leaves_a_little_to_the_allocator():
    assert next_target(LIMIT, FIXED, []) == LIMIT - TUNING.first_reserve * ACTIVATIONS


def test_what_is_asked_for_is_scaled_towards_the_limit():
    """By what the last plan took for each byte that it asked for, what is fixed left out."""
    aim = 1 - TUNING.unused_share / 2
    for target, asked, took in ((0.95, 0.95, 1.1), (0.95, 0.85, 1.05), (0.8, 0.8, 0.9)):
        assert next_target(LIMIT, FIXED, [tried(target, took, asked=asked)]) == pytest.approx(
            share(asked * aim / took), abs=2
        )


def test_each_plan_leaves_more_than_the_one_before():
    plans = [tried(0.95 - 0.02 * k, 1.2) for k in range(4)]
    for k in range(1, 5):
        last, aim = 0.95 - 0.02 * (k - 1), 1 - k * TUNING.unused_share / 2
        found = next_target(LIMIT, FIXED, plans[:k])
        assert found == pytest.approx(share(last * aim / 1.2), abs=2)


def test_what_a_cheaper_plan_could_save_follows_from_what_is_unused():
    """In the terms of what the bytes saved so far cost, and no more than plans above the limit
    say."""
    saved = could_save(12.0, 10.0, [], 5, 100)
    assert saved == pytest.approx(TUNING.steepness * 2.0 * 5 / 100)
    assert could_save(12.0, 10.0, [11.99], 5, 100) == pytest.approx(0.01)
    assert could_save(12.0, 10.0, [11.0], 10**6, 100) == pytest.approx(1.0)
    assert could_save(12.0, 10.0, [], 10**6, 1) == pytest.approx(2.0), "all of it"
    assert could_save(12.0, 10.0, [13.0], 5, 100) == 0.0
    assert could_save(10.0, 10.0, [], 5, -3) == 0.0


def test_scaling_stays_between_what_fits_and_what_does_not():
    assert next_target(LIMIT, FIXED, [tried(0.9, 0.8), tried(0.95, 2.0)]) == share(0.9) + STEP
    assert next_target(LIMIT, FIXED, [tried(0.95, 2.0), tried(0.9, 0.1)]) == share(0.95) - STEP
    assert next_target(LIMIT, FIXED, [tried(0.95, 0.1)]) == LIMIT + 1 - STEP


@pytest.mark.parametrize(
    ("took", "enough"),
    [(1.0, True), (1 - 0.9 * TUNING.unused_share, True), (1 - 1.1 * TUNING.unused_share, False)],
)
def test_it_ends_where_little_is_unused(took, enough):
    assert (next_target(LIMIT, FIXED, [tried(0.9, took)]) is None) == enough


def test_it_ends_where_nothing_is_recomputed():
    assert next_target(LIMIT, FIXED, [tried(0.9, 0.5)]) is not None
    assert next_target(LIMIT, FIXED, [tried(0.9, 0.5, recomputes=False)]) is None
    assert next_target(LIMIT, FIXED, [tried(0.9, 1.5, recomputes=False)]) is not None, (
        "it does not fit"
    )


def test_it_ends_after_so_many_plans_and_sooner_where_one_fits():
    over = [tried(0.95 - 0.05 * k, 1.5) for k in range(TUNING.max_plans)]
    assert next_target(LIMIT, FIXED, over[:-1]) is not None
    assert next_target(LIMIT, FIXED, over) is None
    within = [tried(0.3, 0.5), *over]
    assert next_target(LIMIT, FIXED, within[: TUNING.max_plans_once_within - 1]) is not None
    assert next_target(LIMIT, FIXED, within[: TUNING.max_plans_once_within]) is None


def test_where_there_is_no_plan_it_goes_halfway_to_the_lowest_that_takes_too_much():
    assert next_target(LIMIT, FIXED, [tried(0.5, None)]) == pytest.approx(share(0.75), abs=1)
    assert next_target(
        LIMIT, FIXED, [tried(0.8, 1.2), tried(0.9, 1.4), tried(0.5, None)]
    ) == pytest.approx(share(0.65), abs=1)
    assert next_target(
        LIMIT, FIXED, [tried(0.8, 1.2), tried(0.6, None), tried(0.5, None)]
    ) == pytest.approx(share(0.7), abs=1)


def test_where_memory_runs_out_it_goes_down_by_what_the_first_plan_leaves():
    """How much was missing is not known."""
    assert next_target(LIMIT, FIXED, [ran_out(0.8)]) == pytest.approx(
        share(0.8 - TUNING.first_reserve), abs=1
    )
    assert next_target(LIMIT, FIXED, [ran_out(0.8), ran_out(0.75)]) == pytest.approx(
        share(0.75 - TUNING.first_reserve), abs=1
    )
    assert next_target(LIMIT, FIXED, [tried(0.77, None), ran_out(0.8)]) == pytest.approx(
        share(0.77) + STEP, abs=1
    ), "not below what has no plan"
    assert next_target(LIMIT, FIXED, [ran_out(0.8), tried(0.4, None)]) == pytest.approx(
        share(0.6), abs=1
    )


def test_where_all_take_too_much_one_between_them_is_tried():
    """As other values lie in memory under a plan for more, it can take less."""
    close = [tried(0.5, None), tried(0.505, 1.1), tried(0.95, 1.2)]
    assert next_target(LIMIT, FIXED, close) == pytest.approx(share((0.505 + 0.95) / 2), abs=1)
    close += [tried(0.7275, 1.1), tried(0.84, 1.3)]
    assert next_target(LIMIT, FIXED, close) == pytest.approx(share((0.505 + 0.7275) / 2), abs=1), (
        "in the widest gap"
    )
    assert next_target(LIMIT, FIXED, [tried(0.5, 0.6), tried(0.505, 1.1)]) is None, (
        "one that fits is there"
    )


def test_a_plan_for_more_that_takes_less_is_found():
    """All take too much down to where there is no plan, but for some above."""

    def took(target):
        part = (target - FIXED) / ACTIVATIONS
        return tried(part, None if part < 0.945 else 0.99 if 0.96 < part < 0.99 else 1.2)

    found = searched(LIMIT, FIXED, took)
    least = min(each.target_bytes for each in found if each.asked_bytes)
    assert found[-1].within(LIMIT) and found[-1].target_bytes > least + 2 * STEP
    assert not any(each.within(LIMIT) for each in found[:-1])


@pytest.mark.parametrize("limit", [FIXED // 2, 1])
def test_nothing_above_the_limit_is_asked_for_where_all_of_it_is_fixed(limit):
    found = searched(limit, FIXED, lambda target: Attempt(target, None, None))
    assert all(each.target_bytes <= limit for each in found)


sizes = st.tuples(st.integers(0, 10**9), st.integers(1, 10**9))
parts = st.floats(0, 1)


@st.composite
def ways_down(draw):
    """(limit, fixed, target -> what comes of it): more memory is asked for and taken for a higher
    target, and from some target on there is a plan."""
    fixed, activations = draw(sizes)
    hopeless = draw(parts)
    rises = sorted(draw(st.lists(st.tuples(parts, parts), max_size=5)))
    first, more, asks = draw(st.floats(0, 1.5)), draw(st.floats(0, 1.5)), draw(st.floats(0.5, 1))

    def took(target):
        part = (target - fixed) / activations
        if part < hopeless:
            return Attempt(target, None, None)
        peak = first + more * part + sum(rise for start, rise in rises if part >= start)
        return Attempt(
            target,
            fixed + int(asks * part * activations),
            fixed + int(peak * activations) if peak < 3 else None,
            draw_recomputes(part),
        )

    def draw_recomputes(part):
        return part < 0.97 or bool(rises)

    return fixed + activations, fixed, took


@st.composite
def anything(draw):
    """The same, at random for each target."""
    (fixed, activations), seed = draw(sizes), draw(st.integers(0, 10**6))

    def took(target):
        chance = random.Random(seed * target)
        if chance.random() < 0.3:
            return Attempt(target, None, None)
        asked = fixed + int(chance.random() * (target - fixed))
        return Attempt(
            target,
            asked,
            None if chance.random() < 0.1 else fixed + int(chance.uniform(0, 2) * activations),
            chance.random() < 0.95,
        )

    return fixed + activations, fixed, took


@given(ways_down() | anything())
def test_whatever_plans_take_it_ends_soon_and_asks_for_nothing_twice_or_above_the_limit(problem):
    limit, fixed, took = problem
    found = searched(limit, fixed, took)
    targets = [each.target_bytes for each in found]
    assert 1 <= len(targets) <= TUNING.max_plans
    assert len(set(targets)) == len(targets)
    assert all(fixed <= target <= limit for target in targets)
    fitting = [k for k, each in enumerate(found) if each.within(limit)]
    assert not fitting or len(found) <= max(TUNING.max_plans_once_within, fitting[0] + 1)


@given(ways_down())
def test_it_gives_up_early_only_where_nothing_further_away_fits(problem):
    """Every target that is more than two steps from all that were tried has no plan, or takes too
    much, or less than one that fits."""
    limit, fixed, took = problem
    found = searched(limit, fixed, took)
    within = [each for each in found if each.within(limit)]
    if len(found) >= (TUNING.max_plans_once_within if within else TUNING.max_plans):
        return
    if any(
        not each.recomputes or limit - each.peak_bytes <= TUNING.unused_share * (limit - fixed)
        for each in within
    ):
        return
    step = max(1, int(TUNING.close_share * (limit - fixed)))
    least = max((each.target_bytes for each in within), default=fixed)
    known = [least, *(each.target_bytes for each in found)]
    for k in range(401):
        target = fixed + (limit - fixed) * k // 400
        if target > least and min(abs(target - each) for each in known) > 2 * step:
            assert not took(target).within(limit)


def test_after_a_search_without_a_plan_the_lowest_peak_that_it_reached_is_asked_for():
    """There is a plan with that peak, and three searches in between found none before."""
    failed = Attempt(share(0.95), None, None, reached_bytes=share(0.99))
    assert next_target(LIMIT, FIXED, [failed]) == share(0.99)
    again = Attempt(share(0.95), None, None, reached_bytes=share(0.95))
    assert next_target(LIMIT, FIXED, [again]) == next_target(LIMIT, FIXED, [tried(0.95, None)])


def test_no_further_search_where_the_lowest_peak_is_above_the_limit():
    def took(target):
        return Attempt(target, None, None, reached_bytes=share(1.2))

    assert len(searched(LIMIT, FIXED, took)) == 1


def test_where_a_plan_was_found_it_says_more_than_a_search_without_one():
    """What it takes is too much, and a plan for less is looked for half-way."""
    too_large = tried(0.95, 1.3, asked=0.93)
    for reached in (0.93, 1.2):
        failed = Attempt(share(0.6), None, None, reached_bytes=share(reached))
        assert next_target(LIMIT, FIXED, [too_large, failed]) == next_target(
            LIMIT, FIXED, [too_large, tried(0.6, None)]
        )
