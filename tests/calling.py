"""Runs `checkmate` in this process; the graph that its commands are given."""

import inspect
import json

from click.testing import CliRunner
from strategies import training_chain

from checkmate import Plan, replay
from checkmate.cli import main

GRAPH = training_chain(10, sizes=(2**20, 2**19), costs=(1.0, 3.0), fixed_bytes=2**20)
PLAIN = replay(GRAPH, Plan.keep_all(GRAPH)).peak_bytes

# Click 8.1 mixes standard error into the output unless it is told; later ones are not told.
APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def invoke(*arguments, **options):
    return CliRunner(**APART).invoke(main, [str(argument) for argument in arguments], **options)


def lines_of_json(text):
    return [json.loads(line) for line in text.splitlines()]
