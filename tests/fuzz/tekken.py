"""B5. A tekken.json: refused with a typed error, or a tokenizer that encodes and decodes what its tokens spell.

An input is the file's text; `"@bytes"` in it stands for the entries of the 256 bytes, which every such file has.
"""

import base64
import json
import random

from fuzzing import Scratch, odd_bytes, refusals
from json_edits import edit_json

from weft.text import Tokenizer

SCRATCH = Scratch()
MARK = b'"@bytes"'
BYTES = json.dumps([{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)])[1:-1]
TEXT = "Hello <s>[INST] wörld 12\n"


def check(data: bytes) -> None:
    SCRATCH.write("tekken.json", data.replace(MARK, BYTES.encode(), 1))
    with refusals(SCRATCH.folder, "tekken.json"):
        tokenizer = Tokenizer.from_file(SCRATCH.folder)
        assert tokenizer.bos_id is not None and tokenizer.bos_id in tokenizer.special_ids
        for special in (False, True):
            ids = tokenizer.encode(TEXT, add_special=False, parse_special=special)
            assert tokenizer.decode(ids, skip_special=False) == TEXT


def mutate(data: bytes, rng: random.Random) -> bytes:
    return odd_bytes(rng, data) if rng.random() < 0.05 else edit_json(data, rng)
