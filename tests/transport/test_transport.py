"""Transport: the same bits however it is computed, what a result says, plans, gradients, and what is refused."""

import numpy as np
import pytest
from problems import problem, squared

from weft import _core, transport
from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs

RNG = np.random.default_rng(5)
X, Y = RNG.random((40, 5)), RNG.random((30, 5)) + 0.2
A, B = RNG.random(40) + 0.1, RNG.random(30) + 0.1
A, B = A / A.sum(), B / B.sum()


def plain_sums(costs: np.ndarray, h: np.ndarray, epsilon: float) -> np.ndarray:
    exponents = h - costs / epsilon
    most = exponents.max(1)
    return most + np.log(np.exp(exponents - most[:, None]).sum(1))


@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (3, 7, 2), (17, 8, 9), (33, 600, 16), (70, 1030, 31)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_passes_agree_with_numpy(level: str, n: int, m: int, d: int, dtype: type) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((n, d)).astype(dtype), rng.standard_normal((m, d)).astype(dtype)
    close = 1e-12 if dtype == np.float64 else 2e-6
    for metric in ("sqeuclidean", "cosine"):
        if metric == "cosine":
            unit = [v.astype(np.float64) / np.linalg.norm(v.astype(np.float64), axis=1, keepdims=True) for v in (x, y)]
            wanted = np.clip(1 - unit[0] @ unit[1].T, 0, 2)
        else:
            wanted = squared(x.astype(np.float64), y.astype(np.float64))
        h, other = rng.standard_normal(m), rng.standard_normal(n)
        for memory in (0, None):
            costs = Costs(x, y, metric, memory=memory, threads=1)
            assert np.abs(costs.rows() - wanted).max() < close * max(1, wanted.max())
            assert np.abs(costs.log_sums(h, 2.0) - plain_sums(wanted, h, 0.5)).max() < 50 * close
            assert np.abs(costs.log_sums(other, 2.0, turned=True) - plain_sums(wanted.T, other, 0.5)).max() < 50 * close
            plan = np.exp(other[:, None] + h - 2.0 * wanted)
            mass, spent = costs.plan_sums(other, h, 2.0)
            np.testing.assert_allclose(mass, plan.sum(1), rtol=100 * close)
            np.testing.assert_allclose(spent, (plan * wanted).sum(1), rtol=100 * close, atol=close)
            np.testing.assert_allclose(costs.product(other, h, 2.0, y), plan @ y, rtol=1e3 * close, atol=close * 10)


def test_the_same_bits_for_every_team_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((700, 24)).astype("f"), rng.standard_normal((500, 24)).astype("f")
    found = []
    for threads, work in ((1, 4e9), (2, 4e9), (3, 2e5)):
        monkeypatch.setattr("weft.transport.costs.WORK_OF_A_CALL", work)
        for memory in (0, None):
            result = transport.sinkhorn(x, y, epsilon=2.0, max_iterations=3, memory=memory, threads=threads)
            product = result.plan.apply(y)
            found.append((memory, result.cost, result.f.tobytes(), result.g.tobytes(), product.tobytes()))
    assert len(set(found)) == 2  # with costs kept and without; columns are summed in another order there
    assert abs(found[0][1] - found[1][1]) < 1e-9


def test_levels_agree(level: str) -> None:
    p = problem(14)
    result = transport.sinkhorn(p.x, p.y, p.a, p.b, epsilon=0.05, tolerance=1e-9, max_iterations=300, threads=1)
    _core.transport.set_level("")
    best = transport.sinkhorn(p.x, p.y, p.a, p.b, epsilon=0.05, tolerance=1e-9, max_iterations=300, threads=1)
    assert abs(result.cost - best.cost) < 1e-10


def test_exponents_far_apart() -> None:
    """Costs of 10^4 epsilons and more: the plain kernel would be zero everywhere."""
    costs = np.array([[50.0, 900.0], [1000.0, 60.0]])
    result = transport.sinkhorn(cost=costs, epsilon=1e-3, tolerance=1e-12, max_iterations=100)
    assert result.converged and abs(result.cost - 55.0) < 1e-9


def test_one_point_and_zero_weights() -> None:
    assert transport.sinkhorn([[1.0, 2.0]], [[2.0, 2.0]]).cost == pytest.approx(1.0)
    a = np.array([0.0, 0.5, 0.5])
    result = transport.sinkhorn([[9.0], [0.0], [1.0]], [[0.0], [1.0]], a, epsilon=0.01, tolerance=1e-9)
    assert result.converged and np.isfinite(result.f).all()
    assert result.plan.rows(0).sum() == 0 and result.plan.marginals()[0] == pytest.approx(a)


def test_scaling_and_warm_starts_need_fewer_iterations() -> None:
    options = {"epsilon": 0.01, "tolerance": 1e-8, "max_iterations": 5000, "threads": 1}
    cold = transport.sinkhorn(X, Y, A, B, **options)
    scaled = transport.sinkhorn(X, Y, A, B, **options, scaling=transport.Scaling(factor=0.5, iterations=5))
    warm = transport.sinkhorn(X, Y, A, B, **options, start=cold)
    assert cold.converged and scaled.converged and warm.converged
    assert warm.iterations <= 2 < cold.iterations
    assert abs(scaled.cost - cold.cost) < 1e-6 and abs(warm.cost - cold.cost) < 1e-9


def test_a_result_says_that_it_did_not_converge() -> None:
    result = transport.sinkhorn(X, Y, A, B, epsilon=0.001, max_iterations=3)
    assert not result.converged and result.iterations == 3 and result.residual > result.tolerance
    assert str(result).startswith("not converged") and "raise max_iterations" in str(result)


def test_a_watcher_sees_and_stops() -> None:
    seen: list[tuple[int, float]] = []
    result = transport.sinkhorn(X, Y, epsilon=0.01, watch=lambda *now: seen.append(now) or now[0] == 4)
    assert [number for number, _ in seen] == [1, 2, 3, 4] and result.iterations == 4 and not result.converged


def test_ctrl_c_between_passes() -> None:
    def interrupt(iteration: int, residual: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transport.sinkhorn(X, Y, epsilon=0.01, watch=interrupt)


def test_plans() -> None:
    result = transport.sinkhorn(X, Y, A, B, epsilon=0.05, tolerance=1e-10, max_iterations=3000)
    dense = result.plan.dense()
    np.testing.assert_allclose(dense.sum(1), A, atol=1e-12)
    np.testing.assert_allclose(dense.sum(0), B, atol=1e-9)
    assert result.cost == pytest.approx((dense * squared(X, Y)).sum(), abs=1e-12)
    sparse = result.plan.sparse(1e-4)
    again = np.zeros_like(dense)
    again[sparse.rows, sparse.cols] = sparse.values
    assert np.array_equal(again, np.where(dense >= 1e-4, dense, 0))
    assert sparse.left_out == pytest.approx(dense[dense < 1e-4].sum())
    np.testing.assert_allclose(result.plan.apply(Y), dense @ Y, atol=1e-14)
    np.testing.assert_allclose(result.plan.apply(X[:, 0], turned=True), dense.T @ X[:, 0], atol=1e-14)
    np.testing.assert_allclose(result.plan.map(Y), dense @ Y / A[:, None], atol=1e-12)
    assert np.array_equal(result.plan.rows(3, 2), dense[3:5])


def changed(at: np.ndarray, index: tuple[int, ...], by: float) -> np.ndarray:
    moved = at.copy()
    moved[index] += by
    return moved


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
@pytest.mark.parametrize(("kind", "tau"), [("sinkhorn", None), ("sinkhorn", 0.7), ("divergence", None)])
def test_gradients_against_differences(metric: str, kind: str, tau: float | None) -> None:
    x, y, a, b = X[:9], Y[:7] + 0.3, A[:9] / A[:9].sum(), B[:7] / B[:7].sum()
    options = {"cost": metric, "epsilon": 0.1, "tolerance": 1e-12, "max_iterations": 3000, "threads": 1}

    def value(x: np.ndarray = x, y: np.ndarray = y, a: np.ndarray = a, b: np.ndarray = b) -> float:
        if kind == "divergence":
            return transport.divergence(x, y, a, b, **options).value
        return transport.sinkhorn(x, y, a, b, **options, tau=tau).regularised

    if kind == "divergence":
        found = transport.divergence(x, y, a, b, **options).gradients()
    else:
        found = transport.sinkhorn(x, y, a, b, **options, tau=tau).gradients()
    h = 1e-4
    for index in ((0, 0), (3, 2), (6, 4)):
        by_x = (value(x=changed(x, index, h)) - value(x=changed(x, index, -h))) / (2 * h)
        by_y = (value(y=changed(y, index, h)) - value(y=changed(y, index, -h))) / (2 * h)
        assert found.x[index] == pytest.approx(by_x, abs=2e-7) and found.y[index] == pytest.approx(by_y, abs=2e-7)
    # Weights of balanced problems keep their total: what one gains another loses.
    for i, j in ((0, 3), (5, 6)):
        shift = np.zeros(9)
        shift[i], shift[j] = h, -h
        by_a = (value(a=a + shift) - value(a=a - shift)) / (2 * h)
        assert found.a[i] - found.a[j] == pytest.approx(by_a, abs=2e-6)
    if tau is not None:
        by_b = (value(b=changed(b, (2,), h)) - value(b=changed(b, (2,), -h))) / (2 * h)
        assert found.b[2] == pytest.approx(by_b, abs=2e-6)


def test_divergence_of_a_set_with_itself_is_zero() -> None:
    same = transport.divergence(X, X[::-1], epsilon=0.05, tolerance=1e-10, max_iterations=3000)
    other = transport.divergence(X, Y, epsilon=0.05, tolerance=1e-10, max_iterations=3000)
    assert abs(same.value) < 1e-9 < other.value
    given = transport.divergence(
        cost=(squared(X, Y), squared(X, X), squared(Y, Y)), epsilon=0.05, tolerance=1e-10, max_iterations=3000
    )
    assert given.value == pytest.approx(other.value, abs=1e-12)


def test_barycentre_of_one_histogram_is_near_it() -> None:
    points = np.linspace(0, 1, 20)[:, None]
    one = np.exp(-((points[:, 0] - 0.3) ** 2) * 50)
    found = transport.barycentre(one / one.sum(), points=points, epsilon=0.001, tolerance=1e-8, max_iterations=3000)
    assert found.converged and found.weights.sum() == pytest.approx(1)
    assert (found.weights * points[:, 0]).sum() == pytest.approx((one / one.sum() * points[:, 0]).sum(), abs=1e-3)


def test_estimates_from_batches() -> None:
    x, y = RNG.random((3000, 4)).astype("f"), RNG.random((2500, 4)).astype("f") + 0.3
    options = {"epsilon": 0.1, "batch": 200, "batches": 4, "threads": 1}
    cost = transport.estimate(x, y, **options)
    assert cost.converged and cost.error < 0.05 * cost.mean
    assert transport.estimate(x, y, **options).values.tobytes() == cost.values.tobytes()
    moved = transport.estimate(x, y, what="divergence", **options)
    still = transport.estimate(x, x, what="divergence", **options)
    assert moved.mean > 0.2 > 10 * still.mean
    weighted = transport.estimate(x, y, np.arange(3000) < 10, **options)  # ten points of x only
    ten = transport.sinkhorn(x[:10], y[:400], epsilon=0.1)
    assert weighted.mean == pytest.approx(ten.cost, rel=0.15)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: transport.sinkhorn(X, Y, cost="manhattan"), InputError, "sqeuclidean or cosine"),
        (lambda: transport.sinkhorn(X), InputError, "y is missing"),
        (lambda: transport.sinkhorn(X, Y, cost=np.ones((2, 2))), InputError, "not both"),
        (lambda: transport.sinkhorn(X, Y[:, :3]), ShapeError, "5 and 3 dimensions"),
        (lambda: transport.sinkhorn(X, Y, A[:-1]), ShapeError, "one weight per point"),
        (lambda: transport.sinkhorn(X, Y, -A), InputError, "not negative"),
        (lambda: transport.sinkhorn(X, Y, A * 0), InputError, "total above zero"),
        (lambda: transport.sinkhorn(X, Y, A * 2, B), InputError, "tau="),
        (lambda: transport.sinkhorn(X, Y, epsilon=0), InputError, "above 0"),
        (lambda: transport.sinkhorn(X, Y, max_iterations=0), InputError, "at least 1"),
        (lambda: transport.sinkhorn(X, Y, tau=-1.0), InputError, "above 0"),
        (lambda: transport.sinkhorn(np.full((2, 2), np.nan), Y[:, :2]), InputError, "point 0 holds NaN"),
        (lambda: transport.sinkhorn(X * 0, Y, cost="cosine"), InputError, "norm of zero"),
        (lambda: transport.sinkhorn(cost=[[np.inf]]), InputError, "finite"),
        (lambda: transport.sinkhorn([["a"]], Y), InputError, "numbers"),
        (lambda: transport.sinkhorn(X, Y, start=(A, A)), ShapeError, "potentials"),
        (lambda: transport.Scaling(factor=1.5), InputError, "between 0 and 1"),
        (lambda: transport.on_a_line([1.0], [np.nan]), InputError, "finite"),
        (lambda: transport.on_a_line([1.0], [2.0], p=0.5), InputError, "at least 1"),
        (lambda: transport.sliced(X, Y, lines=0), InputError, "at least 1"),
        (lambda: transport.estimate(X, Y, what="plan"), InputError, "divergence"),
        (lambda: transport.barycentre(np.ones((2, 3)) / 3, points=X), ShapeError, "over n points"),
        (lambda: transport.free_barycentre([], X), InputError, "at least one"),
    ],
)
def test_what_is_refused(call: object, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("changed", ["held", "always anew", "log domain"])
@pytest.mark.parametrize("tau", [None, 0.5])
def test_a_held_kernel_changes_nothing(monkeypatch: pytest.MonkeyPatch, changed: str, tau: float | None) -> None:
    """Potentials that went far, zero weights, sums too small to be trusted: the numbers agree."""
    a, b = A.copy(), B.copy()
    a[:7] = 0
    b[3] = 0
    a, b = a / a.sum(), b / b.sum()
    options = {"epsilon": 0.005, "tolerance": 0, "max_iterations": 40, "tau": tau, "threads": 1}
    plain = transport.sinkhorn(X, Y, a, b, memory=0, **options)
    if changed == "always anew":
        monkeypatch.setattr("weft.transport.sweeps.FARTHEST", 0.0)
    if changed == "log domain":
        monkeypatch.setattr("weft.transport.sweeps.SMALLEST_SUM", 1e300)
    held = transport.sinkhorn(X, Y, a, b, **options)
    assert abs(held.cost - plain.cost) < 1e-11 and abs(held.regularised - plain.regularised) < 1e-11
    np.testing.assert_allclose(held.f, plain.f, atol=1e-10)
    np.testing.assert_allclose(held.g, plain.g, atol=1e-10)


def test_a_point_has_no_cost_from_itself() -> None:
    points = np.random.default_rng(3).standard_normal((50, 385)).astype("f")
    assert (np.diag(Costs(points, points, threads=1).rows()) == 0).all()


def test_memory_is_held_only_within_the_budget() -> None:
    bytes_of_costs = 40 * 30 * 8
    for memory, kept, holds in ((0, False, False), (bytes_of_costs, False, True), (2 * bytes_of_costs, True, True)):
        costs = Costs(X, Y, memory=memory, threads=1)
        assert (costs.native.kept, costs.holds) == (kept, holds)
