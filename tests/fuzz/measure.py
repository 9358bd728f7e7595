"""Time and memory that refusing each malformed file takes, every file in a process of its own.

`python tests/fuzz/measure.py` prints, for GGUF, safetensors and JSON files, how many were refused and the worst one.
The limits are 1 s and 64 MiB; the exit code is 1 when a file goes past them or ends in anything but weft's own error.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from large_sidecars import large
from seeds_models import gguf_corpus, safetensors_corpus
from sidecars import Case, all_cases, outcome, write_linked_models

from weft.errors import WeftError
from weft.weights import open_gguf, open_safetensors

MAX_SECONDS, MAX_BYTES = 1.0, 64 << 20
REFUSED, TAKEN, BROKEN = range(3)


class Cost(NamedTuple):
    what: str
    ending: int
    seconds: float  # of processor time
    size_bytes: int  # of the largest memory of the process, over that of one that does nothing


def measured(what: str, work: Callable[[], bool]) -> Cost:
    """Run `work`, which says whether the file was refused, in a child."""
    _, _, least = _ended(lambda: False)
    ending, seconds, size = _ended(work)
    return Cost(what, ending, seconds, size - least)


def _ended(work: Callable[[], bool]) -> tuple[int, float, int]:
    """How a child with `work` ends, the processor's time in it, and its largest memory."""
    child = os.fork()
    if child == 0:
        ending = BROKEN
        try:
            ending = REFUSED if work() else TAKEN
        finally:
            os._exit(ending)
    _, status, usage = os.wait4(child, 0)
    ending = os.waitstatus_to_exitcode(status)
    ending = ending if ending in (REFUSED, TAKEN) else BROKEN
    return ending, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def refuses(open_file: Callable[[Path], object], path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        open_file(path)
    except WeftError:
        return True
    return False


def refuses_model(root: Path, case: Case) -> bool:
    return outcome(root, case) is not None


def costs(folder: Path) -> Iterator[tuple[str, list[Cost]]]:
    gguf = [
        *gguf_corpus.boundary_files(),
        *gguf_corpus.pairwise_files(),
        *gguf_corpus.single_faults(),
        *gguf_corpus.bombs(),
    ]
    path = folder / "model.gguf"
    yield "GGUF", [measured(what, partial(refuses, open_gguf, path, data)) for what, data in gguf]
    other = folder / "model.safetensors"
    files = safetensors_corpus.malformed()
    yield "safetensors", [measured(what, partial(refuses, open_safetensors, other, data)) for what, data in files]
    root = write_linked_models(folder)
    cases = chain(all_cases(root), large(root))
    yield "JSON", [measured(case.what, partial(refuses_model, root, case)) for case in cases]


def main() -> int:
    broken = 0
    with tempfile.TemporaryDirectory() as name:
        for kind, found in costs(Path(name)):
            slow, large_one = max(found, key=lambda cost: cost.seconds), max(found, key=lambda cost: cost.size_bytes)
            ends = [sum(cost.ending == ending for cost in found) for ending in (REFUSED, TAKEN, BROKEN)]
            print(f"{kind}: {len(found)} files, {ends[0]} refused, {ends[1]} taken, {ends[2]} broken")
            print(f"  slowest {slow.seconds:.3f} s: {slow.what}")
            print(f"  largest {large_one.size_bytes / (1 << 20):.1f} MiB more: {large_one.what}", flush=True)
            broken += ends[2] + (slow.seconds > MAX_SECONDS) + (large_one.size_bytes > MAX_BYTES)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
