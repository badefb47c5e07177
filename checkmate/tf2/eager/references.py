"""The program's references: Python makes handles and lets them die, at any time and in any
thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import ref

from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.storage import Cell
from checkmate.tf2.eager.tensors import Handle, LazyTensor, SettledTensor


class References:
    """Tells the policy of references, when no op is running and in the thread of the context.

    Attributes:
      thread: The thread that entered the context.
      depth: How many ops are running, one inside of another.
    """

    def __init__(self, policy: EagerPolicy):
        self._policy = policy
        self.thread = get_ident()
        self.depth = 0
        self._later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._handles: dict[int, ref[Handle]] = {}

    def hold(self, handle: Handle, cell: Cell) -> None:
        """A handle has been made."""
        self._handles[id(handle)] = ref(handle)
        self._policy.retain(cell)

    def let_go(self, handle: Handle, cell: Cell) -> None:
        """A handle is dying. The one that came out of its op takes the tensor off all tapes, as an
        EagerTensor does."""
        self._handles.pop(id(handle), None)
        self.soon(self._forget if handle.is_owner else self._policy.release, cell)

    def abandon(self, first: int) -> None:
        """Lets go of all handles of calls from number `first` on, which a gradient that failed has
        left in TensorFlow's C++."""
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None and handle.cell.call.number >= first:
                self.let_go(handle, handle.cell)
                handle.abandon()

    def outlive(self) -> None:
        """Makes all handles that are still alive convertible: no `tf.Tensor`s any more, which
        TensorFlow converts when they are used."""
        for reference in list(self._handles.values()):
            handle = reference()
            if type(handle) is LazyTensor:
                private_api.become(handle, SettledTensor)

    def _forget(self, cell: Cell) -> None:
        private_api.tape_forget(cell)
        self._policy.release(cell)

    def soon(self, act: Callable[..., None], *arguments: Any) -> None:
        """Does something as soon as no op is running."""
        if self.depth or get_ident() != self.thread:
            self._later.append((act, arguments))
            return
        self.depth = 1
        try:
            act(*arguments)
        finally:
            self.depth = 0
        if self._later:
            self.catch_up()

    def op_ends(self) -> None:
        """An op of those counted by `depth` is done."""
        self.depth -= 1
        if self._later and not self.depth:
            self.catch_up()

    def catch_up(self) -> None:
        """Does what waits, unless an op is running."""
        if self.depth:
            return
        self.depth = 1
        try:
            while self._later:
                act, arguments = self._later.popleft()
                act(*arguments)
        finally:
            self.depth = 0
