"""Op logs: the instructions of a program, read, checked, written, and made of a graph.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), appendix C.6.
"""

from __future__ import annotations

import io
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checkmate.core.graph import DFGraph
from checkmate.core.json_files import open_file
from checkmate.dtr.log_format import (
    Annotate,
    Call,
    Constant,
    Instruction,
    Mutate,
    Release,
    parsed,
    written,
)
from checkmate.dtr.steps import steps_of
from checkmate.dtr.storage import FRESH
from checkmate.errors import LogError


@dataclass(frozen=True, slots=True)
class OpLog:
    """The instructions of a program, in order.

    Args:
      instructions: From START on, if there is one.
      name: For people.
      lines: The line of the file that each instruction begins on; counted through when the log is
        no file.

    A name that is released without ever having been made is taken for one from before the log
    begins, and that instruction means nothing.

    Raises:
      LogError: An instruction names a tensor that does not exist there, makes one twice, or has an
        index out of range.

    Examples:
      >>> chain = DFGraph((checkmate.Op("a"), checkmate.Op("b", (0,))), outputs=(1,))
      >>> OpLog.from_graph(chain)
      OpLog('', calls=2, instructions=3)
    """

    instructions: tuple[Instruction, ...]
    name: str = field(default="", compare=False)
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "instructions", tuple(self.instructions))
        if not self.lines:
            object.__setattr__(self, "lines", tuple(range(1, len(self.instructions) + 1)))
        deque(steps_of(self.instructions, self.lines), maxlen=0)  # checks them

    def __len__(self) -> int:
        return len(self.instructions)

    def __repr__(self) -> str:
        calls = sum(isinstance(instruction, (Call, Mutate)) for instruction in self.instructions)
        return f"OpLog({self.name!r}, calls={calls}, instructions={len(self.instructions)})"

    @classmethod
    def load(cls, path: str | os.PathLike) -> OpLog:
        """Reads a log file, line by line.

        Args:
          path: The file.

        Raises:
          LogError: With the line, and what was expected there.
        """
        try:
            with io.TextIOWrapper(open_file(path), encoding="utf-8-sig") as file:
                return cls.from_lines(file, name=Path(path).stem)
        except OSError as error:
            raise LogError(f"Cannot read {path}: {error.strerror or error}.", line=0) from error
        except UnicodeDecodeError as error:
            raise LogError(
                f"{path} is no text: {error}. An op log is a file of JSON lines.", line=0
            ) from error

    @classmethod
    def from_lines(cls, lines: Iterable[str], *, name: str = "") -> OpLog:
        """Reads a log from the lines of a file.

        Args:
          lines: The lines. What comes before START need not even be of the format.
          name: As for `OpLog`.
        """
        found = parsed(lines)
        return cls(
            tuple([instruction for _, instruction in found]),
            name,
            tuple([number for number, _ in found]),
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the log; `OpLog.load` reads it back equal.

        Args:
          path: The file.
        """
        Path(path).write_text("".join(line + "\n" for line in self.to_lines()), encoding="utf-8")

    def to_lines(self) -> Iterator[str]:
        """The lines of the file."""
        for instruction in (Annotate("START"), *self.instructions):
            for entry in written(instruction):
                yield json.dumps(entry, separators=(",", ":"))

    @classmethod
    def from_graph(cls, graph: DFGraph) -> OpLog:
        """Makes a log of the plain step: ops in order, each value released after its last use,
        `graph.fixed_bytes` as one constant.

        Costs become nanoseconds: they are taken for seconds unless all are whole numbers. The
        format does not know workspaces, ops that may run only once, or what an op overwrites;
        `simulate(graph, ...)` does.

        Args:
          graph: The graph of the step.
        """
        instructions: list[Instruction] = (
            [Constant("fixed_bytes", graph.fixed_bytes)] if graph.fixed_bytes else []
        )
        times = whole_costs(graph)
        for i, op in enumerate(graph.ops):
            if op.is_backward and not graph.ops[i - 1].is_backward:
                instructions.append(Annotate("BACKWARD"))
            args = tuple(graph.ops[d].name for d in op.deps)
            instructions.append(
                Call((op.name,), op.kind or op.name, args, times[i], (op.output_bytes,), (FRESH,))
            )
            ending = [d for d in (*op.deps, i) if graph.last_use[d] == i]
            instructions.extend(Release(graph.ops[d].name) for d in ending)
        return cls(tuple(instructions), graph.name)


def whole_costs(graph: DFGraph) -> list[int]:
    """Costs as whole numbers: as they are if all are, and otherwise seconds as nanoseconds."""
    costs = [op.cost for op in graph.ops]
    scale = 1 if all(cost == int(cost) for cost in costs) else 10**9
    return [round(cost * scale) for cost in costs]
