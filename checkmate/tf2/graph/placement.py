"""Where ops run that were added to a step: on the device of what they take, or of what reads them,
where the step names one. Elsewhere they would copy values from device to device and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

_AT_VARIABLE = ("DisableCopyOnRead", "ReadVariableOp", "ResourceStridedSliceAssign")
"""TensorFlow places them where the variable is."""


def place(nodes: Sequence[Any], added: Collection[str]) -> None:
    """Writes the devices of the nodes of these names that name none.

    Args:
      nodes: Definitions of ops, inputs first.
    """
    device = {node.name: node.device for node in nodes}
    moved = [node for node in nodes if node.name in added and node.op not in _AT_VARIABLE]
    for node in moved:
        makers = (name.partition(":")[0] for name in node.input if name[0] != "^")
        device[node.name] = device[node.name] or _first(device.get(each, "") for each in makers)
    of_reader: dict[str, str] = {}
    for node in reversed(nodes):
        if node.name in added and node.op not in _AT_VARIABLE:
            node.device = device[node.name] or of_reader.get(node.name, "")
        for name in node.input:
            if node.device and name[0] != "^":
                of_reader[name.partition(":")[0]] = node.device


def _first(devices: Iterable[str]) -> str:
    return next((each for each in devices if each), "")
