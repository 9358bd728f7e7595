"""False alarms and delays of the drift detector: null streams, then streams that shift.

python benchmarks/drift_streams.py [--streams 1000] [--processes 16]
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

HORIZON = 60  # checks of 16 vectors


def one(seed, dim, rate, shift, reference):
    """The vector at which the alarm came, or None. Vectors before the 320th have no shift."""
    from weft.transport.drift.watching import Detector

    rng = np.random.default_rng([seed, dim])
    detector = Detector(
        rng.standard_normal((reference, dim)).astype("f"), false_alarms=rate, horizon=HORIZON, measure=False, seed=seed
    )
    for number in range(HORIZON * detector.every):
        vector = rng.standard_normal(dim, np.float32) + (shift if number >= 320 else 0)
        if detector.observe(vector).state == "drift":
            return number + 1
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--reference", type=int, default=512)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        task = partial(one, dim=given.dim, rate=given.rate, reference=given.reference)
        null = list(pool.map(partial(task, shift=0.0), range(given.streams), chunksize=4))
        shifted = list(pool.map(partial(task, shift=0.1), range(given.streams, given.streams + 100), chunksize=1))
    alarms = [at for at in null if at is not None]
    delays = sorted(at - 320 for at in shifted if at is not None and at > 320)
    print(json.dumps({
        "streams": given.streams, "false_alarms": len(alarms) / given.streams, "shifted": len(shifted),
        "found": len(delays), "delay_median": delays[len(delays) // 2], "delay_90": delays[int(len(delays) * 0.9)],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
