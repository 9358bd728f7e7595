"""A folder like all-mpnet-base-v2's gives the ids of transformers and the vectors of sentence-transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_mpnet import FILES, PAIRS, TEXTS, write_mpnet_folder

import weft
from weft.compat import SentenceTransformer
from weft.errors import FormatError
from weft.text import Tokenizer

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "tiny-mpnet.npz")


@pytest.mark.parametrize("file", FILES)
def test_ids_are_those_of_transformers(tmp_path: Path, file: str) -> None:
    tokenizer = Tokenizer.from_file(write_mpnet_folder(tmp_path / "model", file))
    ids, pairs = json.loads(str(GOLDEN[f"{file}/ids"]))
    assert [tokenizer.encode(text, parse_special=True) for text in TEXTS] == ids
    assert [tokenizer.encode_pair(*pair)[0] for pair in PAIRS] == pairs
    assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id) == (0, 2, 1)


@pytest.mark.parametrize("file", FILES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, file: str) -> None:
    folder, want = str(write_mpnet_folder(tmp_path / "model", file)), GOLDEN[f"{file}/vectors"]
    assert np.abs(SentenceTransformer(folder).encode(TEXTS) - want).max() <= 1e-5
    plain = [row for row, text in enumerate(TEXTS) if "<" not in text]  # an Embedder finds no special tokens in texts
    for compute, least in (("f32", 0.999999), ("bf16", 0.9999), ("int8", 0.998)):
        made = weft.Embedder(folder, compute=compute).embed([TEXTS[row] for row in plain]).vectors
        assert (made * want[plain]).sum(axis=1).min() > least


def test_a_vocabulary_without_the_class_s_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_mpnet_folder(tmp_path / "model", "vocab.txt")
    (folder / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(FormatError, match=r"the unk token '\[UNK\]' is missing"):
        Tokenizer.from_file(folder)
    (folder / "vocab.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(FormatError, match="malformed UTF-8: at byte 2"):
        Tokenizer.from_file(folder)
