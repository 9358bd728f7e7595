"""Fuzz one of the Python targets: `python tests/fuzz/run.py gguf_head [libFuzzer's options and corpus folders]`.

atheris drives it: libFuzzer, guided by which lines of weft an input reaches. Only fuzzing needs that package.
"""

import importlib
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "models")]  # the first is not there by itself when PYTHONSAFEPATH is set


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing the Python readers needs atheris: pip install atheris")
    with atheris.instrument_imports(include=["weft"]):
        target = importlib.import_module(sys.argv[1])

    def edited(data: bytes, limit: int, seed: int) -> bytes:
        rng = random.Random(seed)
        out = target.mutate(data, rng) if rng.random() < 0.9 else b""
        return out if 0 < len(out) <= limit else atheris.Mutate(data, limit)

    place = str(target.SCRATCH.folder).encode()

    def check(data: bytes) -> None:
        if place not in data:  # a fuzzer learns the name by which the target looks for it in messages
            target.check(data)

    # libFuzzer starts itself again, by a shell, to merge: this is how.
    again = f"{sys.executable} {Path(__file__).resolve()} {sys.argv[1]}"
    atheris.Setup([again, *sys.argv[2:]], check, custom_mutator=edited)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
