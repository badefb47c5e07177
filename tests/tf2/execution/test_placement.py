"""Where the ops of a planned step run, on a machine with several devices."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import found, started

from checkmate.tf2.graph.graph_writer import place


@pytest.mark.slow
def test_all_that_is_planned_runs_on_the_device_that_the_step_names():
    """The second of two devices. Ops that the plan adds name none by themselves, and would take
    each value to the first device and back."""
    result = found(started(Path(__file__).parents[1] / "placed_elsewhere.py"))
    assert not result["elsewhere"]
    assert all(device.endswith("CPU:1") for device in result["variables"])
    planned, plain = result["losses"]
    assert planned == plain and len({*plain}) == 3


def test_an_added_op_goes_where_its_values_are():
    def node(name, device, *inputs):
        return SimpleNamespace(name=name, op="Op", device=device, input=list(inputs))

    nodes = [
        node("number", ""),
        node("made", "one"),
        node("view", "", "made:0", "number:0"),
        node("own", "two", "view"),
        node("free", "", "^made"),
        node("of_the_step", "", "made:1"),
    ]
    place(nodes, {"number", "view", "free"})
    assert [each.device for each in nodes] == ["one", "one", "one", "two", "", ""]
