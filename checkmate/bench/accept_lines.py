"""The table of `checkmate bench accept`: what each line asks, and what it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkmate.bench import accept_memory as memory
from checkmate.bench import accept_programs as programs
from checkmate.bench import accept_training as training
from checkmate.bench.accept_nets import NETS
from checkmate.bench.accept_outcome import Outcome
from checkmate.bench.accept_replicas import replicas

GIB = 2**30
_GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}

_SECOND_GPU = [*os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(","), "-1"][1].strip()
"""The second of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the acceptance run, which is a process of its own.

    Attributes:
      name: As --lines takes it.
      run: Returns the answer; its docstring begins with the question.
      arguments: Of `run`.
      gpus: How many GPUs TensorFlow must see.
      environment: Variables of the process.
      quick: Whether it is part of a quick run.
    """

    name: str
    run: Callable[..., Outcome]
    arguments: tuple[Any, ...] = ()
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False

    @property
    def asks(self) -> str:
        """The question that the line answers."""
        text = (self.run.__doc__ or "").partition("\n\n")[0]
        return " ".join(text.split())


def _of_nets(name: str, run: Callable[..., Outcome], **options: Any) -> Iterable[Line]:
    """A line for each net; a quick run has the first."""
    quick = options.pop("quick", False)
    for net in NETS:
        yield Line(f"{name}_{net}", run, (net,), quick=quick and net == NETS[0], **options)


def _lines() -> Iterable[Line]:
    yield Line("doctor", programs.doctor, quick=True)
    yield Line("doctor_run", programs.doctor_run, quick=True)
    yield Line("auto", memory.auto_budget, quick=True)
    yield Line("auto_growth", memory.auto_budget, gpus=1, environment=_GROWTH)
    yield Line("auto_limit", memory.auto_budget, (2 * GIB,), quick=True)
    second = {"CUDA_VISIBLE_DEVICES": _SECOND_GPU}
    yield Line("auto_second_gpu", memory.auto_budget, gpus=1, environment=second)
    yield from _of_nets("train", training.trains_within_budget, quick=True)
    yield from _of_nets("verify", training.is_verified, quick=True)
    yield from _of_nets("layout", training.layout_pass, gpus=1)
    yield from _of_nets("transposes", training.adds_no_transposes, gpus=1)
    yield from _of_nets("xla", training.beside_xla)
    yield Line("costs", memory.costs_twice)
    yield Line("workspaces", memory.workspaces)
    limit = {"TF_CUDNN_WORKSPACE_LIMIT_IN_MB": "64"}
    small = training.trains_within_budget
    yield Line("cudnn_limit", small, ("cnn",), gpus=1, environment=limit)
    yield Line("tight", memory.tight_limit)
    yield Line("crowded", memory.crowded_gpu, gpus=1, environment=_GROWTH)
    own = {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}
    yield Line("cuda_malloc_async", memory.without_events, gpus=1, environment=own)
    yield Line("refusal", memory.refusal)
    yield Line("plan_file", programs.plan_file)
    yield Line("dropout", programs.dropout)
    for workload in ("mlp", "cnn", "treelstm"):
        yield Line(f"dtr_{workload}", programs.dtr, (workload,), quick=workload == "mlp")
    yield Line("fit", programs.fit, quick=True)
    yield Line("max_batch", programs.max_batch)
    yield Line("replicas", replicas)
    yield Line("pytest", programs.pytest_gpu, gpus=1, environment=_GROWTH)


LINES = {line.name: line for line in _lines()}
"""Name -> line, in the order in which they run."""
