"""What nodes that run one after another ask the allocator for, and what a log of that teaches about
them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.core.allocator import Pool
from checkmate.core.events import ENTRIES, LoggedRequest, Program, learn, requests_by_node
from checkmate.core.footprint import Footprint, Kind, Node, Request


def node(name, reads="", sizes=(100,), kind=Kind.KERNEL, **facts):
    """A node that reads the first outputs of those nodes, or what is written as name:output."""
    tensors = [(each.partition(":")[0], int(each.partition(":")[2] or 0)) for each in reads.split()]
    return Node(name, facts.pop("key", name), kind, tuple(tensors), tuple(sizes), **facts)


def view(name, reads, outputs=1):
    return node(name, reads, (0,) * outputs, Kind.VIEW)


def resident(name):
    return node(name, "", (1000,), Kind.RESIDENT)


def program(*nodes, outputs=()):
    return Program(nodes, tuple((name, 0) for name in outputs))


def asked(*nodes, outputs=(), **footprints):
    """The events of a program, and its results."""
    events = program(*nodes, outputs=outputs).events(footprints)
    return list(events.steps), events.results


def test_what_is_resident_takes_nothing():
    steps, results = asked(
        resident("x"), view("v", "x"), node("a", "x v", (1,)), outputs=("a", "x", "v")
    )
    assert steps == [(0, 1)] and results == (0,)
    assert asked(resident("x"), node("a", "x", (1000,), in_place=True), outputs="a")[0] == [
        (0, 1000)
    ], "nothing is written over it"
    steps, _ = asked(
        node("a", sizes=(1,)),
        node("r", "a", (1000,), Kind.RESIDENT),
        node("b", "r", (2,)),
        outputs="b",
    )
    assert steps == [(0, 1), (0, 0), (1, 2)], "what it is made of is not what it is"
    assert asked(node("a", "given", (1,)), outputs="a")[0] == [(0, 1)], (
        "nor does what no node makes"
    )


def test_of_several_inputs_the_first_that_may_be_is_written_over():
    three = [node("a"), node("b"), node("c"), node("d", "a b c", in_place=True)]
    assert asked(*three, outputs="d") == ([(0, 100), (1, 100), (2, 100), (1, 0), (2, 0)], (0,))
    assert asked(*three, outputs="da") == ([(0, 100), (1, 100), (2, 100), (2, 0)], (0, 1))
    two = [
        node("a"),
        node("b"),
        node("d", "a b", (100, 100), in_place=True),
        node("e", "d:0 d:1", (1,)),
    ]
    assert asked(*two)[0] == [(0, 100), (1, 100), (2, 1), (2, 0), (0, 0), (1, 0)], (
        "each by one output"
    )
    assert asked(node("a"), node("b", "a a", in_place=True), outputs="b")[0] == [
        (0, 100),
        (1, 100),
        (0, 0),
    ], "what is read twice by none"


def test_a_part_shares_the_memory_of_what_it_is_a_part_of():
    none = Footprint(())
    part = node("p", "a", (10,), shares=True)
    assert asked(node("a"), part, node("b", "p", (1,)), p=none)[0] == [
        (0, 100),
        (1, 1),
        (1, 0),
        (0, 0),
    ]
    assert asked(resident("a"), part, outputs="p", p=none) == ([], ())
    assert asked(node("a"), part, outputs="p")[0] == [(0, 100), (1, 10), (0, 0)], (
        "not where it was seen to ask, or was not seen"
    )
    small = node("p", "b a", (10,), shares=True)
    assert asked(node("a"), node("b", sizes=(50,)), small, outputs="p", p=none) == (
        [(0, 100), (1, 50), (1, 0)],
        (0,),
    ), "of the largest"
    assert asked(node("a"), replace(part, shares=False), outputs="p", p=none) == (
        [(0, 100), (0, 0)],
        (),
    ), "what may not be one is made elsewhere"


def test_a_footprint_says_what_is_asked_for_in_which_order():
    seen = Footprint((Request(7), Request(100, output=0), Request(8)))
    assert asked(node("a"), a=seen)[0] == [(0, 7), (1, 100), (2, 8), (0, 0), (2, 0), (1, 0)]
    expected = node("a", workspace_bytes=9)
    assert asked(expected, outputs="a")[0] == [(0, 100), (1, 9), (1, 0)], (
        "outputs, then the workspace, where none tells"
    )
    assert asked(expected, outputs="a", a=Footprint((Request(100, output=0),)))[0] == [(0, 100)]
    assert asked(node("a"), outputs="a", a=Footprint((Request(5),)))[0] == [(0, 5), (0, 0)], (
        "what no request is for another kernel makes"
    )
    seen = Footprint((Request(5),), in_place=True)
    assert asked(node("a"), outputs="a", a=seen)[0] == [(0, 5), (1, 100), (0, 0)], (
        "or it comes last, where it cannot be written over an input"
    )


def test_the_footprint_of_an_evaluation_goes_before_that_of_its_op():
    first, again = node("op/0", key="op"), node("op/1", key="op")
    seen = {
        "op": Footprint((Request(1), Request(100, output=0))),
        "op/1": Footprint((Request(2), Request(100, output=0))),
    }
    assert program(first, again).events(seen).steps == (
        *((0, 1), (1, 100), (0, 0), (1, 0), (2, 2), (3, 100), (2, 0), (3, 0)),
    )


def test_a_log_is_told_apart_by_who_asked():
    log = [
        *(("a", 1, 100, True), ("a", 2, 7, False), (None, 2, 0, False), ("a", 2, 8, False)),
        *((None, 2, 0, False), ("b", 3, 50, True), (None, 1, 0, False), ("", 4, 5, False)),
        *((None, 4, 0, False), (None, 77, 0, False), ("c", 1, 9, True)),
    ]
    assert requests_by_node(log) == {
        "a": [
            LoggedRequest(100, True, None),
            LoggedRequest(7, False, 2),
            LoggedRequest(8, False, 3),
        ],
        "b": [
            LoggedRequest(50, True, None),
            LoggedRequest(5, False, 2),
        ],  # a thread of a kernel asks without its name
        "c": [LoggedRequest(9, True, None)],
    }
    assert requests_by_node([]) == {}


def learnt(nodes, outputs=(), **logged):
    return learn(program(*nodes, outputs=outputs), logged)


def test_what_is_for_an_output_is_said_or_what_outlives_the_kernel():
    work, out = LoggedRequest(100, False, 2), LoggedRequest(100, True, None)
    assert learnt([node("a")], outputs="a", a=[work, out])["a"].requests == (
        Request(100, until=2),
        Request(100, output=0),
    )
    assert learnt([node("a")], outputs="a", a=[out, work])["a"].requests == (
        Request(100, output=0),
        Request(100, until=2),
    )
    outlives = replace(out, is_output=False)
    assert learnt([node("a")], outputs="a", a=[outlives, work])["a"].requests == (
        Request(100, output=0),
        Request(100, until=2),
    )
    longer = replace(work, until=None)
    assert learnt([node("a")], outputs="a", a=[out, longer])["a"].requests == (
        Request(100, output=0),
        Request(100),
    ), "what is said counts first"
    other = LoggedRequest(99, True, None)
    assert learnt([node("a")], outputs="a", a=[other])["a"].requests == (Request(99),), (
        "of another size"
    )


def test_outputs_of_one_size_are_asked_for_in_their_order():
    out = LoggedRequest(100, True, None)
    assert learnt([node("a", sizes=(100, 100))], a=[out, out])["a"].requests == (
        Request(100, output=0),
        Request(100, output=1),
    )


def test_whether_an_output_is_written_over_an_input_is_learnt_where_it_could_be():
    out = LoggedRequest(100, True, None)
    assert learnt([node("a"), node("b", "a")], outputs="b", a=[out])["b"].in_place is True
    assert learnt([node("a"), node("b", "a")], outputs="b", a=[out], b=[out])["b"].in_place is False
    assert (
        learnt([node("a"), node("b", "a")], outputs="ab", a=[out], b=[out])["b"].in_place is None
    ), "somebody holds it"
    assert (
        learnt([resident("a"), node("b", "a", (1000,))], outputs="b", b=[replace(out, bytes=1000)])[
            "b"
        ].in_place
        is None
    )


def test_what_was_seen_in_one_evaluation_is_known_of_all():
    out = LoggedRequest(100, True, None)
    nodes = [node("a"), node("x/0", "a", key="x"), node("c"), node("x/1", "c", key="x")]
    found = learnt(nodes, outputs=("a", "x/0", "x/1"), **{"a": [out], "x/0": [out], "c": [out]})
    assert found["x/0"].in_place and found["x/1"].in_place and found["x"].in_place
    assert found["x"].requests == (Request(100, output=0),), (
        "the longer one is for evaluations that were not there"
    )


def test_what_was_seen_to_ask_for_nothing_asks_for_nothing():
    """As an op that TensorFlow folded into a constant."""
    whole = program(
        resident("x"),
        node("folded", "x", (1000,), in_place=True),
        node("b", "folded", (1,)),
        outputs="b",
    )
    found = learn(whole, {"b": [LoggedRequest(1, True, None)]})
    assert whole.events(found).steps == ((0, 1),)


# What a program does, by counting for each buffer who will still read what lies in it.


def served(whole, footprints):
    """Yields (node, buffer, bytes, whether for an output) for each request, and (None, buffer, 0,
    False) where a buffer is given back."""
    left = {}  # tensor -> how often it will be read yet
    for tensor in itertools.chain(whole.outputs, *(each.reads for each in whole.nodes)):
        left[tensor] = left.get(tensor, 0) + 1
    lies = {}  # tensor -> buffer
    size_of = []

    def holders(buffer):
        return sum(count for tensor, count in left.items() if lies.get(tensor) == buffer)

    for each in whole.nodes:
        outputs = [(each.name, k) for k in range(len(each.output_bytes))]
        inside = [lies.get(tensor) for tensor in each.reads]
        if each.kind is Kind.VIEW:
            for k, output in enumerate(outputs):
                lies[output] = inside[k] if k < len(inside) else inside[0]
        if each.kind is Kind.KERNEL:
            footprint = footprints[each.key]
            (output,), (size,), place = outputs[:1], each.output_bytes[:1], None
            if footprint.in_place and left.get(output):
                place = next(
                    (b for b in inside if b is not None and size_of[b] == size and holders(b) == 1),
                    None,
                )
            workspaces, new = [], []
            for number, request in enumerate(footprint.requests):
                for done in [b for b, until in workspaces if until is not None and until <= number]:
                    workspaces = [(b, until) for b, until in workspaces if b != done]
                    yield None, done, 0, False
                if request.output == 0 and place is not None:
                    continue
                buffer = len(size_of)
                size_of.append(request.bytes)
                yield each.name, buffer, request.bytes, request.output is not None
                if request.output is None:
                    workspaces.append((buffer, request.until))
                else:
                    new.append((outputs[request.output], buffer))
            for buffer, _ in workspaces:
                yield None, buffer, 0, False
            for made, buffer in new:
                if left.get(made):
                    lies[made] = buffer
                else:
                    yield None, buffer, 0, False
            if place is not None:
                lies[output] = place
        for tensor, buffer in zip(each.reads, inside, strict=True):
            left[tensor] -= 1
            if buffer is not None and not holders(buffer):
                yield None, buffer, 0, False


@st.composite
def programs(draw):
    """(program, footprints by key): kernels with one output in place or with several, evaluations
    of one op, views, residents."""
    nodes, footprints, ops = [], {}, []
    unlike = itertools.count(10_001)  # no other request of a kernel is as large as an output of it
    for i in range(draw(st.integers(1, 12))):
        tensors = [(each.name, k) for each in nodes for k in range(len(each.output_bytes))]
        reads = draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []
        kind = draw(st.sampled_from([Kind.KERNEL] * 4 + [Kind.VIEW, Kind.RESIDENT]))
        if kind is Kind.VIEW and reads:
            nodes.append(Node(f"n{i}", f"n{i}", kind, tuple(reads), (0,) * draw(st.integers(1, 2))))
        elif kind is Kind.RESIDENT:
            nodes.append(Node(f"n{i}", f"n{i}", kind, (), (draw(st.sampled_from((256, 512))),)))
        elif ops and draw(st.booleans()):
            nodes.append(replace(draw(st.sampled_from(ops)), name=f"n{i}", reads=tuple(reads)))
        else:
            sizes = [
                draw(st.sampled_from((256, 512))),
                *(next(unlike) for _ in range(draw(st.integers(0, 1)))),
            ]
            count = draw(st.integers(0, 3))
            work = [
                Request(next(unlike), until=draw(st.none() | st.integers(1, 6)))
                for _ in range(count)
            ]
            requests = draw(
                st.permutations([*work, *(Request(size, output=k) for k, size in enumerate(sizes))])
            )
            requests = [
                replace(each, until=each.until and each.until + k)
                for k, each in enumerate(requests)
            ]
            in_place = draw(st.booleans()) if len(sizes) == 1 else False
            ops.append(
                Node(
                    f"n{i}",
                    f"n{i}",
                    Kind.KERNEL,
                    tuple(reads),
                    tuple(sizes),
                    in_place=draw(st.booleans()),
                )
            )
            nodes.append(ops[-1])
            footprints[ops[-1].key] = Footprint(tuple(requests), in_place)
    tensors = [(each.name, k) for each in nodes for k in range(len(each.output_bytes))]
    return (
        Program(tuple(nodes), tuple(draw(st.lists(st.sampled_from(tensors), max_size=2)))),
        footprints,
    )


@given(programs())
def test_events_are_those_of_a_program_that_counts_its_readers(problem):
    whole, footprints = problem
    expected = [(buffer, size) for _, buffer, size, _ in served(whole, footprints)]
    events = whole.events(footprints)
    assert list(events.steps) == expected
    left = {buffer for buffer, size in expected if size} - {
        buffer for buffer, size in expected if not size
    }
    assert set(events.results) == left


@given(programs())
def test_what_is_learnt_from_a_log_says_what_was_logged(problem):
    whole, footprints = problem
    pool, places, log = Pool(), {}, []
    for name, buffer, size, is_output in served(whole, footprints):
        if name is None:
            log.append((None, places[buffer], 0, False))
            pool.release(places.pop(buffer))
        else:
            places[buffer] = pool.request(size)
            log.append((name, places[buffer], size, is_output))
    found = learn(whole, requests_by_node(log))
    assert whole.events(found) == whole.events(footprints)


@given(programs(), st.data())
def test_another_plan_of_the_same_ops_is_told_by_what_was_learnt(problem, data):
    """Where each op was seen to ask for its output, and nothing is written over."""
    whole, footprints = problem
    footprints = {key: replace(each, in_place=False) for key, each in footprints.items()}
    log = [
        (name, buffer, size, is_output)
        for name, buffer, size, is_output in served(whole, footprints)
    ]
    found = learn(whole, requests_by_node(log))
    kernels = [each for each in whole.nodes if each.kind is Kind.KERNEL]
    again = [
        replace(each, name=f"again{k}")
        for k, each in enumerate(
            data.draw(st.lists(st.sampled_from(kernels), max_size=4)) if kernels else []
        )
    ]
    other = Program((*whole.nodes, *again), whole.outputs)
    assert other.events(found).steps == other.events(footprints).steps


@pytest.mark.parametrize("kind", [Kind.KERNEL, Kind.VIEW])
def test_a_node_without_outputs_gives_back_what_it_read(kind):
    assert asked(node("a"), node("end", "a", (), kind))[0] == [(0, 100), (0, 0)]


def test_what_shares_an_inputs_memory_does_so_whoever_holds_it():
    """A slice that ran alone did not ask, and nothing else held its input."""
    nodes = node("a"), node("slice", "a", shares=True), node("reader", "slice")
    ran = program(*nodes)
    learned = learn(ran, {name: [LoggedRequest(100, True, None)] for name in ("a", "reader")})
    assert learned["slice"] == Footprint((), in_place=False)
    steps, _ = asked(*nodes, node("later", "a"), **learned)
    assert [size for _, size in steps if size] == [100, 100, 100]


def test_a_workspace_where_an_op_runs_alone_is_an_output_where_that_is_read():
    """As what a pooling leaves for its gradient."""
    pool = node("pool", sizes=(100, 30))
    alone = Footprint((Request(100, output=0), Request(30, until=2)))
    gradient = node("gradient", "pool:1", (7,))
    steps, _ = asked(pool, gradient, pool=alone)
    assert steps == [(0, 100), (1, 30), (0, 0), (2, 7), (2, 0), (1, 0)]


def test_the_most_bytes_requested_at_once():
    events = program(node("a"), node("b", "a", (50,)), node("c", "b")).events({})
    assert events.most_requested_bytes == 150


def test_a_list_is_asked_for_in_pieces_which_find_room_where_the_whole_does_not():
    size = 1 << 20
    made = [node("a"), node("b", sizes=(50,)), node("list", sizes=(size, size), lists=(1,))]
    steps, _ = asked(*made, node("c", "list:0 list:1"))
    requests = [bytes for _, bytes in steps if bytes]
    assert requests[:3] == [100, 50, size] and len(requests) == 3 + ENTRIES + 1
    assert sum(requests[3:-1]) == size and len({buffer for buffer, _ in steps}) == len(requests)
    assert sum(bytes == 0 for _, bytes in steps) == len(requests), "all are released"
    smallest = [node("a"), node("b", sizes=(3,), lists=(0,)), node("c", "b")]
    assert sum(bytes for _, bytes in asked(*smallest)[0]) == 100 + 3 + 100
    # Holes of the whole size, apart: a request of two sizes finds none, a list does.
    holes = [(2 * k * size, size) for k in range(2)]
    for lists, is_met in (((), False), ((0,), True)):
        pool = Pool.of_free_chunks(holes, split_bytes=1)
        pool.run(program(node("x", sizes=(2 * size,), lists=lists)).events({}).steps)
        assert pool.fetched_bytes == 0 if is_met else pool.fetched_bytes >= 2 * size
