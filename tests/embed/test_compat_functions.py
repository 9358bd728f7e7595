"""The functions of sentence-transformers' util, and how encode treats short vectors and special tokens: as there."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from tiny_rerank import write_cross
from tiny_st import TEXTS, write_st_folder

import weft
from weft.compat import CrossEncoder, SentenceTransformer, SimilarityFunction, util
from weft.errors import FingerprintError, InputError, UnsupportedError

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "compat.npz")
A, B, MANY, CROWD = (GOLDEN[name] for name in ("a", "b", "many", "crowd"))
SPECIAL = ["[CLS] hello [SEP]", "the cat [SEP] sat", "[MASK]", "a [UNK] b [PAD]", "[sep] [Sep]"]  # of make_compat.py
SPECIAL_PAIRS = [("the cat [SEP] sat", "a [MASK]"), ("[CLS] one", "one two three")]
ALL = ("cos_sim", "dot_score", "euclidean_sim", "manhattan_sim")
PAIRWISE = (*(f"pairwise_{name}" for name in ALL), "pairwise_angle_sim")


def listed(name: str) -> list:
    return json.loads(str(GOLDEN[name]))


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_folder))


@pytest.mark.parametrize("name", ALL)
def test_all_are_compared_with_all_as_there(name: str) -> None:
    function = getattr(util, name)
    for a, b in ((A, B), (A.tolist(), B.tolist()), (A.astype(np.float64), list(B))):
        found = function(a, b)
        assert found.dtype == np.float32 and np.allclose(found, GOLDEN[name], atol=2e-6)
    assert np.allclose(function(A[0], B), GOLDEN[name][:1], atol=2e-6)
    assert function(A[:0], B).shape == (0, 5)


@pytest.mark.parametrize("name", PAIRWISE)
def test_pairs_are_compared_as_there(name: str) -> None:
    assert np.allclose(getattr(util, name)(A[:5], B), GOLDEN[name], atol=2e-6)
    with pytest.raises(InputError, match="do not form pairs"):
        getattr(util, name)(A, B)


def test_zeros_have_a_cosine_of_zero_as_there() -> None:
    assert util.cos_sim(np.zeros((1, 3)), np.ones((2, 3))).tolist() == [[0, 0]]
    assert util.pairwise_cos_sim(np.zeros((1, 3)), np.ones((1, 3))).tolist() == [0]


def test_measures_have_names() -> None:
    assert SimilarityFunction.possible_values() == ["cosine", "dot", "euclidean", "manhattan"]
    assert SimilarityFunction.to_similarity_fn("dot") is util.dot_score
    assert SimilarityFunction.to_similarity_pairwise_fn(SimilarityFunction.EUCLIDEAN) is util.pairwise_euclidean_sim
    with pytest.raises(InputError, match="must be one of cosine, dot, euclidean, manhattan: got 'hamming'"):
        SimilarityFunction.to_similarity_fn("hamming")


def test_vectors_are_normalised_and_shortened_as_there() -> None:
    assert np.allclose(util.normalize_embeddings(A), GOLDEN["normalised"], atol=1e-6)
    assert np.array_equal(util.truncate_embeddings(A, 4), A[:, :4]) and util.truncate_embeddings(A, None) is not None
    assert util.truncate_embeddings(A[0], 100).shape == (13,)


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_codes_are_those_of_sentence_transformers(precision: str) -> None:
    """Every code: the values are rounded down before 128 is subtracted."""
    found, wanted = util.quantize_embeddings(MANY, precision), GOLDEN[f"many/{precision}"]
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_ranges_of_codes_may_be_given() -> None:
    assert np.array_equal(util.quantize_embeddings(MANY, "int8", GOLDEN["ranges"]), GOLDEN["int8 by ranges"])
    by_calibration = util.quantize_embeddings(MANY, "uint8", calibration_embeddings=MANY[:40])
    assert np.array_equal(by_calibration, GOLDEN["uint8 by calibration"])
    assert util.quantize_embeddings(MANY[:0], "int8").shape == (0, 16)
    with pytest.raises(InputError, match=r"ranges must be of shape \[2, 16\].*: got \[2, 3\]"):
        util.quantize_embeddings(MANY, "int8", np.zeros((2, 3)))
    with pytest.raises(InputError, match="not codes of int8"):
        util.quantize_embeddings(GOLDEN["many/int8"], "uint8")


def same_hits(found: list, wanted: list) -> bool:
    ids = [[hit["corpus_id"] for hit in hits] for hits in found] == [[hit["corpus_id"] for hit in h] for h in wanted]
    scores = [[hit["score"] for hit in hits] for hits in found], [[hit["score"] for hit in hits] for hits in wanted]
    return ids and np.allclose(*scores, atol=2e-6)


def test_a_search_finds_what_it_finds_there() -> None:
    corpus = MANY[:, :13]
    assert same_hits(util.semantic_search(A, corpus, top_k=4), listed("search"))
    found = util.semantic_search(A, corpus, 2, 40, top_k=3, score_function=util.dot_score)
    assert same_hits(found, listed("search by dot in chunks"))
    assert same_hits(util.semantic_search(A[0], corpus, top_k=4), listed("search")[:1])
    assert util.semantic_search(A[:1], corpus[:2], top_k=5)[0][-1].keys() == {"corpus_id", "score"}
    for wrong in ({"top_k": 0}, {"corpus_chunk_size": 0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be a whole number from 1 on"):
            util.semantic_search(A, corpus, **wrong)


def same_pairs(found: list, wanted: list) -> bool:
    assert sorted(pair[1:] for pair in found) == sorted(pair[1:] for pair in wanted)
    scores = [dict(((i, j), score) for score, i, j in pairs) for pairs in (found, wanted)]
    return all(abs(scores[0][pair] - scores[1][pair]) < 2e-6 for pair in scores[0]) and found[0][1:] == wanted[0][1:]


def test_paraphrases_are_mined_as_there(model: SentenceTransformer) -> None:
    assert same_pairs(util.paraphrase_mining_embeddings(CROWD, top_k=3), listed("pairs"))
    few = util.paraphrase_mining_embeddings(CROWD, 16, 30, max_pairs=50, top_k=3)
    assert same_pairs(few, listed("few pairs in chunks"))
    assert [pair[0] for pair in few] == sorted((pair[0] for pair in few), reverse=True)
    assert same_pairs(util.paraphrase_mining(model, TEXTS), listed("paraphrases"))
    assert util.paraphrase_mining(model, []) == []


def test_communities_are_those_found_there() -> None:
    found = util.community_detection(CROWD, threshold=0.9, min_community_size=5, batch_size=32)
    assert found == listed("communities") and len(found) >= 4
    assert util.community_detection(CROWD, threshold=0.85) == listed("large communities")
    assert util.community_detection([]) == []


def test_what_trains_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"mine_hard_negatives\(\) is not supported"):
        util.mine_hard_negatives()


def test_special_tokens_in_texts_are_read_as_there(model: SentenceTransformer, tiny_folder: Path) -> None:
    assert np.abs(model.encode(SPECIAL) - GOLDEN["special"]).max() <= 1e-5
    assert np.abs(model.encode(SPECIAL, prompt="query: ") - GOLDEN["special after a prompt"]).max() <= 1e-5
    plain = SentenceTransformer(str(tiny_folder), parse_special=False)
    assert np.abs(plain.encode(SPECIAL[0]) - GOLDEN["special"][0]).max() > 1e-3
    assert model.tokenize(SPECIAL[:1])["input_ids"].shape[1] < plain.tokenize(SPECIAL[:1])["input_ids"].shape[1]


def test_special_tokens_in_pairs_are_read_as_there(tmp_path: Path) -> None:
    folder = str(write_cross(tmp_path / "cross", "bert"))
    model, plain = CrossEncoder(folder), weft.Reranker(folder)
    assert np.allclose(model.predict(SPECIAL_PAIRS), GOLDEN["special pairs"], rtol=2e-4, atol=1e-6)
    assert not np.allclose(plain.scores(SPECIAL_PAIRS), GOLDEN["special pairs"], rtol=2e-3, atol=1e-5)
    plain.parse_special = True
    assert np.array_equal(plain.scores(SPECIAL_PAIRS), model.predict(SPECIAL_PAIRS))
    shorter = CrossEncoder(folder, max_length=8)
    assert shorter.tokenizer.mask_id in shorter._pairs(SPECIAL_PAIRS[:1]).tokens[0].ids


def test_an_embedder_reads_special_tokens_if_it_is_told_to(tiny_embedder: weft.Embedder, tiny_folder: Path) -> None:
    parsing = weft.Embedder(str(tiny_folder), parse_special=True, truncate="chunk")
    assert np.abs(parsing.encode(SPECIAL) - GOLDEN["special"]).max() <= 1e-5
    assert np.array_equal(parsing.encode(TEXTS), tiny_embedder.encode(TEXTS))
    assert parsing.fingerprint != tiny_embedder.fingerprint
    sep, long = parsing.tokenizer.sep_id, "the cat [SEP] " * 60
    ids = parsing.token_ids([long], truncate="head").ids[0]
    assert (ids[1:-1] == sep).sum() > 10 and len(ids) == parsing.max_tokens
    assert parsing.embed([long]).windows[0] < tiny_embedder.embed([long], truncate="chunk").windows[0]
    with pytest.raises(InputError, match="parse_special must be True or False: got 1"):
        weft.Embedder(str(tiny_folder), parse_special=1)  # type: ignore[arg-type]


def test_short_vectors_are_not_normalised_again_as_there(model: SentenceTransformer, tiny_folder: Path) -> None:
    short = GOLDEN["short"]
    assert np.abs(model.encode(TEXTS, truncate_dim=10) - short).max() <= 1e-5
    assert np.linalg.norm(short, axis=1).max() < 0.99
    unit = model.encode(TEXTS, truncate_dim=10, normalize_embeddings=True)
    assert np.abs(unit - GOLDEN["short and normalised"]).max() <= 1e-5
    assert np.abs(model.encode(TEXTS, truncate_dim=1000) - GOLDEN["longer than it is"]).max() <= 1e-5
    made = SentenceTransformer(str(tiny_folder), truncate_dim=10)
    assert np.abs(made.encode(TEXTS) - short).max() <= 1e-5
    assert made.get_sentence_embedding_dimension() == made.truncate_dim == 10
    with made.truncate_embeddings(4):
        assert made.encode("a").shape == (4,)
    assert made.encode("a").shape == (10,)
    for wrong in (0, -1, "10", True):
        with pytest.raises(InputError, match="truncate_dim must be a whole number from 1 on"):
            model.encode("a", truncate_dim=wrong)


def test_a_call_with_no_texts_gives_what_it_gives_there(model: SentenceTransformer) -> None:
    for name, options in (("nothing", {}), ("nothing in int8", {"precision": "int8"})):
        found = model.encode([], **options)
        assert found.shape == GOLDEN[name].shape and found.dtype == GOLDEN[name].dtype
    assert model.encode([], convert_to_numpy=False) == [] == model.encode([], output_value="token_embeddings")


def test_what_differs_is_refused_by_name(model: SentenceTransformer) -> None:
    for size in (0, -1, None, "8", True):
        with pytest.raises(InputError, match="batch_size must be a whole number from 1 on"):
            model.encode("a", batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"sentence 0 must be a string, not list: pairs.*CrossEncoder"):
        model.encode([["a", "b"], ["c", "d"]])  # type: ignore[list-item]
    with pytest.raises(UnsupportedError, match=r"output_value must be .*: got None"):
        model.encode("a", output_value=None)
    with pytest.raises(UnsupportedError, match=r"len\(model\) is not supported"):
        len(model)
    with pytest.raises(UnsupportedError, match=r"model\[…\] is not supported.*max_seq_length"):
        model[0]
    with pytest.raises(UnsupportedError, match="cannot be iterated"):
        list(model)
    assert bool(model)


def test_an_embedder_survives_a_pickle(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    first = weft.Embedder(tiny_folder.name, truncate="tail", prompts={"query": "q: "}, compute="bf16", cache="memory")
    first.max_tokens = 20
    monkeypatch.chdir(tmp_path)  # the pickle has the whole path
    again = pickle.loads(pickle.dumps(first))
    assert np.array_equal(again.encode_query(["the cat " * 40]), first.encode_query(["the cat " * 40]))
    assert again.fingerprint == first.fingerprint and again.max_tokens == 20 and again.cache is not None
    st = SentenceTransformer(str(tiny_folder), truncate_dim=10)
    assert np.array_equal(pickle.loads(pickle.dumps(st)).encode(TEXTS), st.encode(TEXTS))


def test_a_shortened_embedder_keeps_its_length(wide_folder: Path) -> None:
    short = weft.Embedder(str(wide_folder)).at(32)
    again = pickle.loads(pickle.dumps(short))
    assert again.dimension == 32 and np.array_equal(again.encode(TEXTS), short.encode(TEXTS))
    assert copy.deepcopy(short).dimension == copy.copy(short).dimension == 32


def test_a_pickle_is_refused_where_it_would_be_another_embedder(tmp_path: Path, tiny_folder: Path) -> None:
    folder = write_st_folder(tmp_path / "model")
    kept = pickle.dumps(weft.Embedder(str(folder)))
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**config, "prompts": {"query": "other "}}))
    with pytest.raises(FingerprintError, match="are not those of the embedder that was pickled"):
        pickle.loads(kept)
    from weft.embed.cache import MemoryCache

    with pytest.raises(UnsupportedError, match=r"cannot be pickled, since its cache is an object.*by name"):
        pickle.dumps(weft.Embedder(str(tiny_folder), cache=MemoryCache()))


def test_a_remote_embedder_says_why_it_has_no_pickle() -> None:
    remote = weft.RemoteEmbedder("m", "http://127.0.0.1:9/v1", "secret")
    with pytest.raises(UnsupportedError, match="cannot be pickled, since it holds a server's key"):
        pickle.dumps(remote)
    assert copy.copy(remote).model == "m"
