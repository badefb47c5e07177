"""Which chunks of the device's memory pool are free now, asked of TensorFlow's allocator itself.

The allocator does not tell its free chunks. `probe` has it fill them: it asks for buffers until all
free chunks but one are full, watches which chunks it gets, and lets go of them. As free neighbours
join, the allocator is then as it was; its pool may have fetched a region.

One large chunk is not filled. The first request, for all the room that a step may need, finds it.
As the allocator takes the smallest chunk that fits, a later and smaller request that lands in the
large chunk says that no other free chunk had so much left. Requests go down in powers of two, so
that each of the other chunks is full after about four.

Behind a fence: how allocators are told apart and what they count (`checkmate.tf2.device`), what the
profiler says (`checkmate.tf2.memory.profiler`), and where an eager tensor lies, which TensorFlow
tells in the DLPack format alone. `probe` refuses where the answers do not fit together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import tensorflow as tf

from checkmate.core.allocator import ONEDNN_SMALLEST_BYTES, SPLIT_BYTES, UNIT_BYTES, Pool
from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.profiler import AllocatorEvent, observe
from checkmate.units import format_bytes

MOST_REQUESTS = 2000
"""For how many buffers of one size the allocator is asked until one lies in the large chunk.
Between two steps, two to four chunks are free."""


def probe(room_bytes: int) -> Pool:
    """Returns a twin of the training device's allocator in its present state.

    The pool's free chunks lie at their real addresses. One of them, the large chunk, has at least
    `room_bytes`; the allocator fetches a region where none has. What the twin says is exact for
    steps that use, holes included, no more than the first `room_bytes` of the large chunk. Free
    chunks that are larger are left out: such a step does not reach them. What is in use now cannot
    be released in the twin, unless `Pool.add_chunk_in_use` tells of it. The pool's limit is the
    allocator's.

    Call it between steps, in eager code. Other threads that request and release meanwhile can make
    it fail.

    Args:
      room_bytes: What a step may need in one piece.

    Raises:
      CheckmateError: The allocator does not report, is none that `Pool` follows, has no
        `room_bytes` in one piece, or served others meanwhile; or a profile is being taken.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        raise CheckmateError(
            f"The allocator of {device} does not say how much is in use. What is free in it cannot"
            " be found out."
        )
    smallest = smallest_bytes(device)
    search = _Search(device, max(room_bytes, 4 * smallest), smallest)
    events = observe(search.fill).events
    if not events:
        raise CheckmateError(
            f"The profiler saw no request to the allocator of {device}. It is not TensorFlow's BFC"
            " allocator."
        )
    large = _large_chunk_bytes(events, search.address)
    if large != search.large_bytes:
        raise _lost(device)
    last = events[-1]
    return Pool.of_free_chunks(
        _free_chunks(events, (search.address, large)),
        in_use_bytes=last.in_use_bytes,
        limit_bytes=last.in_use_bytes + last.available_bytes,
        smallest_bytes=1 if smallest == UNIT_BYTES else smallest,
    )


class _Search:
    """The requests that fill the free chunks.

    Attributes:
      address: Where the large chunk begins.
      large_bytes: Its size; where it has `enough_bytes` or more, what is known to be there.
      enough_bytes: Within the room, what is left of a chunk of this size is larger than all other
        free chunks, and always split. Its size makes no difference then.
    """

    def __init__(self, device: str, room_bytes: int, smallest_bytes: int):
        self._device = device
        self._room_bytes = -(-room_bytes // UNIT_BYTES) * UNIT_BYTES
        self._smallest_bytes = smallest_bytes
        self._held: list[tf.Tensor] = []
        self.address = self.large_bytes = 0
        self.enough_bytes = 2 * self._room_bytes + SPLIT_BYTES

    def fill(self) -> None:
        """Finds the large chunk and its size, fills all smaller ones, and lets go of everything."""
        try:
            self.address = address_of(self._request(self._room_bytes)[0])
            self.large_bytes = self._size_up()
            size = self._smallest_bytes
            while 8 * size <= self._room_bytes:
                size *= 2
            while size >= self._smallest_bytes:
                self._held.append(self._request_in_large(size, self.large_bytes)[0])
                size //= 2
        finally:
            self._held.clear()

    def _size_up(self) -> int:
        """Returns the size of the large chunk, or one that it has at least and that is enough.

        A chunk that is not split shows its size. One that is split has at least what the rule for
        splitting says, which is asked for next, less one unit: the chunk is then never just as
        large as the request.
        """
        size = self._room_bytes
        while size < self.enough_bytes:
            asked = size - UNIT_BYTES
            # The buffer itself is let go of.
            given = self._request_in_large(asked, UNIT_BYTES, most=8)[1]
            if given > asked:
                return given
            size = _least_that_is_split(asked)
        return size

    def _request_in_large(
        self, size: int, part_bytes: int, most: int = MOST_REQUESTS
    ) -> tuple[tf.Tensor, int]:
        """Asks until a buffer begins in that part of the large chunk, and keeps the others. Returns
        it, with the bytes of its chunk."""
        for _ in range(most):
            buffer, given = self._request(size)
            if 0 <= address_of(buffer) - self.address < part_bytes:
                return buffer, given
            self._held.append(buffer)
        raise _lost(self._device)

    def _request(self, size: int) -> tuple[tf.Tensor, int]:
        # Before the count is read, as this takes a chunk, too.
        with tf.device("CPU:0"):
            shape = tf.constant([size // UNIT_BYTES, UNIT_BYTES])
        before = devices.bytes_in_use(self._device)
        try:
            with tf.device(self._device):
                buffer = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)
        except tf.errors.ResourceExhaustedError as error:
            raise CheckmateError(
                f"The allocator of {self._device} has no {format_bytes(size)} in one piece."
            ) from error
        return buffer, devices.bytes_in_use(self._device) - before


def _least_that_is_split(asked: int) -> int:
    """Returns the size of the smallest chunk that is split for a request."""
    return min(2 * asked, asked + SPLIT_BYTES)


def _large_chunk_bytes(events: Iterable[AllocatorEvent], address: int) -> int:
    """Returns the size of the free chunk at an address: all of it where a request got it whole,
    else what it has at least, as it was split."""
    requests = [event for event in events if event.is_request and event.address == address]
    whole = [
        event.chunk_bytes
        for event in requests
        if event.chunk_bytes >= event.requested_bytes + UNIT_BYTES
    ]
    return max(
        whole or [_least_that_is_split(event.requested_bytes) for event in requests], default=0
    )


def _free_chunks(events: Iterable[AllocatorEvent], large: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns (address, bytes) of what is free after the events, of all that they gave out or took
    back, and of the large chunk."""
    known, used = [large], {}
    for event in events:
        known.append((event.address, event.chunk_bytes))
        if event.is_request:
            used[event.address] = event.chunk_bytes
        else:
            used.pop(event.address, None)
    free: list[tuple[int, int]] = []
    for start, end in _joined(known):
        for address in sorted(each for each in used if start <= each < end):
            free.append((start, address - start))
            start = address + used[address]
        free.append((start, end - start))
    return [(address, size) for address, size in free if size]


def _joined(chunks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns (start, end) of the pieces of memory that chunks (address, bytes) cover together.
    Those of different regions do not touch: malloc keeps its own data before each region, and
    regions of a GPU that touch are one.
    """
    pieces: list[tuple[int, int]] = []
    for address, size in sorted(chunks):
        if pieces and address <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], address + size))
        else:
            pieces.append((address, address + size))
    return pieces


def smallest_bytes(device: str) -> int:
    """Returns the smallest request that the device's pool serves, rounded up; smaller ones are not
    counted."""
    return UNIT_BYTES if devices.counts_everything(device) else ONEDNN_SMALLEST_BYTES


def address_of(buffer: tf.Tensor) -> int:
    """Returns where an eager tensor lies: the first field of its DLPack structure."""
    capsule = tf.experimental.dlpack.to_dlpack(buffer)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value or 0


def _lost(device: str) -> CheckmateError:
    return CheckmateError(
        f"The free chunks of {device} were not found: its allocator's answers do not fit together."
        " Do other threads use it meanwhile?"
    )
