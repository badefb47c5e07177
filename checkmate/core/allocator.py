"""A model of TensorFlow's BFC allocator: how much memory a list of requests and releases takes,
before anything runs.

BFC ("best fit with coalescing") serves GPUs, CPUs where TF_CPU_ALLOCATOR_USE_BFC=true, and the
large requests of oneDNN's allocator, TensorFlow's default on x86. Given the same requests and
releases in the same order, from the same state, `Pool` gives each request the same chunk.

The rules:

* A request is rounded up to a multiple of 256 bytes.
* It gets the smallest free chunk that is large enough; of several of that size the one at the
  lowest address.
* The chunk is split if it has at least twice the bytes needed, or if at least 128 MiB
  (`split_bytes`) would be left. Otherwise the request gets the whole chunk, which counts as in use.
* A released chunk joins the free chunks directly after and directly before it, within its region.
* If no chunk is large enough, the pool fetches a region from the system. The first region has 2
  MiB, each further one twice the bytes of the one before. A region that would be too small for the
  request is doubled until it fits. No region exceeds what the pool's limit leaves.

Source: tsl::BFCAllocator (xla/tsl/framework/bfc_allocator.cc), as in TensorFlow 2.21. Not modelled:
on GPUs, adjacent regions may join, and free regions may be given back before a request is refused;
a region that the system refuses is asked for again at 9/10 of its size. Addresses of fetched
regions are made up: they only decide between chunks of equal size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable

UNIT_BYTES = 256
"""Every chunk is a multiple of this."""

SPLIT_BYTES = 128 << 20
"""A free chunk is always split if this much would be left. TensorFlow's `fragmentation_fraction` of
the limit replaces it, if set."""

ONEDNN_SMALLEST_BYTES = 256 << 10
"""oneDNN's CPU allocator ("mklcpu") serves smaller requests outside of its BFC pool, uncounted."""

_UNLIMITED_REGION_BYTES = 1 << 50
_TOP_ADDRESS = 1 << 62


def rounded_up(size: int) -> int:
    """Returns the bytes that the allocator hands out for a request of `size` bytes."""
    return -(-size // UNIT_BYTES) * UNIT_BYTES


class PoolExhausted(Exception):
    """A request that the pool cannot serve; the caller handles it.

    Attributes:
      requested_bytes: The size of the request, rounded up.
      largest_hole_bytes: The largest free chunk at that moment.
      buffer: The id of the request in `Pool.run`, or None.
    """

    def __init__(self, requested_bytes: int, largest_hole_bytes: int):
        self.requested_bytes, self.largest_hole_bytes = requested_bytes, largest_hole_bytes
        self.buffer: Hashable = None
        super().__init__(
            f"A request of {requested_bytes:,} bytes does not fit: the largest free chunk has"
            f" {largest_hole_bytes:,}."
        )


class Pool:
    """The state of a BFC allocator: regions cut into chunks, each of them free or in use.

    Args:
      limit_bytes: The most bytes that all regions may have together; None for no limit.
      next_region_bytes: Size of the region that is fetched next.
      split_bytes: A chunk is split if this much of it would be left, whatever the request.
      smallest_bytes: Smaller requests are served by another allocator and take nothing here.

    Attributes:
      in_use_bytes: The bytes of all chunks in use, padding included.
      peak_bytes: The most bytes in use so far.
      fetched_bytes: The bytes of all regions fetched for requests, without `of_free_chunks`'.

    Examples:
      >>> from checkmate.core.allocator import Pool
      >>> pool = Pool()
      >>> pool.run([("x", 1000), ("y", 3000), ("x", 0), ("z", 600)])
      4096

      1,024 for x and 3,072 for y; z gets the whole chunk of x.
    """

    def __init__(
        self,
        *,
        limit_bytes: int | None = None,
        next_region_bytes: int = 2 << 20,
        split_bytes: int = SPLIT_BYTES,
        smallest_bytes: int = 1,
    ):
        if next_region_bytes < 1 or split_bytes < 1 or smallest_bytes < 1:
            raise ValueError(
                f"Sizes must be positive: {next_region_bytes=}, {split_bytes=}, {smallest_bytes=}."
            )
        self._limit_bytes = limit_bytes
        self._next_region_bytes = rounded_up(next_region_bytes)
        self._split_bytes = split_bytes
        self.smallest_bytes = smallest_bytes
        self._free: list[tuple[int, int]] = []  # (bytes, address) of the free chunks, in order
        self._free_at: dict[int, int] = {}  # the same: address -> bytes
        self._free_end: dict[int, int] = {}  # and: the address after it -> its address
        self._used: dict[int, int] = {}  # address -> bytes of the chunks in use
        self._borders: set[int] = set()  # the addresses at which regions begin
        self._lowest_address = _TOP_ADDRESS  # of the regions fetched so far
        self._pool_bytes = self.fetched_bytes = self.in_use_bytes = self.peak_bytes = 0

    @classmethod
    def of_free_chunks(
        cls,
        chunks: Iterable[tuple[int, int]],
        *,
        in_use_bytes: int = 0,
        more: bool = True,
        limit_bytes: int | None = None,
        split_bytes: int = SPLIT_BYTES,
        smallest_bytes: int = 1,
    ) -> Pool:
        """Returns a pool of which the free chunks are known, but not the chunks in use.

        Args:
          chunks: (address, bytes) of each free chunk. Two of them never join, even if one begins at
            the other's end.
          in_use_bytes: The bytes in use. Only chunks named by `add_chunk_in_use` can be released.
          more: Whether the pool can fetch regions. Their sizes are not known: one very large region
            stands for them.
          limit_bytes, split_bytes, smallest_bytes: As in `Pool`; bytes in use count for the limit.
        """
        pool = cls(
            limit_bytes=limit_bytes,
            next_region_bytes=_UNLIMITED_REGION_BYTES,
            split_bytes=split_bytes,
            smallest_bytes=smallest_bytes,
        )
        end = 0
        for address, size in sorted(chunks):
            if size < 1 or size % UNIT_BYTES or address < end:
                raise ValueError(
                    f"({address}, {size}) is no free chunk: it overlaps another, or is no multiple"
                    " of 256 bytes."
                )
            pool._add_region(address, size)
            end = address + size
        pool.in_use_bytes = pool.peak_bytes = in_use_bytes
        pool._pool_bytes += in_use_bytes
        if not more:
            pool._limit_bytes = pool._pool_bytes
        return pool

    @property
    def largest_hole_bytes(self) -> int:
        """The largest free chunk, 0 for none. Regions not fetched yet do not count."""
        return self._free[-1][0] if self._free else 0

    @property
    def free_chunks(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of each free chunk, in the order of addresses."""
        return tuple(sorted(self._free_at.items()))

    def chunk_bytes(self, address: int) -> int:
        """Returns the size of the chunk in use at an address."""
        return self._used[address]

    def add_chunk_in_use(self, address: int, size: int) -> None:
        """Names a chunk that `of_free_chunks` counted in `in_use_bytes`: it can be released now."""
        if size < 1 or size % UNIT_BYTES or address in self._used:
            raise ValueError(
                f"({address}, {size}) is no chunk in use: it is known, or no multiple of 256 bytes."
            )
        self._used[address] = size
        self._borders.discard(address + size)

    def copy(self) -> Pool:
        """Returns a pool in the same state, independent of this one."""
        other = Pool.__new__(Pool)
        for name, value in vars(self).items():
            setattr(other, name, value if value is None or isinstance(value, int) else value.copy())
        return other

    def request(self, size: int) -> int | None:
        """Returns the address of the chunk that a request gets; None if another allocator serves
        it. Raises `PoolExhausted`, and does not change, if no free chunk is large enough, nor any
        region within the limit."""
        if size < self.smallest_bytes:
            if size < 1:
                raise ValueError(f"A request has at least one byte, not {size}.")
            return None
        need = rounded_up(size)
        free = self._free
        k = bisect_left(free, (need, 0))
        if k == len(free):
            self._fetch_region(need)
            k = bisect_left(free, (need, 0))
        chunk, address = free.pop(k)
        del self._free_at[address]
        rest = chunk - need
        if rest >= need or rest >= self._split_bytes:
            split_off = address + need
            insort(free, (rest, split_off))
            self._free_at[split_off] = rest
            self._free_end[address + chunk] = split_off
            chunk = need
        else:
            del self._free_end[address + chunk]
        self._used[address] = chunk
        self.in_use_bytes += chunk
        if self.in_use_bytes > self.peak_bytes:
            self.peak_bytes = self.in_use_bytes
        return address

    def release(self, address: int | None) -> None:
        """Gives a chunk back; None for one that another allocator served. Raises `ValueError` if no
        chunk in use begins at this address."""
        if address is None:
            return
        if address not in self._used:
            raise ValueError(f"No chunk in use begins at address {address}.")
        free, free_at, free_end, borders = self._free, self._free_at, self._free_end, self._borders
        size = self._used.pop(address)
        end = address + size
        self.in_use_bytes -= size
        if end in free_at and end not in borders:
            after = free_at.pop(end)
            del free[bisect_left(free, (after, end))]
            size += after
            end += after
        if address in free_end and address not in borders:
            start = free_end.pop(address)
            before = address - start
            del free[bisect_left(free, (before, start))]
            size += before
            address = start
        insort(free, (size, address))
        free_at[address] = size
        free_end[end] = address

    def run(
        self,
        events: Iterable[tuple[Hashable, int]],
        buffers: dict[Hashable, int | None] | None = None,
    ) -> int:
        """Serves requests and releases in order.

        Args:
          events: (buffer id, bytes) for a request, (buffer id, 0) for the release of its chunk.
          buffers: Buffer id -> address, of the buffers in use. `run` removes the buffers that it
            releases and adds those that it requests. With a dictionary per training step, equal ids
            of different steps are different buffers. A result of a step can be released during a
            later `run`, if it is put into that dictionary, or by `release`.

        Returns:
          The most bytes in use at any moment of these events; bytes in use before count.

        Raises:
          PoolExhausted: A request does not fit, `buffer`. All events before it were served.
          ValueError: A buffer is requested that is in use, or released that is not.
        """
        buffers = {} if buffers is None else buffers
        earlier, self.peak_bytes = self.peak_bytes, self.in_use_bytes
        buffer: Hashable = None
        try:
            for buffer, size in events:
                if not size:
                    self.release(buffers.pop(buffer))
                elif buffer in buffers:
                    raise ValueError(f"Buffer {buffer!r} is requested, but is in use.")
                else:
                    buffers[buffer] = self.request(size)
        except PoolExhausted as error:
            error.buffer = buffer
            raise
        except KeyError:
            raise ValueError(f"Buffer {buffer!r} is released, but is not in use.") from None
        finally:
            peak, self.peak_bytes = self.peak_bytes, max(earlier, self.peak_bytes)
        return peak

    def _fetch_region(self, need: int) -> None:
        size = self._next_region_bytes
        while size < need:
            size *= 2
        following = max(size, 2 * self._next_region_bytes)
        if self._limit_bytes is not None:
            left = (self._limit_bytes - self._pool_bytes) // UNIT_BYTES * UNIT_BYTES
            if left < need:
                raise PoolExhausted(need, self.largest_hole_bytes)
            size = min(size, left)
        self._next_region_bytes = following
        self._lowest_address -= size
        self._add_region(self._lowest_address, size)
        self.fetched_bytes += size

    def _add_region(self, address: int, size: int) -> None:
        self._borders.add(address)
        insort(self._free, (size, address))
        self._free_at[address] = size
        self._free_end[address + size] = address
        self._pool_bytes += size
