"""`bench zoo`: an installed wheel, which leaves the zoo's models out, says so."""

import sys

import pytest

from checkmate.bench import zoo
from checkmate.errors import CheckmateError


def test_a_wheel_says_that_it_has_no_zoo(tensorflow, monkeypatch):
    package = "checkmate.bench.zoo_models"
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(CheckmateError, match="checkout of the repository"):
        zoo.models()
