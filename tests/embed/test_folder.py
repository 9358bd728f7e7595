"""A sentence-transformers folder is read whole: pooling, dense layer, normalising, prompts, the longest input."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_adapters
from tiny_st import PROMPTS, TEXTS, write_st_folder

import weft
from weft.errors import FormatError, NotFoundError, TooLongError, UnsupportedError

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "tiny-st.npz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_st_folder(tmp_path / "model")


def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    embedder = weft.Embedder(str(folder))
    assert (embedder.dimension, embedder.max_tokens) == (24, 48)
    for made, name in (
        (embedder.encode, "plain"),
        (embedder.encode_query, "query"),
        (embedder.encode_document, "document"),
    ):
        assert np.abs(made(TEXTS) - GOLDEN[name]).max() <= 1e-5, name


def test_info_says_how_vectors_are_made(folder: Path) -> None:
    info = weft.Embedder(str(folder)).info
    assert (info["pooling"], info["normalise"], info["prompts"], info["dimension"]) == ("first", True, PROMPTS, 24)


def test_one_text_gives_one_vector_and_none_give_none(folder: Path) -> None:
    embedder = weft.Embedder(str(folder))
    assert embedder.encode("the cat").shape == (24,)
    assert embedder.encode([]).shape == (0, 24)


def test_similarity_of_equal_texts_is_one(folder: Path) -> None:
    embedder = weft.Embedder(str(folder))
    vectors = embedder.encode(TEXTS)
    table = embedder.similarity(vectors, vectors)
    assert table.shape == (len(TEXTS), len(TEXTS))
    assert np.abs(np.diag(table) - 1).max() <= 1e-6
    with pytest.raises(weft.WeftError, match="cannot be compared"):
        embedder.similarity(vectors, vectors[:, :5])


def test_an_over_long_text_says_the_numbers(folder: Path) -> None:
    embedder = weft.Embedder(str(folder))
    with pytest.raises(TooLongError, match="the model takes 48"):
        embedder.encode("cat " * 100)
    whole = embedder.tokenizer.encode("the cat sat " * 40)
    head, tail = (embedder.token_ids(["the cat sat " * 40], truncate=mode) for mode in ("head", "tail"))
    assert list(head.ids[0]) == [*whole[:47], whole[-1]]  # the closing token stays
    assert list(tail.ids[0]) == [whole[0], *whole[-47:]]
    assert head.dropped == tail.dropped == [len(whole) - 48]


@pytest.mark.parametrize("texts", [[1], [None], [b"bytes"], ["fine", 3.5]])
def test_what_is_no_text_is_named(folder: Path, texts: list) -> None:
    with pytest.raises(weft.WeftError, match=r"text \d must be a string"):
        weft.Embedder(str(folder)).encode(texts)


def test_an_unknown_module_is_named(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 4, "name": "4", "path": "4_LayerNorm", "type": "sentence_transformers.models.LayerNorm"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedError, match="LayerNorm"):
        weft.Embedder(str(folder))


def test_a_module_outside_the_folder_is_refused(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(FormatError, match="outside"):
        weft.Embedder(str(folder))


def test_a_folder_that_does_not_say_how_to_pool_needs_the_caller(folder: Path) -> None:
    (folder / "modules.json").unlink()
    with pytest.raises(UnsupportedError, match="pooling='mean'"):
        weft.Embedder(str(folder))
    assert weft.Embedder(str(folder), pooling="mean").dimension == 36


def test_a_folder_without_tokenizer_files_still_has_hidden_states(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    embedder = weft.Embedder(str(folder))
    assert embedder.hidden_states([2, 17, 3]).shape == (3, 36)
    with pytest.raises(NotFoundError, match="no tokenizer files"):
        embedder.encode("the cat")


def test_adapters_change_the_vectors_of_who_names_them(folder: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(folder))
    plain = embedder.encode(TEXTS)
    config = json.loads((folder / "config.json").read_text())
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": ["query", "value"]}
    embedder.adapters.load("a", tiny_adapters.write_adapter(tmp_path / "a", config, settings, "f32", 1))
    adapted = embedder.encode(TEXTS, adapter="a")
    assert np.abs(adapted - plain).max() > 1e-3 and (embedder.encode(TEXTS) == plain).all()
    assert (embedder.encode(TEXTS[0], adapter="a") == adapted[0]).all()
    with pytest.raises(NotFoundError, match="no adapter of this name is loaded: got 'b'"):
        embedder.encode(TEXTS, adapter="b")
    embedder.adapters.unload("a")
    assert len(embedder.adapters._live) == 0
