"""Offsets of tokens: in characters or bytes, from every kind of file, and right where text is rewritten."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_tokenizer import GOLDEN, gguf_bpe, golden_json, load
from texts import random_texts

from weft.errors import InputError
from weft.text.tokenizer import Tokenizer

NAMES = ["word_piece", "gpt2", "llama3", "nemo", "falcon", "smollm", "llama2", "mistral", "unigram"]


def gguf_pieces(**extra: Any) -> dict[str, Any]:
    """SentencePiece BPE with bytes: a few letters and words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    pieces = ["▁", "a", "b", "ä", "▁a", "ab", "▁ab", "▁▁"]
    keys = {
        "model": "llama",
        "tokens": tokens + pieces,
        "token_type": kinds + [1] * len(pieces),
        "scores": [0.0] * len(tokens) + [-float(i) for i in range(len(pieces))],
        "bos_token_id": 1,
        "unknown_token_id": 0,
        "add_bos_token": True,
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def slices(text: str, tokenizer: Tokenizer) -> list[str]:
    found = tokenizer.encode_offsets(text, add_special=False)
    return [text[start:end] for start, end in found.offsets]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_characters_are_the_same_places(name: str, tmp_path: Path) -> None:
    tokenizer = load(golden_json(name), tmp_path)
    for text in random_texts(4, 200):
        in_characters, in_bytes = tokenizer.encode_offsets(text), tokenizer.encode_offsets(text, unit="bytes")
        assert in_characters.ids == in_bytes.ids == tokenizer.encode(text)
        assert [(len(text[:a].encode()), len(text[:b].encode())) for a, b in in_characters.offsets] == [
            *map(tuple, in_bytes.offsets.tolist())
        ], ascii(text)


def test_byte_pairs_tile_the_text() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    assert slices("aaab aé", tokenizer) == ["aa", "ab", " ", "a", "é", "é"]
    for text in random_texts(3, 200):
        found = tokenizer.encode_offsets(text, unit="bytes").offsets
        covered = sorted({byte for start, end in found for byte in range(start, end)})
        assert covered == [*range(len(text.encode()))], ascii(text)


def test_pieces_of_a_gguf_file_lie_where_their_text_does() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_pieces())
    assert slices("ab é a", tokenizer) == ["ab", " ", "é", "é", " a"]  # the mark before the text belongs to its start
    found = tokenizer.encode_offsets("ab")
    assert (found.ids[0], found.offsets[0].tolist()) == (1, [0, 0])


def test_a_word_cut_by_accents_and_case_is_whole(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "word_piece.json").read_text())["tokenizer"]
    tokenizer = load(content, tmp_path)
    for text in ("the RIVER", "the ri\u0301ve\u0308r", "\u200bthe\u200b \u0301river"):
        shown = slices(text, tokenizer)
        assert "".join(shown).replace("\u0301", "").replace("\u0308", "").replace("\u200b", "").lower() == "theriver"


def test_a_long_text_has_offsets_in_order() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    text = "aé b" * 50_000
    found = tokenizer.encode_offsets(text)
    starts, ends = found.offsets[:, 0], found.offsets[:, 1]
    assert (starts[1:] >= starts[:-1]).all() and (ends >= starts).all() and ends[-1] == len(text)
    assert found.ids == tokenizer.encode(text)


def test_a_template_may_call_a_single_text_the_second(tmp_path: Path) -> None:
    content = golden_json("gpt2")
    only = [{"Sequence": {"id": "B", "type_id": 1}}]
    content["post_processor"] = {"type": "TemplateProcessing", "single": only, "pair": only, "special_tokens": {}}
    tokenizer = load(content, tmp_path)
    found = tokenizer.encode_offsets("the river")
    assert found.ids == tokenizer.encode("the river") and set(found.types) == {1}
    assert found.offsets[-1].tolist()[1] == len("the river")


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(InputError, match="unit"):
        Tokenizer.from_gguf(gguf_bpe()).encode_offsets("a", unit="words")  # type: ignore[arg-type]
