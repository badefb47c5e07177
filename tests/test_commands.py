"""The commands around files: what they write, print and end with. `test_cli.py` has the demo and the benchmarks."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from strategies import training_chain

import checkmate
from checkmate import DFGraph, Plan, floor, replay, solve
from checkmate.bench import eager, layered, limits, steps
from checkmate.cli import main
from checkmate.commands import doctor
from checkmate.commands.output import KEYS
from checkmate.commands.table import PIPED_WIDTH, print_table
from checkmate.core.files import load_plan, read_json, save_plan

GRAPH = training_chain(10, sizes=(2**20, 2**19), costs=(1.0, 3.0), fixed_bytes=2**20)
PLAIN = replay(GRAPH, Plan.keep_all(GRAPH)).peak_bytes


def invoke(*arguments, **options):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)


def lines_of_json(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def graph_file(tmp_path):
    GRAPH.save(tmp_path / "chain.graph.json")
    return tmp_path / "chain.graph.json"


@pytest.fixture
def plan_files(graph_file):
    """Plans of three budgets, as `solve` writes them."""
    found = invoke("solve", graph_file, "-b", "60%,75%", "-b", "90%", "-o", graph_file.parent)
    assert found.exit_code == 0
    return sorted(graph_file.parent.glob("*.plan.json"))


def test_solve_prints_the_documented_keys(graph_file):
    found = invoke("solve", graph_file, "-b", "70%", "--json")
    assert found.exit_code == 0
    (facts,) = lines_of_json(found.stdout)
    assert list(facts)[: len(KEYS)] == list(KEYS)
    result = solve(GRAPH, "70%")
    assert (facts["status"], facts["solver"]) == ("OPTIMAL", "auto")
    for key in ("cost", "overhead", "bound", "gap", "peak_bytes", "budget_bytes"):
        assert facts[key] == pytest.approx(getattr(result, key))
    assert facts["floor_bytes"] == floor(GRAPH).bytes
    assert facts["plain_peak_bytes"] == PLAIN


def test_a_budget_without_a_plan_is_status_1(graph_file):
    found = invoke("solve", graph_file, "-b", "80%,1B", "--json")
    assert found.exit_code == 1
    fits, fails = lines_of_json(found.stdout)
    assert fits["status"] == "OPTIMAL"
    assert fails["status"] == "INFEASIBLE"
    assert [fails[key] for key in ("cost", "overhead", "gap", "peak_bytes")] == [None] * 4
    assert (fails["budget_bytes"], fails["floor_bytes"]) == (1, floor(GRAPH).bytes)
    assert "No plan fits 1 B" in fails["message"]
    shown = invoke("solve", graph_file, "-b", "1B")
    assert shown.exit_code == 1
    assert "infeasible" in shown.stdout
    assert "checkmate: No plan fits 1 B" in shown.stderr


def test_reorder_looks_at_other_orders(tmp_path):
    """Two large values that the graph's order makes before the first of them is read."""
    facts = (("a", ()), ("b", ()), ("use_a", (0,)), ("use_b", (1,)), ("end", (2, 3)))
    ops = tuple(checkmate.Op(name, deps, 5, 1 if name.startswith("use") or name == "end" else 10) for name, deps in facts)
    DFGraph(ops, (4,)).save(tmp_path / "two.json")
    kept, moved = (
        lines_of_json(invoke("solve", tmp_path / "two.json", "-b", "12", "--json", "--time-limit", "1", *more).stdout)[0]
        for more in ((), ("--reorder",))
    )
    assert kept["cost"] is None or kept["cost"] > 25
    assert (moved["cost"], moved["bound_covers"]) == (25, "any order")
    assert "in any order of ops" in invoke("solve", tmp_path / "two.json", "-b", "12", "--reorder").stdout


def test_a_bound_without_a_plan_is_told(graph_file):
    found = invoke("solve", graph_file, "-b", "70%", "--solver", "lp_bound", "--json")
    assert found.exit_code == 1
    (facts,) = lines_of_json(found.stdout)
    assert GRAPH.total_cost < facts["bound"] <= solve(GRAPH, "70%").cost
    assert f">= {facts['bound'] / GRAPH.total_cost - 1:+.2%}" in invoke("solve", graph_file, "-b", "70%", "--solver", "lp_bound").stdout


def test_a_solver_that_finds_nothing_is_status_1(graph_file):
    found = invoke("solve", graph_file, "-b", "60%", "--solver", "checkpoint_all", "--json")
    assert found.exit_code == 1
    assert lines_of_json(found.stdout)[0]["status"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "arguments", [["-b", "lots"], ["--solver", "magic"], ["--time-limit", "soon"], ["--nothing"], ["-b", "60%", "more"]]
)
def test_what_cannot_be_understood_is_status_2(graph_file, arguments):
    found = invoke("solve", graph_file, *arguments)
    assert found.exit_code == 2
    assert "Traceback" not in found.output


@pytest.mark.parametrize("content", ["not JSON", "{}", "[]", '{"nodes": [{"name": "a"}], "edges": []}'])
def test_files_that_are_no_graph_are_status_2(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    for command in ("solve", "show"):
        found = invoke(command, tmp_path / "a.json")
        assert found.exit_code == 2
        assert "checkmate: " in found.stderr
        assert "a.json" in found.stderr
    assert invoke("show", tmp_path / "missing.json").exit_code == 2


def test_solve_writes_plans_that_can_be_read(plan_files):
    assert [file.name for file in plan_files] == [f"chain-{share}pct.plan.json" for share in (60, 75, 90)]
    for file, share in zip(plan_files, (0.6, 0.75, 0.9), strict=True):
        plan = load_plan(file, graph=GRAPH)
        facts = read_json(file)
        assert replay(GRAPH, plan).peak_bytes == facts["peak_bytes"] <= facts["budget_bytes"] == int(share * PLAIN)
        assert facts["graph_file"] == "chain.graph.json"


def test_the_table_names_what_a_budget_can_be(graph_file):
    said = invoke("solve", graph_file, "-b", "70%").stdout
    for expected in ("none", "gap", "+", checkmate.units.format_bytes(PLAIN), checkmate.units.format_bytes(floor(GRAPH).bytes)):
        assert expected in said
    assert max(map(len, said.splitlines())) <= PIPED_WIDTH


COLUMNS = ("name", "bytes", "why")
ROWS = [("first", "12.00 MiB", "because it is so"), ("second", "7 B", "")]


@pytest.fixture
def screen(monkeypatch):
    """Makes tables go to a terminal of a width, and returns what it shows."""
    from rich.console import Console

    from checkmate.commands import table

    def of(width, print_it):
        console = Console(width=width, force_terminal=True, no_color=True, file=io.StringIO())
        monkeypatch.setattr(table, "console", lambda: console)
        print_it()
        return re.sub("\x1b\\[[0-9;]*m", "", console.file.getvalue())

    return of


def test_a_table_that_fits_is_a_table(screen):
    shown = screen(50, lambda: print_table("All of it", COLUMNS, ROWS, left=("name", "why"))).splitlines()
    assert [line.split() for line in shown[:2]] == [["All", "of", "it"], ["name", "bytes", "why"]]
    assert shown[3].split(maxsplit=3) == ["first", "12.00", "MiB", "because it is so"]
    assert len(shown) == 5


@pytest.mark.parametrize("width", [20, 30])
def test_a_terminal_too_narrow_for_a_table_gets_paragraphs_and_no_broken_cell(screen, width):
    shown = screen(width, lambda: print_table("All of it", COLUMNS, ROWS, left=("name",)))
    assert shown.splitlines()[1:3] == ["first", "  bytes 12.00 MiB,"]
    assert shown.splitlines()[-1:] == ["second: bytes 7 B"]
    assert "why because it is so" in shown


def test_show_a_graph(graph_file):
    said = invoke("show", graph_file).stdout
    assert f"{len(GRAPH)}" in said
    assert GRAPH.ops[floor(GRAPH).op].name in said
    (facts,) = lines_of_json(invoke("show", graph_file, "--json").stdout)
    assert facts["ops"] == len(GRAPH)
    assert facts["plain_peak_bytes"] == PLAIN


def test_show_a_plan(plan_files):
    found = invoke("show", plan_files[0])
    assert found.exit_code == 0
    recomputed = load_plan(plan_files[0], graph=GRAPH).recomputed
    assert f"{sum(recomputed.values())} evaluations more" in found.stdout
    assert "f1" in found.stdout
    (facts,) = lines_of_json(invoke("show", plan_files[0], "--json").stdout)
    assert set(KEYS) <= set(facts)
    assert facts["status"] == "OPTIMAL"


def test_show_believes_the_judge_and_not_the_file(graph_file):
    plan = solve(GRAPH, "70%").plan
    file = graph_file.parent / "boast.plan.json"
    save_plan(plan, file, graph=GRAPH, graph_file=graph_file.name, cost=1, overhead=0.5, peak_bytes=7)
    (facts,) = lines_of_json(invoke("show", file, "--json").stdout)
    timeline = replay(GRAPH, plan)
    assert (facts["cost"], facts["peak_bytes"]) == (timeline.cost, timeline.peak_bytes)


def test_show_several_plans(plan_files):
    found = invoke("show", *plan_files)
    assert found.exit_code == 0
    assert all(file.name in found.stdout for file in plan_files)
    assert len(lines_of_json(invoke("show", *plan_files, "--json").stdout)) == 3


@pytest.mark.parametrize("picture", ["memory", "matrices", "layers", "curve"])
def test_show_draws(plan_files, picture, tmp_path):
    found = invoke("show", plan_files[0], "--picture", picture, "--svg", tmp_path / "a.svg")
    assert found.exit_code == 0
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_show_draws_what_goes_with_the_files(plan_files, graph_file, monkeypatch, tmp_path):
    from checkmate.commands import show

    drawn = []
    monkeypatch.setattr(show, "draw", lambda shown, picture: drawn.append(picture) or checkmate.plot.memory(GRAPH))
    for files in ([graph_file], plan_files[:1], plan_files):
        assert invoke("show", *files, "--png", tmp_path / "a.png").exit_code == 0
    assert drawn == ["memory", "memory", "curve"]


def test_show_writes_a_page(plan_files, graph_file, tmp_path):
    for file, plans in ((plan_files[0], 2), (graph_file, 1)):
        assert invoke("show", file, "--html", tmp_path / "a.html").exit_code == 0
        assert (tmp_path / "a.html").read_text().count('"title":') == plans


def test_show_refuses_what_does_not_belong_together(plan_files, graph_file, tmp_path):
    other = training_chain(4)
    other.save(tmp_path / "other.json")
    for arguments in ([plan_files[0], graph_file], [graph_file, graph_file], [plan_files[0], "--graph", tmp_path / "other.json"]):
        assert invoke("show", *arguments).exit_code == 2
    assert invoke("show", graph_file, "--picture", "layers", "--png", tmp_path / "a.png").exit_code == 2
    graph_file.rename(tmp_path / "moved.json")
    lost = invoke("show", plan_files[0])
    assert lost.exit_code == 2
    assert "--graph" in lost.stderr
    assert invoke("show", plan_files[0], "--graph", tmp_path / "moved.json").exit_code == 0


ONE_STEP = {"budget_bytes": 80, "peak_bytes": 70, "predicted_bytes": 75, "overhead": 1.1, "recomputed": 3}
PLANNED = {**ONE_STEP, "step_s": 1.5, "plain_s": 1.0, "gap": 0.01, "ops": 9, "planning_s": 2.0, "phases": {"solving": 0.5}}
EAGER = {"peak_bytes": 70, "step_s": 1.5, "plain_s": 1.0, "slowdown": 1.5, "cost": 1.2, "difference": 0.0, "state_equal": True}
PLAIN_FACTS = {
    limits: {"plain_peak_bytes": 100, "fixed_bytes": 20},
    steps: {"peak_bytes": 100, "predicted_bytes": 100, "fixed_bytes": 20, "trace_s": 1.0},
    eager: {"peak_bytes": 100, "step_s": 1.0},
}


@pytest.mark.parametrize(("module", "found"), [(limits, ONE_STEP), (steps, PLANNED), (eager, EAGER)])
def test_bench_tells_as_json_what_its_help_says(module, found, monkeypatch):
    """One object per row, with the keys that the command's help names, whether or not there was a plan."""
    name = "dtr-eager" if module is eager else module.__name__.rsplit(".", 1)[-1]

    def fresh_process(_, given, **options):
        if given[-1] == "23":
            raise checkmate.CheckmateError("No plan fits 23 B.")
        return found if len(given) == 3 else PLAIN_FACTS[module]

    monkeypatch.setattr(module, "fresh_process", fresh_process)
    printed = invoke("bench", name, "mlp", "--budgets", "60%,23B" if module is eager else "60%,3B", "--json")
    assert printed.exit_code == 0, printed.output
    *rows, last = lines_of_json(printed.stdout)
    documented = set(re.findall(r"\w+", invoke("bench", name, "--help").stdout.split("JSON:")[1].split("Options:")[0]))
    assert rows
    for row in rows:
        assert set(row) <= documented, set(row) - documented
    assert last["error"] == "No plan fits 23 B."
    assert "No plan fits" in invoke("bench", name, "mlp", "--budgets", "60%,23B" if module is eager else "60%,3B").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("layered", "9", "--time-limit", "1"),
        ("solvers", "layered9", "--shares", "0.5", "--solvers", "auto,checkpoint_all", "--time-limit", "1"),
        ("dtr", "lstm2", "--shares", "80", "--heuristics", "lru"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_bench_without_training_tells_as_json_what_its_help_says(arguments):
    printed = invoke("bench", *arguments, "--json")
    assert printed.exit_code == 0, printed.output
    documented = set(re.findall(r"\w+", invoke("bench", arguments[0], "--help").stdout.split("JSON:")[1].split("Options:")[0]))
    rows = lines_of_json(printed.stdout)
    assert len(rows) > 1
    for row in rows:
        assert set(row) <= documented, set(row) - documented
    assert len(invoke("bench", *arguments).stdout.splitlines()) >= len(rows) + 3


def test_bench_that_is_interrupted_shows_what_it_has(monkeypatch):
    def measure(*arguments, **options):
        yield from (
            {"ops": 9, "edges": 1, "percent": 90, "overhead": None, "bound": 1, "given_order_bound": 1, "seconds": 0, "fast_sa": ""},
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(layered, "measure", measure)
    found = invoke("bench", "layered")
    assert found.exit_code == 1
    assert "90 %" in found.stdout
    assert "Aborted" in found.stderr


def test_ctrl_c_keeps_the_best_plan_and_skips_other_budgets(graph_file, monkeypatch):
    from checkmate.solvers.baselines import ChenGreedy

    def interrupted(self, search, run=ChenGreedy.run):
        run(self, search)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChenGreedy, "run", interrupted)
    found = invoke("solve", graph_file, "-b", "80%,70%", "--solver", "chen_greedy", "--json")
    (facts,) = lines_of_json(found.stdout)
    assert (found.exit_code, facts["status"]) == (0, "INTERRUPTED")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "solvers", "--shares", "half"), "no list of numbers"), (("bench", "layered", "0"), "0 is not in the range"),
        (("bench", "cap", "mobilenet", "--cap", "lots"), "Cannot read 'lots'"), (("bench", "solvers", "nothing"), "There is no graph 'nothing'"),
        (("bench", "dtr", "--shares", "x"), "no list of numbers"),
    ],
)  # fmt: skip
def test_bench_that_cannot_be_understood_is_status_2(arguments, said):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert said in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "--png", "picture.txt"), "does not end in .png"), (("show", "--svg", "no/such/folder/a.svg"), "There is no folder 'no/such/folder'"),
        (("show", "--html", "page.png"), "does not end in .html"), (("simulate", "--plot", "a.gif"), "does not end in .png or .svg or .pdf"),
        (("simulate", "-e", "dtr,magic"), "There is no 'magic'. There are dtr,"), (("solve", "--time-limit", "-1"), "-1.0 is not in the range"),
        (("solve", "-o", "/proc/nothing"), "Cannot read or write /proc/nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said_before_the_work_and_is_status_2(graph_file, monkeypatch, arguments, said):
    from checkmate.commands import output, show, simulate

    for module, work in ((show, "draw"), (simulate, "simulate"), (output, "solve")):
        monkeypatch.setattr(module, work, lambda *given, **options: pytest.fail("it began"))
    command, *options = arguments
    found = invoke(command, graph_file, *options)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())


def test_doctor_finds_what_is_here_and_what_is_not(monkeypatch):
    monkeypatch.setattr(doctor, "_devices", lambda: iter([doctor.Finding("devices", "ok", "one")]))
    found = invoke("doctor", "--json")
    assert found.exit_code == 0
    findings = {each["what"]: each for each in lines_of_json(found.stdout)}
    assert {"Python", "tensorflow", "keras", "numpy", "cylp", "ortools", "devices"} <= set(findings)
    monkeypatch.setitem(doctor.SOLVERS, "no_such_module", ("no-such-package", "none"))
    noted = invoke("doctor", "--json")
    assert noted.exit_code == 0
    monkeypatch.setitem(doctor.PACKAGES, "no_such_package", "no-such-package")
    found = invoke("doctor", "--json")
    assert found.exit_code == 1
    findings = {each["cure"]: each["state"] for each in lines_of_json(found.stdout)}
    assert findings["pip install no-such-package"] == "missing"
    assert findings["pip install no-such-package, for the solvers none"] == "note"
    assert "pip install no-such-package" in invoke("doctor").stdout


def test_what_libraries_say_while_they_load_is_shown_only_if_that_fails():
    say = "import os, sys; from checkmate.commands.quiet import quietly\nwith quietly():\n    os.write(2, b'noise\\n'); print('progress', file=sys.stderr)"
    for level, failure, expected in (("3", "", "progress"), ("3", "; 1 / 0", "noise"), ("0", "", "noise\nprogress")):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
        done = subprocess.run([sys.executable, "-c", say + failure], capture_output=True, text=True, env=environment)
        assert expected in done.stderr
        assert ("noise" in done.stderr) == ("noise" in expected)
        assert ("ZeroDivisionError" in done.stderr) == bool(failure)


def test_doctor_survives_what_it_finds(monkeypatch):
    def broken():
        raise RuntimeError("no driver")
        yield

    monkeypatch.setattr(doctor, "_devices", broken)
    found = invoke("doctor")
    assert found.exit_code == 1
    assert "RuntimeError: no driver" in found.stdout


def test_doctor_looks_at_the_device(tensorflow):
    states = {finding.what: finding for finding in doctor._devices()}
    assert set(states) == {"training device", "free memory", "allocator"}
    assert "checked" in states["allocator"].found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    found = invoke("completion", shell)
    assert found.exit_code == 0
    assert "_CHECKMATE_COMPLETE" in found.stdout


def test_a_shell_completes_solvers():
    words = {"COMP_WORDS": "checkmate solve --solver chen", "COMP_CWORD": "3", "_CHECKMATE_COMPLETE": "bash_complete"}
    script = "import sys; sys.argv = ['checkmate']; from checkmate.cli import main; main(prog_name='checkmate')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **words})
    assert "plain,chen_sqrt_n" in done.stdout.split()


def test_a_pipe_gets_no_progress_and_no_colour(graph_file):
    done = subprocess.run([sys.executable, "-m", "checkmate", "solve", str(graph_file)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "Plans of" in done.stdout


MODELS = """
import keras
def small():
    layers = [keras.Input((16,)), *(keras.layers.Dense(64, activation="relu", name=f"dense{k}") for k in range(6)), keras.layers.Dense(4)]
    return keras.Sequential(layers, name="small"), "mse"
def with_batch():
    model, loss = small()
    return model, loss, keras.ops.zeros((8, 16)), keras.ops.zeros((8, 4))
def wrong():
    return small()[0]
"""


@pytest.fixture
def models(tensorflow, tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("some_models", None)


QUICK = ("--costs", "unit", "--batch", "512", "--json")


def test_plan_writes_a_graph_and_plans(models):
    found = invoke("plan", "some_models:small", "-b", "90%,1B", *QUICK)
    assert found.exit_code == 1, found.output
    fits, fails = lines_of_json(found.stdout)
    assert (fits["status"], fails["status"]) == ("OPTIMAL", "INFEASIBLE")
    assert fits["graph_file"] == "some-models-small-b512.graph.json"
    graph = DFGraph.load(models / fits["graph_file"])
    assert replay(graph, load_plan(models / fits["plan_file"], graph=graph)).peak_bytes == fits["peak_bytes"]
    shown = invoke("show", fits["plan_file"])
    assert shown.exit_code == 0
    assert "dense3" in shown.stdout


def test_compile_runs_what_plan_wrote(models):
    import keras

    found = invoke("plan", "some_models:small", "-b", "95%", *QUICK)
    facts = lines_of_json(found.stdout)[0]
    from some_models import small

    model, loss = small()
    x, y = keras.ops.zeros((512, 16)), keras.ops.zeros((512, 4))
    step = checkmate.tf2.compile(model, loss, "adam", x, y, budget=2 * facts["budget_bytes"], plan=facts["plan_file"], verbose=False)
    assert step.plan == load_plan(facts["plan_file"], graph=step.graph)
    assert float(step(x, y)[1]) >= 0


def test_plan_takes_a_batch_of_one_s_own(models):
    found = invoke("plan", "some_models:with_batch", "-b", "100%", *QUICK)
    assert found.exit_code == 0, found.output


def test_plan_takes_a_keras_file(models):
    import keras

    layers = [keras.Input((8,)), keras.layers.Dense(32), keras.layers.Dense(32), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential(layers)
    model.save("Own Model.keras")
    found = invoke("plan", "Own Model.keras", "-b", "100%", *QUICK)
    assert found.exit_code == 0, found.output
    assert Path("own-model-b512.graph.json").exists()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet05", "Did you mean ResNet50"), ("missing.keras", "There is no file missing.keras"), ("some_models:nothing", "nothing"),
        ("no_such_module:model", "no_such_module"), ("some_models:wrong", "must return (model, loss)"),
    ],
)  # fmt: skip
def test_plan_says_what_is_wrong_with_a_model(models, model, said):
    found = invoke("plan", model, *QUICK)
    assert found.exit_code == 2
    assert said in found.stderr
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("softmax", "loss", "kind"), [(True, None, "int32"), (False, None, "float32"), (False, "SparseCategoricalCrossentropy", "int32")]
)
def test_labels_follow_the_loss(tensorflow, softmax, loss, kind):
    import keras

    from checkmate.tf2.models import _loss, _specified

    model = keras.Sequential([keras.Input((5, None, 2)), keras.layers.Dense(3, activation="softmax" if softmax else None)])
    work = _specified(model, _loss(model, loss), batch=7, size=4)
    assert work.inputs.shape == (7, 5, 4, 2)
    assert work.labels.dtype == kind
    assert work.labels.shape == ((7, 5, 4) if kind == "int32" else (7, 5, 4, 3))


def test_names_of_applications_in_any_case(tensorflow):
    from checkmate.tf2.models import application

    assert application("mobilenetv2", 32).name == application("MobileNetV2", 32).name
