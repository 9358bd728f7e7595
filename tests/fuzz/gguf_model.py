"""B2. A whole GGUF model: refused with a typed error, or it tokenises, prefills and generates without a crash."""

import random

import numpy as np
from fuzzing import Scratch, refusals
from gguf_edits import edit_gguf

from weft.generate import load

SCRATCH = Scratch()


def check(data: bytes) -> None:
    path = SCRATCH.write("model.gguf", data)
    with refusals(SCRATCH.folder):
        model = load(str(path), threads=1, offline=True, progress=False)
        ids = model.tokenizer.encode("the cat")[:8] or [0]
        assert all(0 <= id < model.decoder.vocab_size for id in ids)
        assert np.shape(model.logits(ids)) == (len(ids), model.decoder.vocab_size)
        model.generate(ids, max_tokens=1)


def mutate(data: bytes, rng: random.Random) -> bytes:
    return edit_gguf(data, rng)
