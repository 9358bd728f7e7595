"""B1. A GGUF file's metadata and tensor table: refused with a typed error, or every part of them can be read."""

import random

from fuzzing import Scratch, refusals
from gguf_edits import edit_gguf
from tiny_gguf import config_from_gguf

import weft.weights.gguf_config
from weft.text import Tokenizer
from weft.weights import StringArray, open_gguf

SCRATCH = Scratch()


def check(data: bytes) -> None:
    path = SCRATCH.write("model.gguf", data)
    with refusals(SCRATCH.folder), open_gguf(path) as file:
        for tensor in file.tensors.values():
            assert tensor.bytes().size == tensor.nbytes > 0
        for key in file.metadata:
            with refusals(SCRATCH.folder):
                value = file.metadata[key]
                assert not isinstance(value, StringArray) or len(list(value)) == len(value)
        with refusals(SCRATCH.folder):
            config = config_from_gguf(file)
            assert 0 < config["num_hidden_layers"] <= weft.weights.gguf_config.MAX_LAYERS
        with refusals(SCRATCH.folder):
            tokenizer = Tokenizer.from_gguf(file.metadata)
            tokenizer.decode(tokenizer.encode("Hello <s> wörld"))


def mutate(data: bytes, rng: random.Random) -> bytes:
    return edit_gguf(data, rng)
