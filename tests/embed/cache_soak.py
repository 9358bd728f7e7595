"""Kill -9 in the middle of cache writes, again and again: what a writer acknowledged is there, and nothing is wrong.

python tests/embed/cache_soak.py              500 trials
python tests/embed/cache_soak.py 20           fewer; tests/embed/test_cache_soak.py runs some
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

BATCH, SIZE = 50, 384

WRITER = """
import sys
import numpy as np
from weft.embed.cache import DiskCache, Stored, key_of

cache, name, batch, size = DiskCache(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for first in range(0, 10**9, batch):
    rows = range(first, first + batch)
    made = [(key_of(name, str(n)), Stored(np.full(size, n, np.float32), n, 0, 1)) for n in rows]
    cache.put(name, made)
    print(first + batch, flush=True)  # acknowledged
"""


def trial(path: Path, name: str, rng: random.Random) -> tuple[int, int]:
    """Rows that were acknowledged before the kill, and rows that are there; raises where they are wrong."""
    from weft.embed.cache import DiskCache, key_of

    command = [sys.executable, "-c", WRITER, str(path), name, str(BATCH), str(SIZE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = ""
    for _ in range(rng.randrange(1, 12)):
        said = writer.stdout.readline() or said
    sum(range(rng.randrange(0, 200_000)))  # up to some milliseconds: somewhere inside a commit
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    acknowledged = int(rest[-1] if rest else said)
    cache = DiskCache(path)
    found = cache.get(name, [key_of(name, str(n)) for n in range(acknowledged + 2 * BATCH)])
    there = [n for n, stored in enumerate(found) if stored is not None]
    assert there == list(range(len(there))) and len(there) >= acknowledged, (acknowledged, len(there))
    assert len(there) % BATCH == 0, "a batch is there whole or not at all"
    for n, stored in enumerate(found[: len(there)]):
        assert stored is not None and stored.tokens == n and (stored.vector == np.float32(n)).all()
    assert cache.damaged == 0
    cache.close()
    return acknowledged, len(there)


def soak(trials: int, seed: int = 1) -> dict[str, int]:
    """All trials write to one file, each under a name of its own."""
    import sqlite3

    rng = random.Random(seed)
    totals = {"trials": trials, "acknowledged": 0, "there": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.sqlite"
        for number in range(trials):
            acknowledged, there = trial(path, f"writer {number}", rng)
            totals["acknowledged"] += acknowledged
            totals["there"] += there
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    return totals


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="?", type=int, default=500, help="writers to kill (default: 500)")
    print(soak(parser.parse_args().trials))
