"""The solver that CONTRIBUTING.md writes as an example passes every law."""

import re
from pathlib import Path

import pytest
import test_laws

CONTRIBUTING = Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md"


def example():
    """The class of the fenced block that follows the mark."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    names: dict = {"__name__": "greedy"}
    exec(re.search(r"<!-- example: solver -->\n```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names["Greedy"]


@pytest.mark.parametrize(
    "law",
    [
        test_laws.test_laws_1_to_5,
        test_laws.test_law_7,
        test_laws.test_law_8,
        lambda name: test_laws.test_law_9(name, skip=2),
        test_laws.test_law_10,
        test_laws.test_fixed_bytes_change_nothing,
    ],
)
def test_law(law, monkeypatch):
    monkeypatch.setitem(test_laws.VARIANTS, "greedy", example()())
    law("greedy")
