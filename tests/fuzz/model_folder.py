"""B4. The JSON files of a model's folder: refused with a typed error, or a program can be planned from them.

An input is `name NUL text NUL name NUL text …`; the weights and the tokenizer beside them stay as they are.
"""

import random

from fuzzing import Scratch, edit_files, files_of, refusals, write_files
from json_edits import edit_json
from tiny_folders import NAMES, write_models

from weft.embed.recipe import read_recipe
from weft.runtime import Decoder, Encoder, open_checkpoint
from weft.text import Tokenizer

SCRATCH = Scratch()
DECODER, ENCODER = write_models(SCRATCH.folder)


def check(data: bytes) -> None:
    texts = files_of(data)
    folder = ENCODER if "modules.json" in texts else DECODER
    write_files(folder, NAMES[folder.name], texts)
    with refusals(SCRATCH.folder):
        checkpoint = open_checkpoint(folder)
        if folder is DECODER:
            plan = Decoder(checkpoint, bind=False, threads=1).memory_plan()
        else:
            recipe = read_recipe(checkpoint, None)
            head = recipe.head(recipe.normalise)
            plan = Encoder(recipe.with_dense(checkpoint), head, threads=1).memory_plan(8)
        assert all(0 <= size < 1 << 60 for size in plan.values())
    with refusals(SCRATCH.folder):
        tokenizer = Tokenizer.from_file(folder)
        assert tokenizer.eos_id is None or 0 <= tokenizer.eos_id < tokenizer.vocab_size


def mutate(data: bytes, rng: random.Random) -> bytes:
    return edit_files(data, rng, lambda _, text: edit_json(text, rng))
