"""The one list of options: what each public function takes of it, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

import checkmate
from checkmate.tf2.options import PlanKeywords, PlanOptions

pytestmark = pytest.mark.usefixtures("tensorflow")


def called(name, **options):
    """Calls a public function with options; it must refuse them before it looks at its model."""
    arguments = {
        "compile": [None] * 5,
        "function": [lambda x: x],
        "rematerialize": [None],
        "Rematerialize": [],
        "max_batch": [None] * 5,
    }
    return getattr(checkmate.tf2, name)(*arguments[name], **options)


ALL = ("compile", "function", "rematerialize", "Rematerialize", "max_batch")


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_option_is_refused_with_the_known_ones(name):
    with pytest.raises(TypeError, match=rf"{name}\(\) has no option 'bugdet'.*budget, .*verbose"):
        called(name, bugdet="1GiB")


@pytest.mark.parametrize(
    ("name", "option", "why"),
    [
        ("compile", {"batch_size": 8}, "input_spec"),
        ("max_batch", {"batch_size": 8}, "finds the batch size"),
        ("max_batch", {"plan": "plans"}, "each batch"),
    ],
)
def test_an_option_that_does_not_apply_is_refused_with_the_reason(name, option, why):
    with pytest.raises(TypeError, match=rf"{name}\(\) does not take {next(iter(option))}: .*{why}"):
        called(name, **option)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("option", [{"budget": "6 apples"}, {"time_limit_s": -1}])
def test_an_option_that_cannot_be_read_is_refused_before_anything_is_traced(name, option):
    with pytest.raises(checkmate.BudgetError):
        called(name, **option)


def test_editors_see_the_options_that_exist():
    declared = {each.name: each.type for each in dataclasses.fields(PlanOptions)}
    keywords = {
        name: getattr(kind, "__forward_arg__", kind)
        for name, kind in PlanKeywords.__annotations__.items()
    }
    assert keywords == declared
