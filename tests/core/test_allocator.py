"""The model of the allocator: each rule by example, then all of them against a second
implementation that searches lists from end to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.core.allocator import ONEDNN_SMALLEST_BYTES, Pool, PoolExhausted

MIB = 2**20


def one_piece(size=2**40, **options):
    return Pool.of_free_chunks([(0, size)], more=False, **options)


def cut(pool, *sizes):
    return [pool.request(size) for size in sizes]


# The rules


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("smallest_bytes", [1, 1024])
def test_a_request_has_a_size(size, smallest_bytes):
    with pytest.raises(ValueError, match="at least one byte"):
        Pool(smallest_bytes=smallest_bytes).request(size)


@pytest.mark.parametrize(
    ("free", "need", "chunk"),
    [
        (1024, 512, 512),
        (1024 - 256, 512, 1024 - 256),  # less than twice what is needed
        (MIB, 256, 256),
        (428 * MIB, 300 * MIB, 300 * MIB),  # 128 MiB would be left
        (428 * MIB - 256, 300 * MIB, 428 * MIB - 256),
    ],
)
def test_a_chunk_is_split_where_enough_is_left(free, need, chunk):
    pool = one_piece(free)
    assert pool.chunk_bytes(pool.request(need)) == chunk
    assert pool.largest_hole_bytes == free - chunk


def test_regions_double():
    pool = Pool()
    fetched = []
    for size in (1, 2 * MIB, 8 * MIB, 20 * MIB, 32 * MIB, 60 * MIB):
        pool.request(size)
        fetched.append(pool.fetched_bytes // MIB)
    # 8 is as large as the region that is due, 20 does not fit 16, 32 is due then as it was not
    # fetched before, 60 fits 64, which is due
    assert fetched == [2, 6, 14, 46, 78, 142]


def test_the_first_region_can_be_given():
    pool = Pool(next_region_bytes=1000)
    pool.request(1024)
    assert (pool.fetched_bytes, pool.largest_hole_bytes) == (1024, 0)
    pool.request(1)
    assert pool.fetched_bytes == 1024 + 2048


def test_a_limit_cuts_the_last_region():
    pool = Pool(limit_bytes=3 * MIB + 100)
    cut(pool, 2 * MIB, MIB // 2)
    assert pool.fetched_bytes == 3 * MIB
    before = pool.free_chunks, pool.in_use_bytes
    with pytest.raises(PoolExhausted) as caught:
        pool.request(MIB)
    assert (caught.value.requested_bytes, caught.value.largest_hole_bytes, caught.value.buffer) == (
        MIB,
        MIB // 2,
        None,
    )
    assert (pool.free_chunks, pool.in_use_bytes) == before
    pool.request(MIB // 2)
    with pytest.raises(
        PoolExhausted, match=r"256 bytes does not fit: the largest free chunk has 0\."
    ):
        pool.request(1)


def test_another_allocator_serves_small_requests():
    pool = Pool(smallest_bytes=ONEDNN_SMALLEST_BYTES)
    assert pool.request(ONEDNN_SMALLEST_BYTES - 1) is None
    assert pool.run([("a", 1), ("b", ONEDNN_SMALLEST_BYTES), ("a", 0)]) == ONEDNN_SMALLEST_BYTES
    pool.release(None)
    assert pool.in_use_bytes == ONEDNN_SMALLEST_BYTES


def test_only_what_is_in_use_can_be_released():
    pool = one_piece()
    first, second = cut(pool, 512, 512)
    for address in (first + 256, second + 512):
        with pytest.raises(ValueError, match="No chunk in use"):
            pool.release(address)
    pool.release(first)
    with pytest.raises(ValueError, match="No chunk in use"):
        pool.release(first)


# A pool whose free chunks are known


def test_bytes_in_use_count_and_more_can_be_fetched():
    pool = Pool.of_free_chunks([(512, 1024)], in_use_bytes=5000)
    assert (pool.in_use_bytes, pool.peak_bytes, pool.largest_hole_bytes) == (5000, 5000, 1024)
    assert pool.run([("a", 1024), ("b", 2**40)]) == 5000 + 1024 + 2**40
    assert pool.fetched_bytes > 2**40


def test_a_limit_counts_what_is_in_use():
    pool = Pool.of_free_chunks([(512, 1024)], in_use_bytes=3072, limit_bytes=4096 + 2048)
    with pytest.raises(PoolExhausted):
        pool.request(2049)
    pool.request(2048)
    assert pool.fetched_bytes == 2048


def test_a_chunk_that_was_in_use_before_can_be_released():
    pool = Pool.of_free_chunks([(0, 512), (1024, 512), (2048, 512)], in_use_bytes=2048, more=False)
    pool.add_chunk_in_use(512, 512)
    with pytest.raises(PoolExhausted):
        pool.request(1536)
    pool.release(512)
    assert (pool.in_use_bytes, pool.free_chunks) == (1536, ((0, 1536), (2048, 512)))
    assert pool.request(1536) == 0


def test_a_chunk_in_use_is_told_of_once():
    pool = Pool.of_free_chunks([(0, 512)], in_use_bytes=1024)
    pool.add_chunk_in_use(512, 512)
    for chunk in ((512, 512), (1024, 100), (1024, 0)):
        with pytest.raises(ValueError, match="no chunk in use"):
            pool.add_chunk_in_use(*chunk)


@pytest.mark.parametrize(
    "chunks", [[(0, 100)], [(0, 0)], [(0, -256)], [(0, 512), (256, 256)], [(-256, 256)]]
)
def test_chunks_must_be_possible(chunks):
    with pytest.raises(ValueError, match="no free chunk"):
        Pool.of_free_chunks(chunks)


@pytest.mark.parametrize("option", ["next_region_bytes", "split_bytes", "smallest_bytes"])
def test_sizes_must_be_positive(option):
    with pytest.raises(ValueError, match=f"{option}=0"):
        Pool(**{option: 0})


# Lists of events


def test_run_counts_from_what_is_in_use():
    pool = one_piece()
    assert pool.run([("a", 1024), ("b", 512), ("a", 0), ("c", 256)]) == 1536
    assert (pool.in_use_bytes, pool.peak_bytes) == (768, 1536)
    assert pool.run([("d", 256)]) == 1024, "the peak of these events, not of those before"
    assert pool.peak_bytes == 1536
    assert pool.run([]) == 1024


def test_steps_with_equal_ids_and_results_that_outlive_them():
    """Each step reads a batch that lies in memory before, and leaves a result that is dropped
    during the next."""
    pool, last = one_piece(), None
    step = (
        [("batch", 1024)],
        [("x", 4096), ("result", 512), ("last result", 0), ("x", 0), ("batch", 0)],
    )
    peaks = []
    for _ in range(3):
        buffers = {"last result": last}
        for events in step:
            peaks.append(pool.run(events, buffers))
        assert list(buffers) == ["result"]
        last = buffers["result"]
    # In the second step x gets what it needs, in the third a whole chunk of 4,608 bytes, which is
    # too small to be split.
    assert peaks == [
        1024,
        1024 + 4096 + 512,
        512 + 1024,
        512 + 1024 + 4096 + 512,
        512 + 1024,
        512 + 1024 + 4608 + 512,
    ]
    pool.release(last)
    assert pool.in_use_bytes == 0


def test_what_does_not_fit_is_named():
    pool, buffers = one_piece(2048), {}
    with pytest.raises(PoolExhausted) as caught:
        pool.run([("a", 1024), ("b", 256), ("a", 0), (("op", 7), 1200), ("c", 256)], buffers)
    assert (caught.value.buffer, caught.value.largest_hole_bytes) == (("op", 7), 1024)
    assert list(buffers) == ["b"]
    assert (pool.in_use_bytes, pool.peak_bytes) == (256, 1280)


def test_events_must_make_sense():
    with pytest.raises(ValueError, match="'a' is requested, but is in use"):
        one_piece().run([("a", 256), ("a", 256)])
    with pytest.raises(ValueError, match="'a' is released, but is not in use"):
        one_piece().run([("b", 256), ("a", 0)])


def test_a_copy_goes_its_own_way():
    pool, buffers = Pool(limit_bytes=8 * MIB), {}
    pool.run([("a", 1000), ("b", 3000)], buffers)
    other = pool.copy()
    state = pool.free_chunks, pool.in_use_bytes, pool.peak_bytes, pool.fetched_bytes
    other.run([("a", 0), ("c", 3 * MIB), ("b", 0)], dict(buffers))
    assert (pool.free_chunks, pool.in_use_bytes, pool.peak_bytes, pool.fetched_bytes) == state
    assert pool.run([("a", 0), ("c", 3 * MIB), ("b", 0)], buffers) == other.peak_bytes
    assert pool.free_chunks == other.free_chunks


# All rules at once


class Naive:
    """The same allocator, with a list of [bytes, in use] per region, searched from end to end; an
    address is (region, bytes before)."""

    def __init__(self, sizes, *, limit, next_region, split):
        self.regions = {k: [[size, False]] for k, size in enumerate(sizes)}
        self.limit, self.next_region, self.split = limit, next_region, split

    def chunks(self):
        for region, chunks in self.regions.items():
            start = 0
            for k, (size, used) in enumerate(chunks):
                yield size, (region, start), used, k
                start += size

    def total(self, wanted):
        return sum(size for size, _, used, _ in self.chunks() if used == wanted)

    def request(self, size):
        need = size + -size % 256
        fits = [chunk for chunk in self.chunks() if not chunk[2] and chunk[0] >= need]
        if not fits:
            if not self.grow(need):
                return None
            return self.request(size)
        found, address, _, k = min(fits)
        given = need if found >= 2 * need or found - need >= self.split else found
        self.regions[address[0]][k : k + 1] = [[given, True]] + (
            [[found - given, False]] if found > given else []
        )
        return address

    def grow(self, need):
        left = self.limit - self.total(True) - self.total(False)
        if left // 256 * 256 < need:
            return False
        doubled = False
        while self.next_region < need:
            self.next_region, doubled = 2 * self.next_region, True
        newest = min([0, *self.regions]) - 1  # regions lie lower and lower
        self.regions[newest] = [[min(self.next_region, left // 256 * 256), False]]
        if not doubled:
            self.next_region *= 2
        return True

    def release(self, address):
        k = next(k for _, at, _, k in self.chunks() if at == address)
        chunks = self.regions[address[0]]
        chunks[k][1] = False
        joined = []
        for size, used in chunks:
            if joined and not used and not joined[-1][1]:
                joined[-1][0] += size
            else:
                joined.append([size, used])
        self.regions[address[0]] = joined

    def size_of(self, address):
        return next(size for size, at, _, _ in self.chunks() if at == address)


UNITS = st.one_of(st.integers(1, 12), st.integers(1, 300))
SIZES = st.builds(
    lambda units, less: max(1, 256 * units - less), UNITS, st.sampled_from([0, 0, 1, 255])
)
# A number of bytes to request, or, below 1, which of the buffers in use to release.
MOVES = st.lists(st.one_of(SIZES, st.integers(-40, 0)), max_size=60)
REGIONS = st.lists(st.builds(lambda units: 256 * units, st.integers(1, 200)), max_size=4)
OPTIONS = st.fixed_dictionaries(
    {
        "limit": st.one_of(st.integers(0, 256 * 1000), st.just(2**40)),
        "next_region": st.builds(lambda units: 256 * units, st.integers(1, 64)),
        "split": st.builds(lambda units: 256 * units, st.integers(1, 40)),
    }
)


def pool_of(sizes, options):
    """A pool with these regions side by side, so that nothing but their borders keeps chunks apart,
    and the addresses of the regions."""
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    pool = Pool.of_free_chunks(
        zip(starts, sizes, strict=True),
        limit_bytes=max(options["limit"], sum(sizes)),
        split_bytes=options["split"],
    )
    pool._next_region_bytes = options["next_region"]
    return pool, dict(enumerate(starts))


@given(REGIONS, OPTIONS, MOVES)
def test_a_second_implementation_gives_the_same_chunks(sizes, options, moves):
    pool, bases = pool_of(sizes, options)
    naive = Naive(
        sizes,
        limit=max(options["limit"], sum(sizes)),
        next_region=options["next_region"],
        split=options["split"],
    )
    held, peak = [], 0
    for move in moves:
        if move > 0:
            expected = naive.request(move)
            if expected is None:
                with pytest.raises(PoolExhausted) as caught:
                    pool.request(move)
                assert caught.value.largest_hole_bytes == pool.largest_hole_bytes
                continue
            address = pool.request(move)
            region, offset = expected
            assert address == bases.setdefault(region, address - offset) + offset
            assert pool.chunk_bytes(address) == naive.size_of(expected)
            held.append((address, expected))
        elif held:
            address, expected = held.pop(move % len(held))
            pool.release(address)
            naive.release(expected)
        peak = max(peak, naive.total(True))
        assert (pool.in_use_bytes, pool.peak_bytes) == (naive.total(True), peak)
        assert pool.largest_hole_bytes == max(
            (size for size, _, used, _ in naive.chunks() if not used), default=0
        )


@given(REGIONS, OPTIONS, MOVES)
def test_run_does_what_requests_and_releases_do(sizes, options, moves):
    one, _ = pool_of(sizes, options | {"limit": 2**40})
    other = one.copy()
    events, addresses = [], {}
    for k, move in enumerate(moves):
        if move > 0:
            events.append((k, move))
            addresses[k] = one.request(move)
        elif addresses:
            k = list(addresses)[move % len(addresses)]
            events.append((k, 0))
            one.release(addresses.pop(k))
    buffers = {}
    assert other.run(events, buffers) == one.peak_bytes
    assert buffers == addresses
    assert other.free_chunks == one.free_chunks
