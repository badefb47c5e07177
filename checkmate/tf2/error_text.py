"""An error of TensorFlow or Keras in a sentence: without colours, without the traceback
of traced code, without the arguments of the calls on the way; and what a shape in the place of a
spec was meant to be."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^ +(\w+(?:Error|Exception)): ", re.MULTILINE)
"""Where the error begins in what AutoGraph says: below the lines of the traced code."""
_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in ', re.MULTILINE)
_CALL = re.compile(r"Exception encountered when calling \S+\.\s*\n")
_ARGUMENTS = re.compile(r"\n\s*Arguments received by .*", re.DOTALL)
_CREATED = re.compile(r"(\{\{node [^}]*\}\})?\s*The op is created at:.*", re.DOTALL)
_FUNCTION = re.compile(r"(__inference_\w+)\[[^\]]*\]")
_NODE = re.compile(r"'\{\{node [^}]*\}\} = (\w+)\[.*?\]\(.*?\)'")
_GENERATED = re.compile(r"(?:\w+\.<locals>\.)*tf__(?=\w)")
"""What AutoGraph puts before the name of a function."""
_PLAIN = ("ValueError", "TypeError", "TraceError", "InvalidArgumentError")
"""Errors whose message says all: their name is left out."""

_OTHERS = ("site-packages", "dist-packages", "__autograph_generated_file")
_HERE = str(Path(__file__).parents[1])


class Said(NamedTuple):
    """An error as text: the name of its class, of the error in traced code where it is one, and one
    line with the place in the user's own code where that is known."""

    kind: str
    text: str


def said(error: BaseException) -> Said:
    """The text of an error raised by TensorFlow, by Keras, or by code they call."""
    text, kind, place = _COLOUR.sub("", str(error)), type(error).__name__, ""
    raised = list(_RAISED.finditer(text)) if "in user code:" in text else []
    if raised:
        frames = [
            (file, line)
            for file, line in _FRAME.findall(text)
            if not file.startswith(_HERE) and not any(other in file for other in _OTHERS)
        ]
        place = f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""
        kind, text = raised[-1][1], textwrap.dedent(text[raised[-1].end() :])
    text = _CREATED.sub("", _FUNCTION.sub(r"\1", text))
    text = _NODE.sub(r"\1", _ARGUMENTS.sub("", _CALL.sub("", text)))
    text = _GENERATED.sub("", " ".join(text.split()).removesuffix("."))
    if kind not in _PLAIN:
        text = f"{kind}: {text}" if text else kind
    return Said(kind, f"{text}{place}.")


def spec_meant(value: Any) -> str:
    """The spec that was meant by the first shape in a nest of specs; "" without a shape in it."""
    if isinstance(value, dict):
        value = list(value.values())
    if type(value).__name__ == "TensorShape":
        return f"tf.TensorSpec({tuple(value)})"
    if not isinstance(value, (tuple, list)):
        return ""
    sides = [side for side in value if side is not None]
    if sides and all(type(side) is int or isinstance(side, np.integer) for side in sides):
        return f"tf.TensorSpec({tuple(value)})"
    return next(filter(None, map(spec_meant, value)), "")
