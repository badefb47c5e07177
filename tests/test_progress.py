"""Progress: seen on a terminal, silent elsewhere; and the library itself prints nothing."""

import ast
import logging
import time
from pathlib import Path

import pytest
import rich.console
from strategies import training_chain
from tf2.plans import repeating

import checkmate
from checkmate import progress as progress_module
from checkmate import replay
from checkmate.progress import Progress
from checkmate.solvers.search import Search

ROOT = Path(checkmate.__file__).parent


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal that keeps what is written to it."""
    import io

    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress_module, "Console", lambda **options: console)
    return screen


def search_cost(graph, plan):
    return replay(graph, plan).cost / graph.total_cost


def wait_until(holds):
    """The terminal is written to some ten times a second."""
    while not holds():
        time.sleep(0.01)


def work(shown=lambda text: lambda: True, **options):
    """Reports a search; `shown(text)` tells whether a text has been written."""
    graph = training_chain(4)
    plan = repeating(graph)
    assert search_cost(graph, plan) > 1.1
    with Progress("model", **options) as progress:
        with progress.phase("measuring ops"):
            progress.advance(3, 4)
        with progress.phase("solving"):
            search = Search(graph, 10**9, time_limit_s=1, on_progress=progress.improved)
            search.raise_bound(1.1 * graph.total_cost, by="test")
            wait_until(shown("no plan yet"))
            search.offer(plan, by="test")
            wait_until(shown("best plan"))


def test_a_terminal_sees_phases_plan_bound_and_gap(terminal):
    work(lambda text: lambda: text in terminal.getvalue())
    said = terminal.getvalue()
    assert "model: measuring ops" in said or "model: solving" in said
    assert "no plan yet, bound +10.00%" in said
    cost = search_cost(training_chain(4), repeating(training_chain(4)))
    assert f"best plan {cost - 1:+.2%}, bound +10.00%, gap {cost / 1.1 - 1:.2%}" in said


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_shown_where_nobody_looks(capfd, enabled):
    work(enabled=enabled)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_shown_when_it_is_not_wanted(terminal):
    work(enabled=False)
    assert terminal.getvalue() == ""


def printing(tree):
    """Lines of calls of print outside of `if __name__ == "__main__"`, where a module is a process
    of its own."""
    for node in tree.body:
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "print":
                yield each.lineno


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_library_prints_nothing(path):
    assert not list(printing(ast.parse(path.read_text(encoding="utf-8"))))


def test_verbose_shows_the_log():
    from click.testing import CliRunner

    from checkmate.cli import main

    logger = logging.getLogger("checkmate")
    before = logger.level, list(logger.handlers)
    try:
        assert CliRunner().invoke(main, ["--verbose", "completion", "bash"]).exit_code == 0
        assert logger.isEnabledFor(logging.INFO)
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]
    assert not logger.isEnabledFor(logging.INFO)
