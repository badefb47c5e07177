"""Which chunks of the device's memory pool are free now, asked of TensorFlow's allocator itself.

The allocator does not report its free chunks. `probe` has it fill them: it requests buffers until
all free chunks but one are full, watches which chunks it gets, and releases them. As free
neighbours join, the allocator is then as it was; its pool may have fetched a region.

One large chunk is not filled. The first request, for all that a step may need, finds it. As the
allocator takes the smallest chunk that fits, a later and smaller request that is served from the
large chunk says that no other free chunk had so much left. Requests go down in powers of two, so
that each of the other chunks is full after about four.

Three things are private to TensorFlow: how allocators are told apart and what they count
(`checkmate.tf2.device`), what the profiler says (`checkmate.tf2.memory.profiler`), and where an
eager tensor lies (`checkmate.tf2.memory.probe`). `probe` refuses where the answers do not fit
together.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence

import tensorflow as tf

from checkmate.core.allocator import (
    ONEDNN_SMALLEST_BYTES,
    SPLIT_BYTES,
    UNIT_BYTES,
    Pool,
    rounded_up,
)
from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import OutputBuffers
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.profiler import AllocatorEvent, observe
from checkmate.units import format_bytes

# TensorFlow gives the address of an eager tensor in the DLPack format alone.


def smallest_bytes(device: str) -> int:
    """The smallest request that the device's pool serves, rounded up; smaller ones are not
    counted."""
    return UNIT_BYTES if devices.counts_everything(device) else ONEDNN_SMALLEST_BYTES


def address_of(buffer: tf.Tensor) -> int:
    """The address of an eager tensor: the first field of its DLPack structure."""
    capsule = tf.experimental.dlpack.to_dlpack(buffer)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value or 0


def halved_sizes(largest_bytes: int, smallest_bytes: int) -> list[int]:
    """Sizes that halve, from the largest down to the smallest, in the allocator's units."""
    sizes = [max(largest_bytes, smallest_bytes)]
    while sizes[-1] > smallest_bytes:
        sizes.append(max(smallest_bytes, sizes[-1] // 2 // UNIT_BYTES * UNIT_BYTES))
    return sizes


def shape_of(size: int) -> tf.Tensor:
    """The shape of a buffer of so many bytes. On a CPU the shape takes a chunk itself, so make it
    before anything is counted."""
    with tf.device("CPU:0"):
        return tf.constant([size // UNIT_BYTES, UNIT_BYTES])


def request(shape: tf.Tensor) -> tuple[tf.Tensor, int]:
    """A buffer on the training device, with the bytes of its chunk."""
    device = devices.training_device()
    before = devices.bytes_in_use(device)
    with tf.device(device):
        buffer = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)
    return buffer, devices.bytes_in_use(device) - before


def request_within(
    place: range, shape: tf.Tensor, most: int, others: list[tf.Tensor]
) -> tuple[tf.Tensor, int] | None:
    """Requests buffers until one begins in a range of addresses; returns it with its chunk's bytes,
    or None. The allocator gives out the smallest free chunk that fits: the other buffers fill the
    chunks that fit better and stay in `others`."""
    for _ in range(most):
        buffer, chunk_bytes = request(shape)
        if address_of(buffer) in place:
            return buffer, chunk_bytes
        others.append(buffer)
    return None


MAX_REQUESTS = 2000
"""How many buffers of one size are requested until one is served from the large chunk.
Between two steps, two to four chunks are free."""


def probe(step_bytes: int) -> Pool:
    """A simulation of the training device's allocator in its present state.

    The pool's free chunks lie at their real addresses. One of them, the large chunk, has at least
    `step_bytes`; the allocator fetches a region where none has. The simulation is exact for steps
    that use, holes included, no more than the first `step_bytes` of the large chunk. Free chunks
    that are larger are left out: such a step does not reach them. What is in use now cannot be
    released in the pool, unless it is added by `Pool.add_chunk_in_use`. The pool's limit is the
    allocator's.

    Call it between steps, in eager code. It can fail where other threads request and release
    memory meanwhile.

    Raises:
      CheckmateError: The allocator does not report, is none that `Pool` follows, grows in a GPU's
        memory, has no `step_bytes` in one piece, or served others meanwhile; or a profile is being
        taken.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        raise CheckmateError(
            f"The allocator of {device} does not say how much is in use. What is free in it cannot"
            " be found out."
        )
    if device.startswith("GPU") and devices.pool_grows(device):
        # Each request that no free chunk serves takes memory from other processes, up to twice as
        # much, and for good.
        raise CheckmateError(
            f"The pool of {device} grows (memory growth). To find out what is free in it would have"
            " it grow."
        )
    smallest = smallest_bytes(device)
    search = _Search(device, max(step_bytes, 4 * smallest), smallest)
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
    """The requests that fill the free chunks. The large chunk begins at `address`; from
    `any_size_bytes` on, `large_bytes` is a lower bound of its size."""

    def __init__(self, device: str, step_bytes: int, smallest_bytes: int):
        self._device = device
        self._step_bytes = rounded_up(step_bytes)
        self._smallest_bytes = smallest_bytes
        self._buffers: list[tf.Tensor] = []
        self.address = self.large_bytes = 0

    def fill(self) -> None:
        """Finds the large chunk and its size, fills all smaller ones, and releases everything."""
        try:
            self.address = address_of(self._first())
            self.large_bytes = self._measured_bytes()
            largest = self._smallest_bytes
            while 8 * largest <= self._step_bytes:
                largest *= 2
            for size in halved_sizes(largest, self._smallest_bytes):
                self._buffers.append(self._request_in_large(size, self.large_bytes)[0])
        finally:
            self._buffers.clear()

    def _measured_bytes(self) -> int:
        """The size of the large chunk, or a lower bound of it. A chunk that is not split shows its
        size; of one that is split the rule for splitting gives the bound. That size less one unit
        is requested next, so that the chunk is never just as large as the request. The loop ends at
        a size of which more is left after a step than all other free chunks have, and which is
        always split: a larger chunk makes no difference."""
        size = self._step_bytes
        while size < 2 * self._step_bytes + SPLIT_BYTES:
            asked = size - UNIT_BYTES
            given = self._request_in_large(asked, UNIT_BYTES, most=8)[1]
            if given > asked:
                return given
            size = _least_that_is_split(asked)
        return size

    def _first(self) -> tf.Tensor:
        limit = devices.cap_bytes(self._device)
        if limit and self._step_bytes > limit - devices.bytes_in_use(self._device):
            raise _too_large(self._device, self._step_bytes)  # TensorFlow would wait ten seconds
        try:
            return request(shape_of(self._step_bytes))[0]
        except tf.errors.ResourceExhaustedError as error:
            raise _too_large(self._device, self._step_bytes) from error

    def _request_in_large(
        self, size: int, part_bytes: int, most: int = MAX_REQUESTS
    ) -> tuple[tf.Tensor, int]:
        """A buffer that begins in that part of the large chunk, with the bytes of its chunk."""
        place = range(self.address, self.address + part_bytes)
        try:
            found = request_within(place, shape_of(size), most, self._buffers)
        except tf.errors.ResourceExhaustedError as error:
            raise _too_large(self._device, size) from error
        if found is None:
            raise _lost(self._device)
        return found


def _too_large(device: str, size: int) -> CheckmateError:
    return CheckmateError(f"The allocator of {device} has no {format_bytes(size)} in one piece.")


def _least_that_is_split(asked: int) -> int:
    """The size of the smallest chunk that is split for a request."""
    return min(2 * asked, asked + SPLIT_BYTES)


def _large_chunk_bytes(events: Iterable[AllocatorEvent], address: int) -> int:
    """The size of the free chunk at an address: exact where a request got it whole, else a lower
    bound."""
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
    """(address, bytes) of the free memory after the events, of all that they allocated or released,
    and of the large chunk."""
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
    """(start, end) of the memory that chunks (address, bytes) cover together. Different regions do
    not touch: malloc keeps its own data before each, and touching regions of a GPU are one."""
    pieces: list[tuple[int, int]] = []
    for address, size in sorted(chunks):
        if pieces and address <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], address + size))
        else:
            pieces.append((address, address + size))
    return pieces


def _lost(device: str) -> CheckmateError:
    return CheckmateError(
        f"The free chunks of {device} were not found: its allocator's answers do not fit together."
        " Do other threads use it meanwhile?"
    )


BATCHES = 4
"""For how many batches: the one in use, the one before, and what a pipeline makes ahead."""

MAX_LARGER_REQUESTS, MAX_SMALL_REQUESTS = 4, 300
"""How many buffers of a size are requested at most until one follows the chunk, and how many of the
smallest size. Between two steps a few chunks are free; what so many requests do not fill is larger
than the chunk's successor."""


def make_output_buffers(traced: TracedStep) -> OutputBuffers | None:
    """Buffers for a step's results, with memory set apart for its batches and small values; None
    where there is too little memory."""
    try:
        buffers = OutputBuffers(traced)
    except tf.errors.ResourceExhaustedError:
        return None
    sizes = [exact_bytes(tensor) for tensor in traced.argument_tensors()]
    # Last, as it would be a good fit for results.
    buffers.batch_area = set_apart(sizes, 2 * traced.small_bytes)
    return buffers


def set_apart(sizes: Sequence[int], small_bytes: int = 0) -> tf.Tensor | None:
    """A buffer that keeps memory apart for batches (`sizes` of their tensors) and small buffers
    while it exists; None where that is not possible.

    A batch that is made between two steps gets the smallest free chunk that fits. Where that is the
    large one from which a step takes its memory, the step finds it cut in two, in another place
    each time, and its peak differs from step to step. A chunk of the size of a few batches,
    followed by a small buffer that is never released, does not join the large chunk, and is a
    better fit; also for the small buffers that a step and a pipeline take meanwhile.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return None
    smallest = smallest_bytes(device)
    batch = sum(rounded_up(size) for size in sizes if size >= smallest)
    area = BATCHES * batch + rounded_up(small_bytes)
    if not batch:
        return None
    shapes = [shape_of(size) for size in (area, *halved_sizes(batch, smallest))]
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
        chunk, chunk_bytes = request(shapes[0])
        # A larger chunk is a free one that was given out whole, which is apart already.
        if chunk_bytes == area:
            return _next_to(chunk, address_of(chunk) + area, shapes[1:])
    return None


def _next_to(chunk: tf.Tensor, address: int, shapes: list[tf.Tensor]) -> tf.Tensor | None:
    """A buffer of the last shape at the address where a chunk ends; None if no free chunk begins
    there."""
    others = [chunk]
    for shape in shapes[:-1]:
        # Larger buffers fill the chunks that fit better.
        request_within(range(address, address + 1), shape, MAX_LARGER_REQUESTS, others)
    found = request_within(range(address, address + 1), shapes[-1], MAX_SMALL_REQUESTS, others)
    return found and found[0]
