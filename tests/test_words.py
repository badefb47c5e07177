"""The words of the house: nouns of the field in docstrings, and none of the words that it left."""

import ast
from pathlib import Path

import pytest

import checkmate

ROOT = Path(checkmate.__file__).parent
STARTS = ("What ", "Returns what ", "How it ")
"""How a docstring does not begin: its subject is a noun."""

IDENTIFIERS = {
    "raise_anchor": "weak reference",
    "bury": "free",
    "fullest": "worst overflow",
    "taken_over": "reused input",
    "calm": "below a threshold",
    "plenty": "below a threshold",
    "Asleep": "below a threshold",
}
"""Words that no name has -> those of the field."""


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_words(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            said = ast.get_docstring(node) or ""
            assert not said.startswith(STARTS), f"{getattr(node, 'name', path)}: {said[:60]}"
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {
        node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    found = {name: IDENTIFIERS[name] for name in names if name in IDENTIFIERS}
    assert not found
