"""Models with wrong weights in a right file: those that load go on to tokenise, prefill and generate.

`python tests/fuzz/mutants.py 20000` tries so many and counts how they end; the test suite tries a few hundred.
"""

import random
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from fuzzing import Scratch, refusals
from gguf_edits import File, taken_apart
from seeds_models import gguf_model
from tiny_folders import write_decoder

from weft.errors import WeftError
from weft.generate import load

PATTERNS = (
    b"\x00\x00\xc0\x7f",
    b"\x00\x00\x80\x7f",
    b"\x00\x00\x80\xff",
    b"\xff\xff\x7f\x7f",
    b"\x01\x00\x00\x00",
    b"\xff",
)


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """Weights in `data` overwritten with NaN, infinities, the largest and smallest numbers, or flipped bits."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 64))):
        at = rng.randrange(len(out))
        if rng.random() < 0.5:
            out[at] ^= 1 << rng.randrange(8)
            continue
        at -= at % 4
        pattern = rng.choice(PATTERNS) * rng.choice((1, 1, 16))
        out[at : at + len(pattern)] = pattern[: len(out) - at]
    return bytes(out)


def swap_names(file: File, rng: random.Random) -> None:
    """Two tensors trade names; those of one shape still fit."""
    first, second = rng.sample(file.tensors, 2)
    first[:2], second[:2] = second[:2], first[:2]


def gguf_mutants(rng: random.Random) -> bytes:
    """A GGUF model with wrong weights."""
    raw = gguf_model(rng.choice(("q8_0", "q4_0", "f16", "f32")), rng.choice(("llama", "gpt2")))
    file = taken_apart(raw)
    assert file is not None
    if rng.random() < 0.3:
        swap_names(file, rng)
    if rng.random() < 0.9:
        file.data = spoilt(file.data, rng)
    return file.raw()


def safetensors_mutant(raw: bytes, rng: random.Random) -> bytes:
    """A safetensors file with the same header and wrong data."""
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    return raw[:start] + spoilt(raw[start:], rng)


def ending(path: Path, folder: Path) -> str:
    """How a model ends that may be wrong: "runs", or the class of weft's error. Any other exception comes through."""
    result = "refused"
    with refusals(folder):
        try:
            model = load(str(path), threads=1, offline=True, progress=False)
        except WeftError as error:
            return f"not loaded: {type(error).__name__}"
        try:
            ids = (model.tokenizer.encode("the cat is on the mat") * 8)[:8]
            made = model.generate(ids, max_tokens=4, ignore_eos=True)
            assert all(0 <= id < model.decoder.vocab_size for id in made.tokens)
            result = "runs"
        except WeftError as error:
            result = f"stops: {type(error).__name__}"
            raise
    return result


def endings(count: int, seed: int) -> Counter[str]:
    """How `count` mutants end: GGUF files and, every fourth, folders."""
    rng, scratch = random.Random(seed), Scratch()
    folder = write_decoder(scratch.folder / "decoder")
    shard = folder / "model-1.safetensors"
    good = shard.read_bytes()
    found: Counter[str] = Counter()
    for number in range(count):
        if number % 4 == 3:
            shard.write_bytes(safetensors_mutant(good, rng))
            found[ending(folder, scratch.folder)] += 1
        else:
            found[ending(scratch.write("model.gguf", gguf_mutants(rng)), scratch.folder)] += 1
    return found


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        for what, number in endings(int(sys.argv[1]), seed=1).most_common():
            print(f"{number:8} {what}")
