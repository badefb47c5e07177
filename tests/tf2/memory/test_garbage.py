"""Garbage of planning is collected without a look at what was there before."""

import gc
import weakref

import pytest

import checkmate
from checkmate.tf2.costs.roofline import roofline
from checkmate.tf2.planning.planner import only_new_garbage

pytestmark = pytest.mark.usefixtures("tensorflow")


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self):
        self.itself = self


def test_garbage_of_the_block_is_found_in_it():
    with only_new_garbage():
        gone = weakref.ref(Cycle())
        gc.collect()
        assert gone() is None


def test_garbage_of_before_is_gone_when_the_block_begins_or_found_after_it():
    before, later = weakref.ref(Cycle()), Cycle()
    with only_new_garbage():
        assert before() is None
        gone = weakref.ref(later)
        del later
    gc.collect()
    assert gone() is None


def test_what_was_there_before_is_not_looked_at_and_is_again_after_an_error():
    there = Cycle()
    with pytest.raises(KeyError), only_new_garbage():
        assert not any(each is there for each in gc.get_objects())
        raise KeyError
    assert any(each is there for each in gc.get_objects())


def test_objects_that_the_program_froze_stay_so():
    there = Cycle()
    gc.freeze()
    try:
        with only_new_garbage():
            pass
        assert not any(each is there for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_planning_does_not_look_at_the_whole_process(tensorflow):
    looked_at = []

    def costs(traced, on_progress):
        looked_at.append(len(gc.get_objects()))
        return roofline(traced, on_progress)

    step = checkmate.tf2.function(
        lambda x: tensorflow.reduce_sum(x @ x), budget="1GiB", cost_model=costs, verbose=False
    )
    step(tensorflow.ones((64, 64)))
    assert looked_at and looked_at[0] < len(gc.get_objects()) / 2
