"""Every solver finds what POT finds, on 200 random problems each; the long ones in a soak."""

import json
from pathlib import Path

import numpy as np
import pytest
from problems import COUNT, clouds, histograms, probes, problem
from soaking import SOAK

from weft import transport

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "transport" / "pot.json").read_text(encoding="utf-8"))
WITHIN = 1e-6
ITERATIONS_OF_A_QUICK_TEST = 120
POINTS_OF_A_QUICK_TEST = 120


def quick(iterations: float, points: int) -> bool:
    return SOAK or (iterations <= ITERATIONS_OF_A_QUICK_TEST and points <= POINTS_OF_A_QUICK_TEST)


def test_every_solver_has_its_problems() -> None:
    assert {name: len(rows) for name, rows in GOLDEN.items()} == dict.fromkeys(
        ("line", "sliced", "free", "barycentre", "unbalanced", "divergence", "sinkhorn"), COUNT
    )


@pytest.mark.soak
def test_sinkhorn() -> None:
    ran, epsilons = 0, []
    for number, (cost, regularised, iterations, error) in enumerate(GOLDEN["sinkhorn"]):
        p = problem(number)
        if not quick(iterations, max(len(p.x), len(p.y))):
            continue
        most = p.most if error < 1e-9 else iterations  # where POT gave up, weft is to be just as far
        result = transport.sinkhorn(p.x, p.y, p.a, p.b, epsilon=p.epsilon, tolerance=1e-9, max_iterations=most)
        assert abs(result.cost - cost) < WITHIN, (number, result)
        if error < 1e-9:
            assert result.converged and abs(result.regularised - regularised) < WITHIN, (number, result)
            leaves, arrives = result.plan.marginals()
            assert np.abs(leaves - p.a).sum() < 1e-9 and np.abs(arrives - p.b).sum() < 2e-9, number
        ran += 1
        epsilons.append(p.epsilon)
    assert ran == COUNT if SOAK else ran >= 40
    assert min(epsilons) < (0.0015 if SOAK else 0.05) and max(epsilons) > 0.5


@pytest.mark.soak
def test_unbalanced() -> None:
    ran = 0
    for number, (cost, total, iterations, error) in enumerate(GOLDEN["unbalanced"]):
        p = problem(number, "unbalanced")
        if not quick(iterations, max(len(p.x), len(p.y))):
            continue
        done = error < 1e-11  # where POT gave up, weft is to be just as far
        options = {"tolerance": 1e-11 if done else 0, "max_iterations": iterations + 2000 * done}
        result = transport.sinkhorn(p.x, p.y, p.a, p.b, epsilon=p.epsilon, tau=p.tau, **options)
        assert abs(result.cost - cost) < WITHIN and abs(result.regularised - total) < WITHIN, (number, result)
        ran += 1
    assert ran == COUNT if SOAK else ran >= 40


@pytest.mark.soak
def test_divergence() -> None:
    ran = 0
    for number, (linear, iterations, error) in enumerate(GOLDEN["divergence"]):
        p = problem(number, "divergence")
        if error > 1e-9 or not quick(iterations, max(len(p.x), len(p.y))):
            continue
        found = transport.divergence(p.x, p.y, p.a, p.b, epsilon=p.epsilon, tolerance=1e-9, max_iterations=p.most)
        assert found.converged and abs(found.linear - linear) < WITHIN, (number, found, linear)
        assert found.value > -1e-9
        ran += 1
    assert ran >= (100 if SOAK else 40)


@pytest.mark.soak
def test_barycentre() -> None:
    ran = 0
    for number, (*wanted, iterations, error) in enumerate(GOLDEN["barycentre"]):
        costs, rows, shares, epsilon = histograms(number)
        if error > 1e-10 or not quick(iterations, len(costs)):
            continue
        found = transport.barycentre(
            rows, cost=costs, shares=shares, epsilon=epsilon, tolerance=1e-10, max_iterations=iterations + 1000
        )
        assert np.abs(probes(number, len(costs)) @ found.weights - wanted).max() < WITHIN, (number, found)
        ran += 1
    assert ran >= (150 if SOAK else 40)


@pytest.mark.soak
def test_free_barycentre() -> None:
    for number, wanted in enumerate(GOLDEN["free"]):
        if not SOAK and number % 8:
            continue
        sets, start, shares, epsilon = clouds(number)
        found = transport.free_barycentre(
            sets, start, shares=shares, epsilon=epsilon, tolerance=0, max_iterations=5, solver_tolerance=1e-9,
            solver_iterations=300,
        )  # fmt: skip
        assert np.abs(probes(number, found.points.size) @ found.points.ravel() - wanted).max() < WITHIN, number


def test_line() -> None:
    for number, wanted in enumerate(GOLDEN["line"]):
        p = problem(number, "line")
        for power, cost in zip((1, 2), wanted, strict=True):
            assert abs(transport.on_a_line(p.x[:, 0], p.y[:, 0], p.a, p.b, p=power) - cost) < 1e-9, number


def test_sliced() -> None:
    for number, wanted in enumerate(GOLDEN["sliced"]):
        p = problem(number, "sliced")
        lines = np.random.default_rng(number).standard_normal((10, p.x.shape[1]))
        lines /= np.linalg.norm(lines, axis=1, keepdims=True)
        for power, cost in zip((1, 2), wanted, strict=True):
            assert abs(transport.sliced(p.x, p.y, p.a, p.b, lines=lines, p=power).distance - cost) < WITHIN, number
