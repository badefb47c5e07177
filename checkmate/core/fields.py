"""Formats and fields of graph and plan files: what is allowed, and one line for each mistake.

The files in `schemas/` say the same as JSON schemas, for other programs; tests hold readers and
schemas to the same answers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from checkmate.core.json_files import read_json
from checkmate.errors import PlanFileError

GRAPH_FORMAT, PLAN_FORMAT = "checkmate-graph", "checkmate-plan"
VERSION = 1
"""Of both formats. Earlier versions are read, too; there are none yet."""

MOST_SHOWN = 60
"""Characters of a value that a message shows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a field may have, in words and as a test."""

    expected: str
    allows: Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    """True for a whole number, 0 or more and below 2^63, also written with a point."""
    return type(value) in (int, float) and 0 <= value < 2**63 and value == int(value)


def is_number(value: Any) -> bool:
    """True for a number, 0 or more, that a float can hold."""
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


TEXT = Kind("text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: type(value) in (bool, int) and value in (0, 1))
NUMBER = Kind("a finite number, 0 or more,", is_number)
BYTES = Kind("a whole number of bytes, 0 or more and below 2^63,", is_whole)
COUNT = Kind("a whole number, 1 or more,", lambda value: is_whole(value) and value >= 1)
LIST = Kind("a list", lambda value: isinstance(value, list))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
INDICES = Kind(
    "a list of numbers of ops",
    lambda value: isinstance(value, list) and all(type(i) is int and i >= 0 for i in value),
)

TEXTS = Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
)


def one_of(*texts: str) -> Kind:
    """One of a few texts."""
    return Kind(" or ".join(map(shown, texts)), lambda value: value in texts)


_REQUIRED: Final = object()


def field(
    data: Mapping[str, Any], key: str, kind: Kind, where: object, default: Any = _REQUIRED
) -> Any:
    """Returns a field of an object, or the default where there is none. Raises `PlanFileError` with
    `where`, the file and the place in it, for a value that is not allowed."""
    if key in data:
        if kind.allows(data[key]):
            return data[key]
        raise refusal(where, f"{key} is {shown(data[key])}", kind.expected)
    if default is _REQUIRED:
        raise refusal(where, f"{key} is missing", kind.expected)
    return default


def refusal(where: object, found: str, expected: str) -> PlanFileError:
    """The error for a mistake in a file."""
    return PlanFileError(f"{where}: {found}; {expected} was expected.")


def shown(value: Any) -> str:
    """A value as it stands in the file, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def read_format(path: str | os.PathLike, wanted: str) -> dict[str, Any]:
    """Returns the contents of a file of this format. A graph may be without format and version, as
    people write it. Raises `PlanFileError` for a file that is none, or of another version."""
    data = read_json(path)
    is_graph = wanted == GRAPH_FORMAT or "nodes" in data
    found = data.get("format", GRAPH_FORMAT if is_graph else None)
    if found == PLAN_FORMAT != wanted:
        raise PlanFileError(f"{path} is a plan{_its_graph(path, data)}")
    if found == GRAPH_FORMAT != wanted:
        raise PlanFileError(
            f"{path} is a graph, and a plan was expected. `checkmate solve {path} -o .` makes one."
        )
    if found != wanted:
        raise refusal(path, f"format is {shown(found)}", shown(wanted))
    version = field(data, "version", COUNT, path, VERSION if wanted == GRAPH_FORMAT else _REQUIRED)
    if version > VERSION:
        raise PlanFileError(
            f"{path}: version is {shown(version)}, and this library reads versions up to {VERSION}."
            " Upgrade Checkmate, or make the file again."
        )
    return data


def graph_file_of(path: str | os.PathLike, data: Mapping[str, Any]) -> Path | None:
    """The graph file that a plan file names, relative to its own folder; None if it names none."""
    named = field(data, "graph_file", TEXT, path, "")
    return Path(path).parent / named if named else None


def _its_graph(path: str | os.PathLike, data: Mapping[str, Any]) -> str:
    graph_file = graph_file_of(path, data)
    if graph_file is None:
        return " and names no graph file; a graph was expected. DFGraph.save writes one."
    lost = "" if graph_file.exists() else ", which is not there. DFGraph.save writes one"
    return f"; its graph is {graph_file}{lost}."
