"""Files of strangers: what they unpack to, and what their names do to a terminal."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner

import checkmate
from checkmate import DFGraph, Op
from checkmate.core import json_files
from checkmate.errors import CheckmateError, PlanFileError
from checkmate.units import printable

EVIL = "\x1b]0;owned\x07\x1b[2J\x00\u202e\x9b"


def test_a_file_is_unpacked_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_BYTES", 1 << 20)
    path = tmp_path / "bomb.json"
    path.write_bytes(gzip.compress(b" " * (2 << 20) + b"{}"))
    with pytest.raises(PlanFileError, match=r"more than 1,048,576 bytes when it is unpacked"):
        json_files.read_json(path)
    path.write_bytes(gzip.compress(b" " * (1 << 19) + b'{"a": 1}'))
    assert json_files.read_json(path) == {"a": 1}


def test_deep_nesting_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    with pytest.raises(PlanFileError):
        json_files.read_json(path)


def test_control_characters_are_shown_as_escapes():
    assert printable(f"conv{EVIL}").isprintable()
    assert printable("Grüße, 6 * 7\nnext") == "Grüße, 6 * 7\nnext"


def test_names_of_a_file_do_not_reach_a_terminal_as_they_are(tmp_path):
    from checkmate.cli import main

    path = tmp_path / "graph.json"
    ops = (Op(f"a{EVIL}", output_bytes=3, cost=1.0), Op(f"b{EVIL}", (0,), output_bytes=4, cost=1.0))
    DFGraph(ops, outputs=(1,), name=f"net{EVIL}").save(path)
    assert "owned" in json.dumps(json.loads(path.read_text()))
    ran = CliRunner().invoke(main, ["show", str(path)])
    assert "owned" in ran.output and not set(EVIL) & set("\x1b\x07\x00\u202e\x9b") & set(ran.output)
    with pytest.raises(CheckmateError):
        checkmate.solve(DFGraph.load(path), 1)
