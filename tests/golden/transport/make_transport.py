"""What POT finds for the problems of tests/transport/problems.py; only costs and iterations are kept.

python tests/golden/transport/make_transport.py [SOLVER ...]        needs POT; some minutes
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import ot

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "transport")]
from made_with import note_versions  # noqa: E402
from problems import COUNT, clouds, histograms, probes, problem, squared  # noqa: E402

warnings.simplefilter("ignore")
np.seterr(all="ignore")


def balanced(x, y, a, b, epsilon, most):
    plan, log = ot.bregman.sinkhorn_log(
        a, b, squared(x, y), epsilon, numItermax=most, stopThr=1e-9, log=True, warn=False
    )
    return plan, int(log["niter"]) + 1, float(log["err"][-1])


def sinkhorn(number):
    p = problem(number)
    plan, iterations, error = balanced(*p[:5], p.most)
    some = plan > 0
    product = (p.a[:, None] * p.b)[some]
    regularised = (plan * p.costs).sum() + p.epsilon * (plan[some] * np.log(plan[some] / product)).sum()
    return [float((plan * p.costs).sum()), float(regularised), iterations, error]


def unbalanced(number):
    p = problem(number, "unbalanced")
    keep_a, keep_b = p.a > 0, p.b > 0
    costs = p.costs[keep_a][:, keep_b]
    a, b = p.a[keep_a], p.b[keep_b]
    plan, log = ot.unbalanced.sinkhorn_knopp_unbalanced(
        a, b, costs, p.epsilon, p.tau, numItermax=p.most, stopThr=1e-11, log=True
    )
    # POT's total cost leaves out the masses of its three divergences.
    total = p.epsilon * kl(plan, a[:, None] * b) + p.tau * (kl(plan.sum(1), a) + kl(plan.sum(0), b))
    return [float(log["cost"]), float(log["cost"] + total), len(log["err"]), float(log["err"][-1])]


def kl(p, q):
    some = p > 0
    return (p[some] * np.log(p[some] / q[some])).sum() - p.sum() + q.sum()


def divergence(number):
    p = problem(number, "divergence")
    found = []
    for x, y, a, b in ((p.x, p.y, p.a, p.b), (p.x, p.x, p.a, p.a), (p.y, p.y, p.b, p.b)):
        plan, iterations, error = balanced(x, y, a, b, p.epsilon, p.most)
        found.append(((plan * squared(x, y)).sum(), iterations, error))
    linear = found[0][0] - (found[1][0] + found[2][0]) / 2
    return [float(linear), max(part[1] for part in found), max(part[2] for part in found)]


def barycentre(number):
    costs, rows, shares, epsilon = histograms(number)
    # POT's plain method starts from a mean that ignores the shares, and ends elsewhere where they differ.
    options = {"numItermax": 1000, "stopThr": 1e-10, "log": True, "warn": False}
    found, log = ot.bregman.barycenter(rows.T, costs, epsilon, weights=shares, method="sinkhorn_log", **options)
    return [*map(float, probes(number, len(found)) @ found), int(log["niter"]) + 1, float(log["err"][-1])]


def free(number):
    sets, start, shares, epsilon = clouds(number)
    found = ot.bregman.free_support_sinkhorn_barycenter(
        sets, [ot.unif(len(cloud)) for cloud in sets], start, epsilon, weights=shares, numItermax=5, stopThr=0,
        method="sinkhorn_log", numInnerItermax=300,
    )  # fmt: skip
    return [*map(float, probes(number, found.size) @ found.ravel())]


def line(number):
    p = problem(number, "line")
    return [float(ot.wasserstein_1d(p.x[:, 0], p.y[:, 0], p.a, p.b, p=power)) for power in (1, 2)]


def sliced(number):
    p = problem(number, "sliced")
    lines = np.random.default_rng(number).standard_normal((10, p.x.shape[1]))
    lines /= np.linalg.norm(lines, axis=1, keepdims=True)
    return [float(ot.sliced_wasserstein_distance(p.x, p.y, p.a, p.b, projections=lines.T, p=power)) for power in (1, 2)]


out = HERE / "pot.json"
made = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
for solver in (line, sliced, barycentre, unbalanced, sinkhorn, divergence, free):
    if solver.__name__ in sys.argv[1:] or len(sys.argv) == 1:
        made[solver.__name__] = [solver(number) for number in range(COUNT)]
        print(solver.__name__, flush=True)
text = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for name, rows in made.items())
out.write_text("{\n" + text + "\n}\n", encoding="utf-8")
note_versions(out, "numpy", "POT")
