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
      depth: How many ops are running, one inside of another.
    """

    def __init__(self, policy: EagerPolicy):
        self._policy = policy
        self.thread = get_ident()
        self.depth = 0
        self._deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._handles: dict[int, ref[Handle]] = {}

    def register(self, handle: Handle, cell: Cell) -> None:
        self._handles[id(handle)] = ref(handle)
        self._policy.retain(cell)

    def unregister(self, handle: Handle, cell: Cell) -> None:
        """A handle is dying. The one that came out of its op takes the tensor off all tapes, as an
        EagerTensor does."""
        self._handles.pop(id(handle), None)
        self.defer(self._forget if handle.is_owner else self._policy.release, cell)

    def abandon(self, first: int) -> None:
        """Releases all handles of calls from number `first` on, which a gradient that failed has
        left in TensorFlow's C++."""
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None and handle.cell.call.number >= first:
                self.unregister(handle, handle.cell)
                handle.abandon()

    def settle(self) -> None:
        """Makes all handles that are still alive convertible: no `tf.Tensor`s any more, which
        TensorFlow converts when they are used."""
        for reference in list(self._handles.values()):
            handle = reference()
            if type(handle) is LazyTensor:
                private_api.become(handle, SettledTensor)

    def _forget(self, cell: Cell) -> None:
        private_api.tape_forget(cell)
        self._policy.release(cell)

    def defer(self, act: Callable[..., None], *arguments: Any) -> None:
        """Acts once no op is running, in the thread of the context."""
        if self.depth or get_ident() != self.thread:
            self._deferred.append((act, arguments))
            return
        self.depth = 1
        try:
            act(*arguments)
        finally:
            self.depth = 0
        if self._deferred:
            self.run_deferred()

    def end_op(self) -> None:
        self.depth -= 1
        if self._deferred and not self.depth:
            self.run_deferred()

    def run_deferred(self) -> None:
        if self.depth:
            return
        self.depth = 1
        try:
            while self._deferred:
                act, arguments = self._deferred.popleft()
                act(*arguments)
        finally:
            self.depth = 0
