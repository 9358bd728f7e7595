"""The class for sentence-transformers' users takes its arguments and gives its results."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tiny_st import PROMPTS, TEXTS

import weft
from weft.compat import SentenceTransformer, quantised
from weft.errors import InputError, UnsupportedError

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "tiny-st.npz")


@pytest.fixture
def model(tiny_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_folder), device="cpu")


def test_vectors_are_sentence_transformers_own(model: SentenceTransformer) -> None:
    assert np.abs(model.encode(TEXTS) - GOLDEN["plain"]).max() <= 1e-5
    assert np.abs(model.encode_query(TEXTS) - GOLDEN["query"]).max() <= 1e-5
    assert np.abs(model.encode_document(TEXTS, batch_size=2) - GOLDEN["document"]).max() <= 1e-5
    by_name, by_text = model.encode(TEXTS, prompt_name="query"), model.encode(TEXTS, prompt=PROMPTS["query"])
    assert np.array_equal(by_name, by_text) and np.array_equal(by_name, model.encode_query(TEXTS))
    assert model.get_sentence_embedding_dimension() == 24 and model.encode("a cat").shape == (24,)
    listed = model.encode(TEXTS, convert_to_numpy=False, show_progress_bar=False)
    assert isinstance(listed, list) and listed[0].shape == (24,)


def test_similarity_is_the_models(model: SentenceTransformer) -> None:
    vectors = model.encode(TEXTS)
    table = model.similarity(vectors, vectors)
    assert np.allclose(table, vectors @ vectors.T, atol=1e-6)
    assert np.allclose(model.similarity_pairwise(vectors, vectors[::-1]), np.diag(table[:, ::-1]), atol=1e-6)
    assert model.similarity_fn_name == "cosine"


def test_long_texts_are_cut_and_it_is_told_once(model: SentenceTransformer, caplog: pytest.LogCaptureFixture) -> None:
    long = "the cat " * 90
    with caplog.at_level(logging.WARNING, "weft.embed"):
        found = [model.encode(long) for _ in range(2)]
    assert len(caplog.records) == 1 and "48 tokens" in caplog.text
    assert np.array_equal(found[0], model.embedder.encode(long, truncate="head"))
    model.max_seq_length = 16
    assert model.max_seq_length == 16 and not np.array_equal(model.encode(long), found[0])
    assert np.array_equal(model.encode("the cat"), weft.Embedder(model.embedder.info["path"]).encode("the cat"))
    model.max_seq_length = 49  # its files say 48, and it has 640 positions
    assert len(model.embedder.token_ids([long], truncate="head").ids[0]) == 49
    for wrong in (2, 641, 16.0):
        with pytest.raises(InputError, match="3 to 640"):
            model.max_seq_length = wrong  # type: ignore[assignment]


def test_normalising_may_be_asked_for(tiny_folder: Path) -> None:
    model = SentenceTransformer(str(tiny_folder), normalise=False)
    plain, unit = model.encode(TEXTS), model.encode(TEXTS, normalize_embeddings=True)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.01
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True))


def test_tokens_may_be_asked_for(model: SentenceTransformer) -> None:
    states = model.encode(["the cat", "a"], output_value="token_embeddings")
    assert [state.shape for state in states] == [(5, 36), (3, 36)]


def test_precisions_are_sentence_transformers_formulas() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40, 16)).astype(np.float32)
    low, step = vectors.min(0), (vectors.max(0) - vectors.min(0)) / 255
    assert np.array_equal(quantised(vectors, "uint8"), ((vectors - low) / step).astype(np.uint8))
    assert np.array_equal(quantised(vectors, "int8"), ((vectors - low) / step - 128).astype(np.int8))
    bits = np.packbits(vectors > 0).reshape(40, -1)
    assert np.array_equal(quantised(vectors, "ubinary"), bits)
    assert np.array_equal(quantised(vectors, "binary"), (bits - np.uint8(128)).view(np.int8))


def test_what_it_cannot_do_is_refused_by_name(model: SentenceTransformer, tiny_folder: Path) -> None:
    for option, error in (
        ({"convert_to_tensor": True}, UnsupportedError),
        ({"precision": "int4"}, InputError),
        ({"output_value": None}, UnsupportedError),
        ({"prompt_name": "qurey"}, InputError),
        ({"device": "cuda"}, UnsupportedError),
    ):
        with pytest.raises(error, match=next(iter(option)).split("_")[0]):
            model.encode("a", **option)
    with pytest.raises(UnsupportedError, match="cuda"):
        SentenceTransformer(str(tiny_folder), device="cuda")
