"""`checkmate bench paper`: its tables, and what it refuses."""

import json
import re
from dataclasses import replace

import pytest
from calling import invoke, lines_of_json

from checkmate import CheckmateError
from checkmate.bench import paper, paper_overheads
from checkmate.bench.problems import chain

BATCH_ROW = {
    "table": "batches",
    "network": "vgg19",
    "budget_bytes": 16_000_000_000,
    "published": 289,
    "layers_plain": 200.5,
    "layers_planned": 289.0,
    "layers_at_most": 289.0,
    "traced_plain": 250,
    "traced_planned": 390,
    "seconds": 3.0,
}


@pytest.fixture
def processes(monkeypatch):
    """Answers for each network; ResNet50 dies."""

    def fresh_process(module, arguments, **options):
        table, name, budget, shares, limit = arguments
        assert (module, float(limit)) == ("checkmate.bench.paper", 5)
        if name == "resnet50":
            raise CheckmateError("ended with status 1:\nsomewhere\nMemoryError: too much")
        if table == "batches":
            return [BATCH_ROW | {"network": name, "budget_bytes": int(budget)}]
        graph = replace(chain(6), name=name)
        return list(paper_overheads.sweep(graph, ("chen_greedy:ap",), json.loads(shares), 5, batch=1))

    monkeypatch.setattr(paper, "fresh_process", fresh_process)


@pytest.mark.parametrize(
    ("table", "made"), [("batches", ["batches"]), ("overheads", ["overheads", "ratios"])]
)
def test_command_prints_a_row_for_each_network(table, made, processes):
    call = ("bench", "paper", table, "--time-limit", "5", "--shares", "0.5")
    printed = invoke(*call, "--json")
    assert printed.exit_code == 0, printed.output
    rows = lines_of_json(printed.stdout)
    networks = paper.TABLES[table].networks
    assert [(row["table"], row["network"]) for row in rows] == [
        (each, name) for each in made for name in networks if each != "ratios" or name != "resnet50"
    ]
    text = invoke("bench", "paper", "--help").stdout.split("JSON:")[1].split("Options:")[0]
    documented = set(re.findall(r"\w+", text))
    for row in rows:
        assert set(row) <= documented, set(row) - documented
    shown = invoke(*call).stdout
    assert all(shown.count(name) >= len(made) for name in networks if name != "resnet50")
    assert "MemoryError: too much" in shown
    found = lines_of_json(invoke(*call, "--models", "unet", "--json").stdout)
    assert {row["network"] for row in found} == {"unet"}


def test_command_refuses_what_it_does_not_know():
    assert invoke("bench", "paper", "figures").exit_code == 2
    assert "resnet50" in invoke("bench", "paper", "--models", "lenet").stderr
