"""The command line: exit statuses, and what it says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import checkmate
from benchmarks.problems import layered
from checkmate.cli import main
from checkmate.demo import demo, process


def invoke(*arguments):
    return CliRunner().invoke(main, arguments)


def test_help_names_the_commands():
    found = invoke("--help")
    assert found.exit_code == 0
    assert {"demo", "plan"} <= set(found.output.split())
    for command in (["demo"], ["plan"]):
        found = invoke(*command, "--help")
        assert found.exit_code == 0
        assert "Usage" in found.output


def test_help_begins_with_what_a_new_user_wants():
    listed = invoke("--help").output.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in listed if line.strip()] == list(main.commands)
    assert list(main.commands)[:3] == ["demo", "doctor", "plan"]


def test_the_command_alone_shows_its_help():
    found = invoke()
    assert found.exit_code == 2
    assert "doctor" in found.output
    assert "checkmate: " not in found.output


def test_version():
    found = invoke("--version")
    assert found.exit_code == 0
    assert checkmate.__version__ in found.output


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["demo", "--nothing"], ["demo", "--steps", "many"]]
)
def test_what_cannot_be_read_is_status_2(arguments):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert "Usage" in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--model", "mobilnet"], "no workload 'mobilnet'. Did you mean mobilenet"),
        (["demo", "--budget", "0.6"], "Did you mean '60%'?"),
        (["demo", "--budget", "60"], "Did you mean '60%', '60GiB' or '60 B'?"),
        (["plan", "resnet50", "-b", "60"], "Did you mean '60%', '60GiB' or '60 B'?"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_tensorflow_is_loaded(monkeypatch, arguments, said):
    def loaded():
        raise AssertionError("TensorFlow is loaded")

    monkeypatch.setattr(demo, "fresh_process", lambda *_, **__: loaded())
    monkeypatch.setattr("checkmate.commands.plan.quietly", loaded)
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_ctrl_c_is_status_130(processes, error):
    processes(error())
    found = invoke("demo")
    assert found.exit_code == 130
    assert found.stderr.splitlines()[-1] == "checkmate: interrupted."


def test_ctrl_c_ends_the_program_with_status_130(tmp_path):
    """While it searches for the plan of a large graph, which a log is told of at once here."""
    layered(1000).save(tmp_path / "large.graph.json")
    script = (
        "from checkmate import progress; from checkmate.cli import main\n"
        "progress.LOG_AFTER_S = progress.LOG_EVERY_S = 0; main()"
    )
    arguments = ["solve", str(tmp_path / "large.graph.json"), "-b", "50%"]
    running = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with running:
        assert "solving" in running.stderr.readline()
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "checkmate: Interrupted before there was a plan for 50%." in said
    assert "Traceback" not in said


def test_the_module_is_the_command_and_needs_no_tensorflow():
    script = (
        "import runpy, sys\n"
        "sys.argv = ['checkmate', '--help']\n"
        "try:\n"
        "    runpy.run_module('checkmate', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])\n"
    )
    root = Path(checkmate.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root
    )
    assert "Usage" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def processes(monkeypatch):
    """Sets what the demo's processes raise."""

    def of(error):
        def fresh_process(*arguments, **options):
            raise error

        monkeypatch.setattr(demo, "fresh_process", fresh_process)

    return of


@pytest.mark.parametrize(
    "error",
    [
        checkmate.CheckmateError("it broke"),
        checkmate.InfeasibleBudgetError("it broke", budget_bytes=1, floor_bytes=2),
    ],
)
def test_a_refusal_is_a_sentence_and_status_1(processes, error):
    processes(error)
    found = invoke("demo")
    assert found.exit_code == 1
    assert "checkmate: it broke" in found.output
    assert "Traceback" not in found.output


def test_a_bug_is_no_refusal(processes):
    processes(ZeroDivisionError())
    assert isinstance(invoke("demo").exception, ZeroDivisionError)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that a fresh process finds, and returns its name."""

    def of(text):
        (tmp_path / "some_module.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "some_module"

    return of


def test_a_fresh_process_answers_with_its_last_line(module):
    text = (
        "import json, os, sys\nprint('talk')\nprint(json.dumps([sys.argv[1:],"
        " os.environ['TF_CPU_ALLOCATOR_USE_BFC']]))"
    )
    assert process.fresh_process(module(text), ["a", "b"]) == [
        ["a", "b"],
        "true",
    ]


def test_a_fresh_process_that_fails_says_why(module):
    name = module("raise SystemExit('out of luck')")
    with pytest.raises(checkmate.CheckmateError, match=r"status 1(.|\n)*out of luck"):
        process.fresh_process(name, [])


def test_what_the_library_refuses_in_a_fresh_process_is_told_in_its_own_words(module):
    text = (
        "import checkmate\nprint('talk')\nraise checkmate.GraphError('It has no end.\\nGive it"
        " one.')"
    )
    with pytest.raises(checkmate.CheckmateError) as caught:
        process.fresh_process(module(text), [])
    assert str(caught.value) == "It has no end.\nGive it one."


def test_a_fresh_process_that_hangs_is_stopped(module):
    name = module("import time\ntime.sleep(60)")
    with pytest.raises(checkmate.CheckmateError, match="stopped after 1 s"):
        process.fresh_process(name, [], timeout_s=1)
