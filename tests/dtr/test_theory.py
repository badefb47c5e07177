"""The theorems, run."""

import pytest

from benchmarks.theory import E_STAR, adversary, linear_network, square_root_budget
from checkmate import simulate
from checkmate.dtr.heuristic import HEURISTICS


@pytest.mark.parametrize("layers", [1, 2, 3, 64, 1000])
def test_the_chain_is_a_training_step(layers):
    program = linear_network(layers)
    assert program.cost == 2 * layers
    assert program.plain_peak_bytes in (layers, layers + 1)


@pytest.mark.parametrize(
    ("heuristic", "layers"), [(E_STAR, (16, 64, 256, 1024)), (HEURISTICS["dtr_eq"], (64, 16384))]
)
def test_a_chain_within_the_square_root_costs_a_constant_factor(heuristic, layers):
    """Theorem 3.1: fewer than 2 N recomputations for the 2 N ops, at every N."""
    for n in layers:
        run = simulate(
            linear_network(n), square_root_budget(n), heuristic=heuristic, deallocation="banish"
        )
        assert run.status == "ok"
        assert run.rematerializations < 2 * n


def test_without_neighbourhoods_it_grows():
    short, long = (
        simulate(
            linear_network(n),
            square_root_budget(n),
            heuristic="local",
            overhead_limit=100,
            deallocation="banish",
        ).overhead
        for n in (64, 512)
    )
    assert long > 2.5 * short


@pytest.mark.parametrize("name", ["dtr", "dtr_eq", "local", "lru", "msps"])
@pytest.mark.parametrize("budget", [4, 16])
def test_the_adversary_beats_every_rule(name, budget):
    """Theorem 3.2: Omega(N / B) times the work needed; with twice the ops it is about twice as
    bad."""
    half, whole = (adversary(HEURISTICS[name], n, budget) for n in (80, 160))
    assert whole.ratio >= 0.4 * 160 / budget
    assert whole.ratio >= 1.6 * half.ratio


def test_which_another_order_would_not_need():
    """The same chains one after the other, within three values, recompute nothing."""
    from checkmate.dtr.log import OpLog
    from checkmate.dtr.log_format import Call, Release

    calls = [Call(("root",), "f", (), 1, (1,), (-1,))]
    for chain in range(4):
        above = "root"
        for k in range(20):
            name = f"x{chain}_{k}"
            calls.append(Call((name,), "f", (above,), 1, (1,), (-1,)))
            calls += [Release(above)] if above != "root" else []
            above = name
        calls.append(Release(above))
    run = simulate(OpLog(tuple(calls)), 3)
    assert (run.status, run.rematerializations) == ("ok", 0)
