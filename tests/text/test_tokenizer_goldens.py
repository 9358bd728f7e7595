"""Small tokenizers give the ids, texts and offsets of the tokenizers library, whatever flags added tokens have."""

import json
from pathlib import Path
from typing import Any

import pytest

from weft.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "text"
NAMES = ["word_piece", "gpt2", "llama3", "nemo", "falcon", "smollm", "llama2", "mistral", "unigram"]


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    content = json.loads((GOLDEN / f"{request.param}.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content["tokenizer"]))
    return Tokenizer.from_file(tmp_path), content


def test_ids_agree_with_special_tokens_parsed(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for text, ids, *_ in content["cases"]:
        assert tokenizer.encode(text, parse_special=True) == ids, ascii(text)


def test_ids_agree_with_special_tokens_as_text(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for text, _, plain, *_ in content["cases"]:
        assert tokenizer.encode(text) == plain, ascii(text)


def test_decoded_texts_agree(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for _, ids, _, decoded, _ in content["cases"]:
        assert tokenizer.decode(ids) == decoded


def test_pairs_agree(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for first, second, ids, types, offsets in content["pairs"]:
        assert tokenizer.encode_pair(first, second, parse_special=True) == (ids, types)
        located = tokenizer.encode_offsets(first, second, parse_special=True)
        assert (located.ids, located.types, located.offsets.tolist()) == (ids, types, offsets)


def test_offsets_agree(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for text, ids, _, _, offsets in content["cases"]:
        located = tokenizer.encode_offsets(text, parse_special=True)
        assert (located.ids, located.offsets.ravel().tolist()) == (ids, offsets), ascii(text)


def test_a_batch_is_its_texts_one_by_one(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    texts = [case[0] for case in content["cases"]]
    for threads in (1, 3):
        batch = tokenizer.encode_batch(texts, threads=threads)
        assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in texts]


def test_streamed_pieces_join_to_the_decoded_text(golden: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, content = golden
    for skip in (True, False):
        for _, ids, *_ in content["cases"]:
            stream = tokenizer.stream(skip_special=skip)
            pieces = [stream.add(id) for id in ids]
            assert "".join(pieces) + stream.finish() == tokenizer.decode(ids, skip_special=skip)
