"""A model folder has a tokenizer whatever kind of file holds it."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny

from weft.errors import NotFoundError
from weft.runtime import Checkpoint, open_checkpoint
from weft.weights import write_safetensors

GOLDEN = Path(__file__).parents[1] / "golden" / "text"


def checkpoint(folder: Path, files: dict[str, str]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(tiny.LLAMA))
    write_safetensors(folder / "model.safetensors", {"x": np.zeros(1, np.float32)})
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return open_checkpoint(folder)


def test_vocab_and_merges_are_found(tmp_path: Path) -> None:
    whole = json.loads((GOLDEN / "gpt2.json").read_text())["tokenizer"]["model"]
    merges = "".join(f"{a} {b}\n" for a, b in whole["merges"])
    opened = checkpoint(tmp_path, {"vocab.json": json.dumps(whole["vocab"]), "merges.txt": merges})
    tokenizer = opened.tokenizer()
    assert tokenizer.decode(tokenizer.encode("the river")) == "the river"


def test_vocab_txt_is_found(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, {"vocab.txt": "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n"})
    assert opened.tokenizer().encode("a") == [1, 5, 2]


def test_a_folder_without_any_says_so(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path, {"vocab.json": "{}"})
    with pytest.raises(NotFoundError, match="no tokenizer files"):
        opened.tokenizer()
