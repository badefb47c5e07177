"""Op logs: the format line by line, and what is said about lines that do not belong."""

import json

import pytest
from hypothesis import given
from logs import chain, op_logs
from strategies import training_chain

from checkmate import DFGraph, LogError, Op, simulate
from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Annotate, Call, Constant, Copy, CopyFrom, Mutate, Release
from checkmate.dtr.program import Program
from checkmate.dtr.steps import Hold, Run

LINES = """
{"INSTRUCTION":"CONSTANT","NAME":"before"}
{"INSTRUCTION":"MEMORY","NAME":"before","MEMORY":"77"}
{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}
{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"100"}
{"INSTRUCTION":"CALL","NAME":"split","ARGS":["w"],"RESULT":["a","v"],"TIME":"30"}
{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"8"}
{"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"}
{"INSTRUCTION":"MEMORY","NAME":"v","MEMORY":"100"}
{"INSTRUCTION":"ALIAS","NAME":"v","ALIAS":"0"}
{"INSTRUCTION":"ANNOTATE","ANNOTATION":"BACKWARD"}
{"INSTRUCTION":"COPY","DST":"b","SRC":"a"}
{"INSTRUCTION":"MUTATE","NAME":"add_","ARGS":["a","w"],"MUTATE":[0],"TIME":"5"}
{"INSTRUCTION":"COPY_FROM","DST":"b","SRC":"v"}
{"INSTRUCTION":"RELEASE","NAME":"before"}
{"INSTRUCTION":"RELEASE","NAME":"a"}
""".strip().splitlines()

INSTRUCTIONS = (
    Constant("w", 100),
    Call(("a", "v"), "split", ("w",), 30, (8, 100), (-1, 0)),
    Annotate("BACKWARD"),
    Copy("b", "a"),
    Mutate("add_", ("a", "w"), (0,), 5),
    CopyFrom("b", "v"),
    Release("before"),
    Release("a"),
)


def test_read():
    log = OpLog.from_lines(LINES)
    assert log.instructions == INSTRUCTIONS
    assert log.lines == (4, 6, 11, 12, 13, 14, 15, 16)


def test_written_as_the_format_has_it():
    assert list(OpLog(INSTRUCTIONS).to_lines()) == LINES[2:]


def test_numbers_may_be_numbers():
    bare = [
        line.replace('"100"', "100").replace('"-1"', "-1").replace('"30"', "30") for line in LINES
    ]
    assert OpLog.from_lines(bare) == OpLog.from_lines(LINES)


@given(op_logs(many_views=True))
def test_what_is_written_is_read(log):
    assert OpLog.from_lines(log.to_lines()) == log


def test_files(tmp_path):
    path = tmp_path / "small.log"
    OpLog(INSTRUCTIONS).save(path)
    assert OpLog.load(path) == OpLog(INSTRUCTIONS)
    assert simulate(path, "100%") == simulate(OpLog(INSTRUCTIONS), "100%")
    with pytest.raises(LogError, match=r"Cannot read .*missing"):
        OpLog.load(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LogError, match="no text"):
        OpLog.load(tmp_path / "binary")


def test_what_a_log_has_done():
    """Constants are pinned; a mutation makes a new tensor and drops the old one; names in use at
    the end are pinned, in their order."""
    assert Program.from_log(OpLog(INSTRUCTIONS)).steps == (
        Run("constant", (), (100,), (-1,), 0),
        Hold("pin", 0),
        Run("split", (0,), (8, 0), (-1, 0), 30),
        Hold("retain", 1),
        Run("add_", (1, 0), (8,), (-1,), 5),
        Hold("release", 1),
        Hold("release", 1),
        Hold("retain", 2),
        Hold("release", 3),
        Hold("pin", 0),
        Hold("pin", 2),
        Hold("pin", 2),
    )


def test_a_mutated_view_is_as_large_as_what_it_views():
    instructions = (
        Constant("w", 6),
        Call(("v",), "view", ("w",), 1, (6,), (0,)),
        Mutate("add_", ("v",), (0,), 1),
    )
    assert Program.from_log(OpLog(instructions)).steps[3] == Run("add_", (1,), (6,), (-1,), 1)


BAD = [
    (LINES[:6], 7, "MEMORY of 'a' was expected. It is cut"),
    (LINES[:9], 10, "ALIAS of 'v' was expected"),
    ([*LINES[:12], LINES[12][:30]], 13, "not JSON.*an instruction was expected.*may be cut"),
    ([*LINES[:6], LINES[8], *LINES[6:]], 7, "MEMORY of 'v', where MEMORY of 'a' was expected"),
    ([*LINES[:6], *LINES[7:]], 7, "ALIAS of 'a', where MEMORY of 'a'"),
    (
        LINES[:3] + LINES[5:],
        4,
        "reads 'w', but no line before it makes.*CONSTANT, CALL or COPY was expected",
    ),
    ([LINES[2], LINES[6]], 2, "is MEMORY, where CONSTANT, CALL.*follow a CONSTANT or CALL"),
    ([*LINES, LINES[11]], 17, "copies 'a', which line 16 released"),
    ([*LINES, LINES[15]], 17, "releases 'a', which line 16 released"),
    ([*LINES[:5], *LINES[3:5]], 6, "makes 'w', which exists already"),
    (
        ['{"INSTRUCTION":"RELEASE","NAME":"w"}', *LINES[3:5]],
        2,
        "makes 'w', which line 1 released before. The log is out of order",
    ),
    (
        [*LINES[:5], LINES[5].replace('"30"', '"-3"')],
        6,
        "TIME of CALL is '-3', where a whole number, 0 or more",
    ),
    ([*LINES[:5], LINES[5].replace('"30"', f'"{2**63}"')], 6, r"less than 2\^63, was expected"),
    ([*LINES[:4], LINES[4].replace('"100"', '"much"')], 5, "MEMORY of MEMORY is 'much'"),
    ([*LINES[:9], LINES[9].replace('"0"', '"4"')], 6, "view of argument 4; -1 to 0 was expected"),
    (
        [*LINES[:12], LINES[12].replace("[0]", "[2]")],
        13,
        "mutates the arguments .2.; different indices from 0 to 1",
    ),
    ([*LINES[:12], LINES[12].replace("[0]", "[0,0]")], 13, "different indices"),
    ([*LINES[:3], LINES[3].replace("CONSTANT", "CONST")], 4, "is CONST, where CONSTANT, CALL"),
    ([*LINES[:3], '{"NAME":"w"}'], 4, "a JSON object with a key INSTRUCTION"),
    ([*LINES[:3], "[1]"], 4, "a JSON object with a key INSTRUCTION"),
    (
        [*LINES[:5], LINES[5].replace('["w"]', '"w"')],
        6,
        "ARGS of CALL is 'w', where a list of names",
    ),
    (
        [*LINES[:5], '{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":[],"TIME":"1"}'],
        6,
        "0 results; one or more was expected",
    ),
    (['{"INSTRUCTION":"RELEASE"}'], 1, "NAME of RELEASE is None, where text was expected"),
]


@pytest.mark.parametrize(("lines", "line", "said"), BAD)
def test_what_does_not_belong(lines, line, said):
    with pytest.raises(LogError, match=said) as caught:
        OpLog.from_lines(lines)
    assert caught.value.line == line
    assert isinstance(caught.value, ValueError)


def test_every_cut_is_noticed_or_a_log():
    text = "\n".join(LINES[2:])
    full = OpLog.from_lines(LINES).instructions
    for end in range(len(text)):
        try:
            found = OpLog.from_lines(text[:end].splitlines()).instructions
        except LogError as error:
            assert error.line == pytest.approx(text[:end].count("\n") + 1, abs=1)
        else:
            assert found == full[: len(found)]


def test_names_from_before_the_log_may_be_released():
    assert simulate(OpLog((Release("gone"), *chain(3).instructions)), "100%").status == "ok"


def test_of_a_graph():
    graph = DFGraph(
        (
            Op("a", (), 0.5, 3, kind="Conv"),
            Op("b", (0,), 1e-9, 4),
            Op("c", (0,), 2, 5, is_backward=True),
        ),
        (2,),
        7,
    )
    assert OpLog.from_graph(graph).instructions == (
        Constant("fixed_bytes", 7),
        Call(("a",), "Conv", (), 500_000_000, (3,), (-1,)),
        Call(("b",), "b", ("a",), 1, (4,), (-1,)),
        Release("b"),
        Annotate("BACKWARD"),
        Call(("c",), "c", ("a",), 2 * 10**9, (5,), (-1,)),
        Release("a"),
    )


@pytest.mark.parametrize("budget", ["100%", "70%", "40%"])
def test_the_log_of_a_graph_runs_as_the_graph(budget):
    graph = training_chain(12, skip=3, sizes=(3, 8, 5), fixed_bytes=4)
    direct, logged = (
        simulate(graph, budget),
        simulate(OpLog.from_lines(OpLog.from_graph(graph).to_lines()), budget),
    )
    keys = (
        "status",
        "peak_bytes",
        "plain_peak_bytes",
        "evictions",
        "rematerializations",
        "overhead",
    )
    assert [getattr(direct, key) for key in keys] == [getattr(logged, key) for key in keys]


def test_what_comes_before_the_start_need_not_be_of_the_format():
    start = '{"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}'
    lines = [
        "garbage",
        '{"INSTRUCTION":"CALL","NAME":"f"}',
        '{"INSTRUCTION":"NEW"}',
        '["START"]',
        start,
        *OpLog((Constant("w", 3),)).to_lines(),
    ]
    log = OpLog.from_lines(lines)
    assert log == OpLog((Annotate("START"), Constant("w", 3)))
    assert log.lines[-1] == len(lines) - 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n \n"])
def test_lines_end_as_they_like_and_names_have_any_letters(tmp_path, end):
    names = ("a\u2028b", "c\x85d", "e\x0cf")
    log = OpLog(tuple(Constant(name, k) for k, name in enumerate(names)))
    lines = [
        json.dumps(json.loads(line) | {"MORE": [1]}, ensure_ascii=False) for line in log.to_lines()
    ]
    (tmp_path / "log").write_bytes("".join(line + end for line in lines).encode())
    assert OpLog.load(tmp_path / "log") == log
