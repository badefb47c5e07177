"""OpRule: a row of the table of op types, with a default in every column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tensorflow as tf

from checkmate.tf2.ops.call import Rule
from checkmate.tf2.ops.places import Places


class Role(Enum):
    """The executor's treatment of an op.

    ALIAS: output k is input k. No op is made; readers take the input. VIEW: shares its input's
    buffer. It is made again for every reader, since a view that stays keeps the buffer alive.
    SHAPE: depends on its input's shape only; a constant where that shape is static. SOURCE: an
    argument, a constant, or the read of a variable; resident during the whole step. KERNEL:
    allocates or computes.
    """

    ALIAS = "alias"
    VIEW = "view"
    SHAPE = "shape"
    SOURCE = "source"
    KERNEL = "kernel"


class Source(Enum):
    """The kind of a SOURCE op, where code must tell."""

    ARGUMENT = "argument"
    CONSTANT = "constant"
    VARIABLE = "variable"
    NOTHING = "nothing"


class State(Enum):
    """How an op depends on, or changes, something other than its inputs and outputs.

    REGISTERED: as `OpDef.is_stateful` says. READS: only reads its resource. CHECKS: returns its
    input or fails; it is safe to repeat. DRAWS: draws from random state that the kernel keeps from
    call to call. VISIBLE: prints, writes a file or calls Python, which cannot be undone. CALLS_OUT:
    registered as stateless, but calls Python or another process.
    """

    REGISTERED = "registered"
    READS = "reads"
    CHECKS = "checks"
    DRAWS = "draws"
    VISIBLE = "visible"
    CALLS_OUT = "calls out"


class InPlace(Enum):
    """Which inputs an op may forward: write its output into their buffer."""

    ANY_INPUT = "any input of the output's size"
    FIRST_INPUT = "the first input"


class Shares(Enum):
    """When an output may be (part of) the memory of a value that the op reads or makes.

    PART: it may be part of an input, of a list or of another output. IDLE: it is the input where
    the op has nothing to do. IDLE_SUM: the same, for a sum of one term. IDLE_ORDER: the same, for
    an order of axes that moves no element.
    """

    PART = "part"
    IDLE = "idle"
    IDLE_SUM = "idle sum"
    IDLE_ORDER = "idle order"


class Size(Enum):
    """How an output is estimated whose size the graph does not tell.

    INPUTS: the sum of the inputs' sizes; the largest one for an op that runs in place. NUMBERS: a
    few numbers. MASK: half a byte for each number of the first input. EMPTY: no bytes. SHAPE_READ:
    the size of the tensor whose shape is the first input. RESERVE: what a recurrent kernel of cuDNN
    leaves for its gradient; a guess.
    """

    INPUTS = "inputs"
    NUMBERS = "numbers"
    MASK = "mask"
    EMPTY = "empty"
    SHAPE_READ = "shape read"
    RESERVE = "reserve"


class ListOp(Enum):
    """The treatment of a list of tensors: make an empty one or one of a tensor's rows, return it
    with the entries it has, add up lists, or return one entry."""

    EMPTY = "empty"
    OF_ROWS = "of rows"
    SAME = "same"
    SUM = "sum"
    ENTRY = "entry"


class Runs(Enum):
    """The kind of an op that runs functions of the graph's library."""

    LOOP = "loop"
    CONDITION = "condition"
    CALL = "call"


class Fusion(Enum):
    """Within which kernel TensorFlow or oneDNN may compute an op.

    PRODUCT: the bias and the activation that follow may run in this op's kernel. READER: the op may
    run in the kernel of its only reader. BIAS: the op adds a bias and may run in a product's
    kernel. BIAS_GRADIENT: the op may run in the kernel of a FILTER_GRADIENT that reads the same
    tensor.
    """

    PRODUCT = "product"
    READER = "reader"
    BIAS = "bias"
    BIAS_GRADIENT = "bias gradient"
    FILTER_GRADIENT = "filter gradient"


class Pooling(Enum):
    """A pooling, or the gradient that with oneDNN reads the workspace which the pooling left."""

    FORWARD = "forward"
    GRADIENT = "gradient"


class Eager(Enum):
    """How dynamic rematerialization treats an op.

    PASSED_ON: TensorFlow runs and records it as usual; it allocates nothing that can be evicted.
    VIEW: its first output shares the memory of its first input. REDUCTION: the same where the
    reduced axes have one element each.
    """

    PASSED_ON = "passed on"
    VIEW = "view"
    REDUCTION = "reduction"


Indices = frozenset[int]


@dataclass(frozen=True, slots=True)
class OpRule:
    """All that the library assumes of an op type.

    Attributes:
      stateless_if: Name of a boolean attribute that makes it stateless although it is registered as
        stateful.
      from_optimizer: TensorFlow's graph optimizer makes it; `tf.raw_ops` does not have it.
      in_place: The inputs that it may forward; None if none, or if that has to be measured.
      assigns: It writes a whole variable.
      per_slice: It may run in each slice of a batch, although it reads other state than variables.
      has_reads_copied: After it, every read of its variables copies them, as it writes parts of
        them whoever holds their memory.
      hides_shape: TensorFlow does not infer the shapes of its outputs.
      of_shape: Its output's value from the shape of its input, or None if that does not tell.
      list_entry: Index of the input that it adds to a list as an entry.
      flops: Counts its floating-point operations; None for an op that memory bandwidth bounds.
      tries_algorithms: On a GPU, its first run at some shapes tries several algorithms, each with
        scratch memory of its own, and may take many times what later runs take.
      gives_batches: It takes a batch from an iterator, whose pipeline makes the next one.
      broadcasts: Broadcasting its inputs before it or its output after it gives the same bits.
      repeats: Index of the input whose elements its output consists of.
      axes: Which axes of its inputs and outputs belong together; None if its outputs need the whole
        batch, unless all inputs are the same for every slice.
      list_axes: The same where it returns a list of tensors, whose relation is that of its entries.
      places: How many places each example has along some axis that its first output names, if they
        are those of the example alone.
      leading: The same of the first entries along the last axis of its output.
      counter: Index of the input that says from which count on it draws of a generator that makes a
        fixed number of random numbers for each count.
      adds_rows: It adds its first input's rows, at the places that its second names, to zeros.
      moves_rows: It joins, selects or sorts rows, or adds up those of equal indices.
      absorbs_transpose: TensorFlow's optimizer may merge a neighbouring transposition into it.
      eager, eager_refusal: How dynamic rematerialization treats it, and why it cannot run there.
      gradient_reads: Indices of the (inputs, outputs) that its gradient reads; None if not known.
    """

    role: Role = Role.KERNEL
    source: Source | None = None
    state: State = State.REGISTERED
    stateless_if: str = ""
    from_optimizer: bool = False
    in_place: InPlace | None = None
    scratch: bool = True
    assigns: bool = False
    per_slice: bool = False
    has_reads_copied: bool = False
    hides_shape: bool = False
    shares: Shares | None = None
    size: Size = Size.INPUTS
    of_shape: Callable[[tf.TensorShape], Any] | None = None
    list_op: ListOp | None = None
    list_entry: int | None = None
    runs: Runs | None = None
    functions: tuple[str, ...] = ()
    flops: Callable[[tf.Operation], float] | None = None
    fusion: Fusion | None = None
    tries_algorithms: bool = False
    gives_batches: bool = False
    pooling: Pooling | None = None
    broadcasts: bool = False
    casts: bool = False
    repeats: int | None = None
    fills_with: int | None = None
    axes: Rule | None = None
    list_axes: Rule | None = None
    places: Places | None = None
    leading: Places | None = None
    counter: int | None = None
    adds_rows: bool = False
    moves_rows: bool = False
    absorbs_transpose: bool = False
    eager: Eager | None = None
    eager_refusal: str = ""
    gradient_reads: tuple[Indices, Indices] | None = None

    @property
    def is_elementwise(self) -> bool:
        """It may forward any input of its output's size, and needs no scratch."""
        return self.in_place is InPlace.ANY_INPUT

    @property
    def only_reads(self) -> bool:
        return self.state is State.READS

    @property
    def is_free(self) -> bool:
        """It runs no kernel worth counting."""
        return self.role in (Role.ALIAS, Role.SOURCE)
