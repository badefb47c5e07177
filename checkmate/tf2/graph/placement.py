"""Where ops run that were added to a step: on the device of what they take, or of what reads them,
where the step names one. Elsewhere they would copy values from device to device and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from checkmate.tf2.ops.table import rule_of


def place(nodes: Sequence[Any], added: Collection[str]) -> None:
    """Writes the devices of the nodes of these names that name none.

    Args:
      nodes: Definitions of ops, inputs first.
    """
    device = {node.name: node.device for node in nodes}
    moved = [node for node in nodes if node.name in added and not _is_at_variable(node)]
    for node in moved:
        makers = (name.partition(":")[0] for name in node.input if name[0] != "^")
        device[node.name] = device[node.name] or _first(device.get(each, "") for each in makers)
    of_reader: dict[str, str] = {}
    for node in reversed(nodes):
        if node.name in added and not _is_at_variable(node):
            node.device = device[node.name] or of_reader.get(node.name, "")
        for name in node.input:
            if node.device and name[0] != "^":
                of_reader[name.partition(":")[0]] = node.device


def _is_at_variable(node: Any) -> bool:
    """True for an op that TensorFlow places where its variable is."""
    return rule_of(node.op).only_reads or rule_of(node.op).has_reads_copied


def _first(devices: Iterable[str]) -> str:
    return next((each for each in devices if each), "")
