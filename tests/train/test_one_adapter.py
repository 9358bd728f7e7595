"""A training's adapter has one hash, whatever the threads, the size of a step and how much is computed again."""

from hashlib import sha256
from itertools import product

import pytest
import tiny
from soaking import SOAK
from tiny_chat import write_chat_model

from weft import train

THREADS, STEP_TOKENS, AGAIN = (1, 2, 4), (1, 120, 1024), (0, 0.5, 1)
EVERY = list(product(enumerate(THREADS), enumerate(STEP_TOKENS), enumerate(AGAIN)))
# In a soak run all 27; else nine in which every value of one meets every value of the others.
CHOSEN = [tuple(value for _, value in one) for one in EVERY if SOAK or sum(number for number, _ in one) % 3 == 0]
OPTIONS = {"rate": 0.01, "batch_tokens": 260, "steps": 3, "valid": 0.2}
MODELS = {"llama": {}, "llama with dropout": {"dropout": 0.1}}
if SOAK:
    MODELS |= {"qwen3_moe": {}, "lfm2": {}, "qwen3_5_text": {}}


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_the_adapter_has_one_hash(chatty, chat_file, tmp_path, name):
    base = chatty
    if name in tiny.CONFIGS:
        base = write_chat_model(tmp_path / "tiny.gguf", model=tiny.CONFIGS[name])
    found, parts = {}, set()
    for threads, tokens, share in CHOSEN if SOAK or name == "llama" else CHOSEN[::4]:
        folder = tmp_path / f"{threads} {tokens} {share}"
        training = train.lora(base, chat_file, output=folder, threads=threads, **OPTIONS, **MODELS[name])
        training.run.step_tokens = tokens
        training.learner.again = round(share * training.learner.parts)
        parts.add(len(list(training.run.parts(training.data.lessons))))
        assert len(list(training)) == OPTIONS["steps"]
        for written in (folder, folder / "last"):
            hashed = sha256((written / "adapter_model.safetensors").read_bytes()).hexdigest()
            found.setdefault(written.name == "last", set()).add(hashed)
    assert len(parts) == len(STEP_TOKENS)  # the sizes do cut a batch differently
    assert [len(hashes) for hashes in found.values()] == [1, 1]
