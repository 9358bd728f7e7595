"""B6. vocab.json and merges.txt with the files beside them: refused with a typed error, or a tokenizer that works.

An input is `name NUL text NUL name NUL text …`, as for `model_folder`.
"""

import random

from fuzzing import Scratch, edit_files, files_of, odd_bytes, refusals, write_files
from json_edits import edit_json

from weft.text import Tokenizer

SCRATCH = Scratch()
NAMES = ("vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json")
TEXT = "Hello <s> <mask> wörld 12\n"


def check(data: bytes) -> None:
    write_files(SCRATCH.folder, NAMES, files_of(data))
    with refusals(SCRATCH.folder, *NAMES, "none of"):
        tokenizer = Tokenizer.from_file(SCRATCH.folder)
        for special in (False, True):
            ids = tokenizer.encode(TEXT, parse_special=special)
            assert all(tokenizer.token(id) is not None for id in ids)
            tokenizer.decode(ids)
        assert tokenizer.eos_id is None or 0 <= tokenizer.eos_id < tokenizer.vocab_size


def mutate(data: bytes, rng: random.Random) -> bytes:
    return edit_files(data, rng, lambda name, text: _edited(name, text, rng))


def _edited(name: str, text: bytes, rng: random.Random) -> bytes:
    """The file with an edit of its kind: of lines and the tokens in them, or of JSON."""
    if name != "merges.txt":
        return edit_json(text, rng)
    lines = text.split(b"\n")
    at, kind = rng.randrange(len(lines)), rng.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, rng.choice(lines))
    elif kind == 2:
        lines[at] = b" ".join(rng.choice(lines).split(b" ")[:1] + lines[at].split(b" ")[-1:])
    elif kind == 3:
        lines[at] += rng.choice((b"\r", b" ", b" x", b"\t", "\u2028".encode(), "\u00a0".encode()))
    elif kind == 4:
        lines[at] = rng.choice((b"", b"#version: 0.2", b" ", b"a", b"a b c"))
    else:
        return odd_bytes(rng, text)
    return b"\n".join(lines)
