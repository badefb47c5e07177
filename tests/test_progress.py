"""Progress: one line in a terminal and in a notebook, lines in a log; and the library itself prints
nothing."""

import ast
import io
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
PHASES = {"tracing": 1, "measuring ops": 2, "solving": 3}


@pytest.fixture
def screen(monkeypatch):
    """Makes standard error a screen of a kind, and returns what is written to it."""

    def of(**options):
        written = io.StringIO()
        console = rich.console.Console(file=written, color_system=None, **options)
        monkeypatch.setattr(progress_module, "Console", lambda **_: console)
        return written

    return of


def wait_until(holds):
    """Screens are written to now and then."""
    while not holds():
        time.sleep(0.01)


def work(shown=lambda text: True, **options):
    """Reports a search; `shown(text)` tells whether a text has been written."""
    graph = training_chain(4)
    with Progress("model", PHASES, **options) as progress:
        with progress.phase("measuring ops"):
            progress.advance(3, 4)
            wait_until(lambda: shown("3 of 4"))
        with progress.phase("solving", limit_s=60):
            search = Search(graph, 10**9, time_limit_s=1, on_progress=progress.improved)
            search.raise_bound(1.1 * graph.total_cost, by="test")
            wait_until(lambda: shown("no plan yet"))
            search.offer(repeating(graph), by="test")
            wait_until(lambda: shown("above the bound"))
        progress.done("within 1 GiB")


def best():
    """How the plan of `work` is told."""
    graph = training_chain(4)
    cost = replay(graph, repeating(graph)).cost / graph.total_cost
    assert cost > 1.1
    return f"{cost - 1:+.2%} time, {cost / 1.1 - 1:.2%} above the bound"


def test_a_terminal_sees_number_seconds_limit_and_distance_to_the_bound(screen):
    written = screen(force_terminal=True, width=80)
    work(lambda text: text in written.getvalue())
    said = written.getvalue()
    assert "model: 2/3 measuring ops 0 s, 3 of 4" in said
    assert "model: 3/3 solving 0/60 s, no plan yet, bound +10.00% time" in said
    assert f"model: 3/3 solving 0/60 s, {best()}" in said
    *_, last = said.splitlines()
    assert last.strip().endswith("s)") and "model: within 1 GiB (" in last


def test_a_narrow_terminal_sees_one_line_and_no_name(screen):
    written = screen(force_terminal=True, width=40)
    work(lambda text: text in written.getvalue() or text == "above the bound")
    said = written.getvalue()
    assert "3/3 solving 0/60 s" in said
    assert "model: 3/3" not in said
    assert said.count("\x1b[1A") <= 1, "up only at the end: the line never needed two"


@pytest.fixture
def quick(monkeypatch):
    """Logs and notebooks are written to at once."""
    monkeypatch.setattr(progress_module, "TICK_S", 0.01)
    monkeypatch.setattr(progress_module, "LOG_AFTER_S", 0)
    monkeypatch.setattr(progress_module, "LOG_EVERY_S", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_log_gets_a_line_for_each_long_phase_and_the_summary(capfd):
    work()
    out, said = capfd.readouterr()
    assert out == ""
    ops, solving, summary = said.splitlines()
    assert ops == "model: 2/3 measuring ops 0 s, 3 of 4"
    assert solving == f"model: 3/3 solving 0/60 s, {best()}"
    assert summary.startswith("model: within 1 GiB (")


@pytest.mark.usefixtures("quick")
def test_a_log_is_told_that_a_phase_goes_on(screen):
    written = screen()
    with Progress("model") as progress, progress.phase("tracing"):
        wait_until(lambda: written.getvalue().count("model: tracing") >= 2)


def test_a_phase_within_another_is_shown_with_its_name():
    with Progress("model", {"solving": 1}, enabled=False) as progress:
        assert progress.is_open and progress.line() == ""
        with progress.phase("a batch of 8"), progress.phase("solving", limit_s=2):
            assert progress.line() == "model: a batch of 8, 1/1 solving 0/2 s"
    assert not progress.is_open


def test_a_log_is_not_told_of_short_phases(capfd):
    work()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_log_that_nobody_reads_ends_no_work(screen):
    written = screen()
    written.close()
    work()


@pytest.mark.usefixtures("quick")
def test_a_notebook_has_one_output_that_ends_as_the_summary(screen, monkeypatch):
    import IPython.display

    screen(force_jupyter=True)
    texts = []

    class Handle:
        def update(self, data, raw):
            texts.append(data["text/plain"])

    def display(data, *, raw, display_id):
        assert raw and display_id and not texts
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    work(lambda text: any(text in each for each in texts))
    assert "model: 2/3 measuring ops 0 s, 3 of 4" in texts
    assert f"model: 3/3 solving 0/60 s, {best()}" in texts
    assert texts[-1].startswith("model: within 1 GiB (")


def test_nothing_is_shown_when_it_is_not_wanted(screen, capfd):
    work(enabled=False)
    assert capfd.readouterr() == ("", "")
    written = screen(force_terminal=True)
    work(enabled=False)
    assert written.getvalue() == ""


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
        assert CliRunner().invoke(main, ["--verbose", "solve", "--help"]).exit_code == 0
        assert logger.isEnabledFor(logging.INFO)
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]
    assert not logger.isEnabledFor(logging.INFO)
