"""Files that commands read."""

import pytest
from calling import GRAPH, invoke


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
