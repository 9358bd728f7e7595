"""The class for sentence-transformers' users takes its arguments and gives its results."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tiny_rerank import DOCUMENTS, PAIRS, QUERIES, write_cross
from tiny_st import PROMPTS, TEXTS, write_st_folder

import weft
from weft.compat import CrossEncoder, SentenceTransformer
from weft.compat.arguments import named
from weft.compat.sentence_transformer import quantised
from weft.errors import InputError, UnsupportedError

FILES = Path(__file__).parent.parent / "golden"
GOLDEN = np.load(FILES / "embed" / "tiny-st.npz")
SCORES = np.load(FILES / "rerank" / "tiny-rerank.npz")


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


@pytest.mark.parametrize(("name", "itself"), [("cosine", 1), ("dot", 4), ("euclidean", 0), ("manhattan", 0)])
def test_another_measure_may_be_asked_for(tiny_folder: Path, name: str, itself: float) -> None:
    model = SentenceTransformer(str(tiny_folder), similarity_fn_name=name)
    vectors = 2 * model.encode(TEXTS)
    assert np.allclose(np.diag(model.similarity(vectors, vectors)), itself, atol=1e-5)
    assert np.allclose(model.similarity_pairwise(vectors, vectors), itself, atol=1e-5)
    model.similarity_fn_name = "dot"
    assert np.allclose(model.similarity(vectors[0], vectors), vectors[:1] @ vectors.T, atol=1e-5)


def test_what_does_not_compare_is_refused(model: SentenceTransformer, tiny_folder: Path) -> None:
    vectors = model.encode(TEXTS)
    with pytest.raises(InputError, match="3 and 2 vectors do not form pairs"):
        model.similarity_pairwise(vectors[:3], vectors[:2])
    with pytest.raises(InputError, match="codes of uint8"):
        model.similarity(model.encode(TEXTS, precision="uint8"), vectors)
    with pytest.raises(InputError, match="similarity_fn_name must be one of cosine"):
        model.similarity_fn_name = "bogus"
    with pytest.raises(InputError, match=r"prompt_name must be one of .*\(query, document\): got 'qurey'"):
        SentenceTransformer(str(tiny_folder), default_prompt_name="qurey")


def test_prompts_are_taken_and_both_roles_are_always_there(model: SentenceTransformer, tiny_folder: Path) -> None:
    own = SentenceTransformer(str(tiny_folder), prompts={"query": "one ", "other": "two "}, default_prompt_name="other")
    assert np.array_equal(own.encode_query(TEXTS), model.encode(TEXTS, prompt="one "))
    assert np.array_equal(own.encode(TEXTS), model.encode(TEXTS, prompt="two "))
    assert np.array_equal(own.encode_query(TEXTS, prompt="a "), model.encode(TEXTS, prompt="a "))
    assert own.embedder.fingerprint != model.embedder.fingerprint
    plain = SentenceTransformer(str(tiny_folder), prompts={"query": "", "document": ""})
    assert np.array_equal(plain.encode_document(TEXTS), model.encode(TEXTS))


def test_vectors_may_be_cut_in_a_call(wide_folder: Path) -> None:
    model = SentenceTransformer(str(wide_folder))
    short = model.encode(TEXTS, truncate_dim=32)
    assert short.shape == (len(TEXTS), 32) and model.encode(TEXTS).shape == (len(TEXTS), 36)
    assert np.array_equal(short, SentenceTransformer(str(wide_folder), truncate_dim=32).encode(inputs=TEXTS))


def test_tokens_are_padded_at_the_end(tmp_path: Path) -> None:
    model = SentenceTransformer(str(write_st_folder(tmp_path / "model")))
    made = model.tokenize(["the cat", "a", "the cat " * 90])
    assert made["input_ids"].shape == made["attention_mask"].shape == (3, 48)
    assert made["attention_mask"].sum(axis=1).tolist() == [5, 3, 48]
    assert made["input_ids"][1, :3].tolist() == model.tokenizer.encode("a") and not made["input_ids"][1, 3:].any()


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
    assert np.array_equal(quantised(vectors, "int8"), (np.floor((vectors - low) / step) - 128).astype(np.int8))
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


def test_arguments_that_change_nothing_are_taken(model: SentenceTransformer, tiny_folder: Path) -> None:
    same = SentenceTransformer(
        str(tiny_folder),
        trust_remote_code=True,
        revision="main",
        token=True,
        use_auth_token=None,
        backend="torch",
        cache_folder=None,
        modules=None,
        model_kwargs={"attn_implementation": "sdpa"},
        tokenizer_kwargs={"padding_side": "left"},
        config_kwargs={},
        model_card_data=object(),
        compute="f32",
    )
    assert same.to("cpu").eval() is same and same.to(device=None) is same
    assert np.array_equal(same.encode(TEXTS, chunk_size=2, pool=None), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"model_kwargs": {"torch_dtype": "float16"}}, "model_kwargs is not supported: got .*torch_dtype.*compute="),
        ({"tokenizer_kwargs": {"model_max_length": 9}}, "max_seq_length"),
        ({"config_kwargs": {"x": 1}}, "the model's files"),
        ({"backend": "onnx"}, "backend is not supported: got 'onnx'"),
        ({"token": "hf_secret"}, "token is not supported; set HF_TOKEN"),
        ({"cache_folder": "/tmp/x"}, "got '/tmp/x'; set HF_HOME"),
        ({"modules": [1]}, "modules is not supported"),
    ],
)
def test_arguments_that_ask_for_more_are_refused_with_what_to_do(tiny_folder: Path, given: dict, instead: str) -> None:
    for kind in (SentenceTransformer, CrossEncoder):
        with pytest.raises(UnsupportedError, match=instead):
            kind(str(tiny_folder), **given)
        with pytest.raises(InputError, match="nonsense is not an argument"):
            kind(str(tiny_folder), nonsense=1)


def test_what_trains_saves_or_starts_processes_is_refused(model: SentenceTransformer) -> None:
    for name in ("fit", "save", "save_pretrained", "start_multi_process_pool", "encode_multi_process"):
        with pytest.raises(UnsupportedError, match=rf"{name}\(\) is not supported"):
            getattr(model, name)("anything")
    with pytest.raises(UnsupportedError, match="cuda"):
        model.to("cuda")
    with pytest.raises(UnsupportedError, match="pool"):
        model.encode(TEXTS, pool={"input": 1})


def test_a_revision_goes_behind_the_name(tiny_folder: Path) -> None:
    assert named("a/b", None, "owner") == "a/b" and named("a/b", "v1", "owner") == "a/b@v1"
    assert named("all-MiniLM-L6-v2", "v1", "sentence-transformers") == "sentence-transformers/all-MiniLM-L6-v2@v1"
    assert named(str(tiny_folder), "v1", "owner") == str(tiny_folder)


@pytest.mark.parametrize("name", ["bert", "bert-identity", "xlm_roberta", "modernbert"])
def test_a_cross_encoder_predicts_and_ranks_as_sentence_transformers_does(tmp_path: Path, name: str) -> None:
    model = CrossEncoder(str(write_cross(tmp_path / name, name)), device="cpu", num_labels=1, max_length=512)
    assert np.allclose(model.predict(PAIRS, batch_size=2, show_progress_bar=False), SCORES[name], rtol=2e-4, atol=1e-6)
    assert model.predict(PAIRS[0]) == model.predict(sentences=np.array(PAIRS))[0] == model.predict([PAIRS[0]])[0]
    assert model.predict([]).shape == (0,) and isinstance(model.predict(PAIRS, convert_to_numpy=False), list)
    scores = model.predict([(QUERIES[0], text) for text in DOCUMENTS])
    order = np.argsort(-scores, kind="stable")
    wanted = [{"corpus_id": int(i), "score": float(scores[i]), "text": DOCUMENTS[i]} for i in order]
    assert model.rank(QUERIES[0], DOCUMENTS, return_documents=True) == wanted
    assert model.rank(QUERIES[0], DOCUMENTS, top_k=2) == [
        {k: one[k] for k in ("corpus_id", "score")} for one in wanted[:2]
    ]
    with pytest.raises(InputError, match="documents must be a list of strings, not one string"):
        model.rank("q", "cat")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "types"), [("bert", [0, 1]), ("xlm_roberta", [0])])
def test_a_cross_encoder_cuts_pairs_where_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, types: list[int]
) -> None:
    model = CrossEncoder(str(write_cross(tmp_path / name, name)), max_length=12)
    long = ("the cat sat on the cat " * 20, "one two")
    with caplog.at_level(logging.WARNING, "weft.embed"):
        found = [model.predict(long) for _ in range(2)]
    assert len(caplog.records) == 1 and "12 tokens" in caplog.text and found[0] == found[1]
    tokens = model._pairs([long]).tokens[0]
    assert tokens.ids.tolist() == list(model.tokenizer.encode_within(12, *long).ids)
    assert np.unique(tokens.types).tolist() == types
    model.max_length = 10_000  # more than the model takes is what it takes
    assert model.predict(long) == weft.Reranker(str(tmp_path / name)).scores([long])[0] != found[0]


def test_activations_are_the_models_or_a_sigmoid(tmp_path: Path) -> None:
    class Sigmoid:
        """As torch.nn.Sigmoid() is called."""

    class Identity:
        """As torch.nn.Identity() is called."""

    plain = CrossEncoder(str(write_cross(tmp_path / "plain", "bert-identity")), activation_fn=Sigmoid())
    own = CrossEncoder(str(write_cross(tmp_path / "own", "bert")))
    assert np.allclose(plain.predict(PAIRS), own.predict(PAIRS, activation_fn=Sigmoid()), atol=1e-6)
    assert np.allclose(plain.predict(PAIRS, activation_fn=Identity()), SCORES["bert-identity"], rtol=2e-4, atol=1e-6)
    logits = own.predict(PAIRS, activation_fn=Identity())
    assert np.allclose(1 / (1 + np.exp(-logits)), own.predict(PAIRS), atol=1e-6)
    with pytest.raises(UnsupportedError, match="activation_fn must be one of identity, sigmoid: got 'Softmax'"):
        own.predict(PAIRS, activation_fn="Softmax")
    with pytest.raises(UnsupportedError, match="convert_to_tensor"):
        own.predict(PAIRS, convert_to_tensor=True)
    with pytest.raises(UnsupportedError, match="num_labels must be 1: got 3"):
        CrossEncoder(str(tmp_path / "own"), num_labels=3)


def test_ranges_of_codes_want_more_than_one_vector(tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = SentenceTransformer(str(tiny_folder))
    with pytest.raises(InputError, match='output_dtype="int8"'):
        model.encode("the cat", precision="int8")
    model.encode(TEXTS, precision="int8")
    assert "come from only 6 vectors" in caplog.text


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
def test_pairs_are_compared_many_at_a_time(tiny_folder: Path, measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceTransformer(str(tiny_folder), similarity_fn_name=measure)
    monkeypatch.setattr("weft.compat.sentence_transformer.PAIRS", 4)
    vectors = model.encode(TEXTS)
    table = model.similarity(vectors, vectors[::-1])
    assert np.allclose(model.similarity_pairwise(vectors, vectors[::-1]), np.diag(table), atol=1e-5)
    assert model.similarity_pairwise(vectors[:0], vectors[:0]).shape == (0,)


def test_arguments_may_be_given_in_their_order(tiny_folder: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_folder))
    assert np.array_equal(model.encode_query(TEXTS, "query", None, 2), model.encode_query(TEXTS))
    ranker = CrossEncoder(str(write_cross(tmp_path / "bert", "bert")))
    assert np.array_equal(ranker.predict(PAIRS, 32, False), ranker.predict(PAIRS))
    ranked = ranker.rank(QUERIES[0], DOCUMENTS, 2, True, 16)
    assert ranked == ranker.rank(QUERIES[0], DOCUMENTS, convert_to_numpy=False, return_documents=True)[:2]
    with pytest.raises(InputError, match="top_k must be a whole number from 1 on: got -1"):
        ranker.rank(QUERIES[0], DOCUMENTS, -1)
