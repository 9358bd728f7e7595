"""Sinkhorn beside POT: time by turns, and peak memory of a process that does only this.

python benchmarks/transport.py --pot PYTHON_WITH_POT [--sizes 500 2000 10000] [--rounds 3]

Both solve the same problem: unit vectors of 384 numbers, squared distances, float32 points, epsilon 0.05, a fixed
number of iterations; imports do not count. POT runs `sinkhorn_log` (in the log domain, as weft) and, beside it, its
plain `sinkhorn`, which underflows for small epsilons.
"""

import argparse
import json
import statistics
import subprocess
import sys

DATA = """
import json, resource, sys, time
import numpy as np
IMPORT
n, iterations = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(n)
x, y = rng.standard_normal((2, n, 384)).astype("f")
y += 0.1
x /= np.linalg.norm(x, axis=1, keepdims=True)
y /= np.linalg.norm(y, axis=1, keepdims=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, used = time.perf_counter(), time.process_time()
"""
WEFT = """
found = transport.sinkhorn(x, y, epsilon=0.05, tolerance=0, max_iterations=iterations)
cost = found.cost
"""
POT = """
a = np.full(n, 1 / n)
C = ot.dist(x.astype("d"), y.astype("d"))
P = ot.sinkhorn(a, a, C, 0.05, method="METHOD", numItermax=iterations, stopThr=0)
cost = float((P * C).sum())
"""
END = """
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
took = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}
print(json.dumps({**took, "cost": float(cost), "MB": (peak - before) / 1024}))
"""


def measured(python, code, n, iterations):
    data = DATA.replace("IMPORT", "from weft import transport" if code == WEFT else "import ot")
    done = subprocess.run(
        [python, "-W", "ignore", "-c", data + code + END, str(n), str(iterations)], capture_output=True, text=True
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(done.returncode)}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pot", required=True, help="a Python that has POT")
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=["sinkhorn_log", "sinkhorn"])
    given = parser.parse_args()
    ways = {"weft": (sys.executable, WEFT)}
    ways |= {method: (given.pot, POT.replace("METHOD", method)) for method in given.methods}
    for n in given.sizes:
        found = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, (python, code) in ways.items():
                found[way].append(measured(python, code, n, given.iterations))
        for way, runs in found.items():
            good = [run for run in runs if "error" not in run]
            middle = {k: statistics.median(run[k] for run in good) for k in ("seconds", "cpu", "cost", "MB") if good}
            print(json.dumps({"n": n, "way": way, "iterations": given.iterations, **(middle or runs[0])}), flush=True)


if __name__ == "__main__":
    main()
