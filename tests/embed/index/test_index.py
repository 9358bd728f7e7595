"""An index finds what a plain list of vectors would, whatever was added, updated and deleted, and refuses strangers."""

import functools
import threading
from dataclasses import replace

import numpy as np
import pytest
from lettered_embedder import FakeEmbedder

import weft
from weft.errors import FingerprintError, InputError, NotFoundError, ShapeError, TierError

DIM = 16


def drawn(seed, count, dim=DIM):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def filled(count=300, **options):
    index = weft.Index(DIM, **options)
    index.add(
        [f"id{i}" for i in range(count)], drawn(1, count), metadata=[{"n": i, "even": i % 2 == 0} for i in range(count)]
    )
    return index


def best(vectors, query, k, metric):
    wide, q = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "cosine":
        scores = wide @ q / (np.linalg.norm(wide, axis=1) * np.linalg.norm(q))
    elif metric == "manhattan":
        scores = -np.abs(wide - q).sum(axis=1)
    else:
        scores = wide @ q if metric == "dot" else -np.linalg.norm(wide - q, axis=1)
    return list(np.argsort(-scores, kind="stable")[:k])


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("storage", ["f32", "f16"])
def test_a_search_is_exact(metric, storage):
    index = filled(metric=metric, storage=storage)
    kept = drawn(1, 300).astype(np.float16 if storage == "f16" else np.float32)
    for query in drawn(2, 5):
        hits = index.search(query, 7)
        assert [hit.id for hit in hits] == [f"id{i}" for i in best(kept, query, 7, metric)]
        assert hits[0].metadata["n"] == int(hits[0].id[2:])
    together = index.search(drawn(2, 5), 7)
    assert together == [index.search(query, 7) for query in drawn(2, 5)]


@pytest.mark.parametrize("codes", ["int8", "int4", "binary"])
def test_codes_with_rescoring_give_true_scores(codes):
    plain, coded = filled(), filled(codes=codes)
    for query in drawn(3, 5):
        right = {hit.id: hit.score for hit in plain.search(query, 300)}
        found = coded.search(query, 5)
        assert all(abs(right[hit.id] - hit.score) < 1e-6 for hit in found)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
        if codes == "int8":
            assert [hit.id for hit in found] == [hit.id for hit in plain.search(query, 5)]


@pytest.mark.parametrize("codes", ["int8", "int4", "binary"])
def test_exact_and_filtered_searches_look_at_the_vectors_and_not_at_codes(codes):
    """Of rows in one direction, but for a little: binary codes of them are all the same."""
    rows = 1 + drawn(6, 3000) / 100
    index = weft.Index(DIM, codes=codes)
    index.add(list(range(3000)), rows, metadata=[{"n": i} for i in range(3000)])
    for query in 1 + drawn(7, 5) / 100:
        right = best(rows, query, 10, "cosine")
        assert [hit.id for hit in index.search(query, 10, exact=True)] == right
        assert [hit.id for hit in index.search(query, 10, where={"n": {"gte": 0}})] == right


def test_random_additions_updates_and_deletions_leave_what_a_dictionary_would():
    rng, index, model = np.random.default_rng(4), weft.Index(DIM, codes="int8"), {}
    for step in range(400):
        ids = [int(i) for i in rng.choice(200, 8, replace=False)]
        fresh = drawn(step + 10, 8)
        if step % 3 == 0:
            new = [i for i in ids if i not in model]
            index.add(new, fresh[: len(new)].reshape(-1, DIM), metadata=[{"step": step}] * len(new))
            model.update(zip(new, fresh))
        elif step % 3 == 1:
            index.update(ids, fresh, texts=[f"{step}"] * 8)
            model.update(zip(ids, fresh))
        else:
            assert index.delete(ids) == sum(model.pop(i, None) is not None for i in ids)
        assert len(index) == len(model)
        if step % 20 == 0 and model:
            names, wide = list(model), np.stack(list(model.values()))
            query = drawn(step, 1)[0]
            assert [hit.id for hit in index.search(query, 5)] == [names[i] for i in best(wide, query, 5, "cosine")]
    assert set(index.ids) == set(model)
    for id, vector in model.items():
        assert id in index and np.array_equal(index.vector(id), vector)


@pytest.mark.parametrize(
    "where, right",
    [
        ({"n": 7}, lambda m: m["n"] == 7),
        ({"even": True}, lambda m: m["even"]),
        ({"n": {"gte": 10, "lt": 20}}, lambda m: 10 <= m["n"] < 20),
        ({"n": {"in": [1, 2, 3]}, "even": False}, lambda m: m["n"] in (1, 3)),
        ({"n": {"nin": list(range(295))}}, lambda m: m["n"] >= 295),
        ({"n": {"ne": 5, "lte": 6}}, lambda m: m["n"] <= 6 and m["n"] != 5),
        (lambda metadata: metadata["n"] > 290, lambda m: m["n"] > 290),
        ({"absent": 1}, lambda m: False),
        ({"n": {"gt": "text"}}, lambda m: False),
        ({"n": np.int64(7)}, lambda m: m["n"] == 7),
        ({"n": {"in": np.array([1, 2])}}, lambda m: m["n"] in (1, 2)),
    ],
)
def test_filters_choose_rows(where, right):
    index = filled()
    index.delete(["id12", "id2"])
    query = drawn(5, 1)[0]
    everything = [hit for hit in index.search(query, 300) if right(hit.metadata)]
    assert index.search(query, 300, where=where) == everything
    assert index.search(query, 3, where=where) == everything[:3]


@pytest.mark.parametrize(
    "where, word",
    [
        ({"n": {"like": 1}}, "like"),
        ({"n": {}}, "empty"),
        ({"n": {"in": "abc"}}, "list"),
        (3, "got 3"),
        ({"$or": [{"n": 1}, {"n": 2}]}, r"'\$or', an operator of other libraries"),
        ({"n": 1, "$and": []}, r"\$and"),
        ({"n": np.array([1, 2])}, "'eq' takes one value"),
        ({"n": {"lt": np.array([1, 2])}}, "'lt' takes one value"),
    ],
)
def test_an_unknown_condition_is_an_error(where, word):
    with pytest.raises(InputError, match=rf"where .*{word}"):
        filled(3).search(drawn(1, 1)[0], where=where)


def test_one_row_or_many():
    index = weft.Index(2)
    index.add("a", [1.0, 0.0], metadata={"x": [1, {"y": None}]}, texts="first")
    index.add([1, "1"], [[0.0, 1.0], [1.0, 1.0]])
    assert index.search([1.0, 0.1], 1)[0] == weft.Hit(
        "a", pytest.approx(0.995, abs=1e-3), {"x": [1, {"y": None}]}, "first"
    )
    assert index.get(1).id == 1 and index.get("1").id == "1" and index.ids == ["a", 1, "1"]
    assert index.search([1.0, 0.0], 10)[2].id == 1 and len(index.search([1.0, 0.0], 10)) == 3
    assert weft.Index(2).search([1.0, 0.0]) == []
    index.get("a").metadata["x"] = 0
    assert index.get("a").metadata == {"x": [1, {"y": None}]}


one = np.ones(DIM, np.float32)


def nested(depth):
    return {"a": functools.reduce(lambda inner, _: [inner], range(depth), 0)}


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda i: i.add("id0", one), InputError, "use update"),
        (lambda i: i.add(["x", "x"], np.stack([one, one])), InputError, "repeats an id"),
        (lambda i: i.add("x", one[:3]), FingerprintError, "vectors have 3 numbers"),
        (lambda i: i.search(one[:3]), FingerprintError, "vectors have 3 numbers"),
        (lambda i: i.add("x", one, fingerprint="other"), FingerprintError, "fingerprint other, the index has own"),
        (lambda i: i.search(one, fingerprint="other"), FingerprintError, "fingerprint other, the index has own"),
        (lambda i: i.add("x", one * 0), InputError, "is all zeros"),
        (lambda i: i.add("x", one * np.nan), InputError, "NaN"),
        (lambda i: i.add(["x", "y"], np.stack([one, one]), texts=["a"]), ShapeError, "texts"),
        (lambda i: i.add(["x"], np.stack([one, one])), ShapeError, "ids"),
        (lambda i: i.add("x", np.stack([one, one])), ShapeError, "ids must be a list of 2"),
        (lambda i: i.add(1.5, one), InputError, "string or an integer"),
        (lambda i: i.add(True, one), InputError, "string or an integer"),
        (lambda i: i.add(2**63, one), InputError, "64 bits"),
        (lambda i: i.add("x", one, metadata={"a": object()}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata={"a": float("nan")}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata={1: 2}), InputError, "strings as keys"),
        (lambda i: i.add("x", one, metadata={"a": ["\ud83d"]}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata={"\ud83d": 1}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata=nested(100_000)), InputError, "JSON"),
        (lambda i: i.add(None, np.stack([one, one])), ShapeError, "ids must be a list of 2"),
        (lambda i: i.add([1, 2], np.stack([one, one]), texts=5), ShapeError, "texts"),
        (lambda i: i.delete(None), InputError, "string or an integer"),
        (lambda i: i.delete(b"ab"), InputError, "string or an integer"),
        (lambda i: i.delete(1.5), InputError, "string or an integer"),
        (lambda i: i.add("x", one, texts="\ud800"), InputError, "JSON"),
        (lambda i: i.get("nobody"), NotFoundError, "nobody"),
        (lambda i: i.search(one, 0), InputError, "k must be .*got 0"),
        (lambda i: i.search(one, 2.7), InputError, "k must be .*got 2.7"),
        (lambda i: i.search(one, "3"), InputError, "k must be .*got '3'"),
        (lambda i: i.search_texts("a"), InputError, "embedder"),
        (lambda i: weft.Index(0), InputError, "dimension"),
        (lambda i: weft.Index("64"), InputError, "dimension must be .*got '64'"),
        (lambda i: weft.Index(64, threads="2"), InputError, "threads must be .*got '2'"),
        (lambda i: weft.Index(64, threads=100_000), InputError, "threads must be .*got 100000"),
        (lambda i: weft.Index(4, metric="chebyshev"), InputError, "metric"),
        (lambda i: weft.Index(4, storage="f64"), InputError, "storage"),
        (
            lambda i: weft.Index(4, metric="euclidean", codes="int8"),
            TierError,
            "codes cannot be used with metric .*int8",
        ),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(call, error, words):
    index = filled(10, fingerprint="own")
    before = index.search(one, 10)
    with pytest.raises(error, match=words):
        call(index)
    assert index.search(one, 10) == before and len(index) == 10


@pytest.mark.parametrize("codes", [None, "int8", "binary"])
@pytest.mark.parametrize(
    "metric, scale",
    [("cosine", 1e-20), ("cosine", 2e-16), ("cosine", 1e18), ("cosine", 1e30), ("cosine", 3e38), ("dot", 1e30),
     ("euclidean", 1e19), ("euclidean", 1e37), ("manhattan", 1e37)],
)  # fmt: skip
def test_a_vector_that_would_end_every_search_is_refused_by_its_id(metric, scale, codes):
    index = filled(10, metric=metric, codes=codes if metric == "cosine" else None)
    if codes == "int8":  # whose scales end sooner
        scale = max(scale, 1e-12) if scale < 1 else scale
    for call in (index.add, index.update):
        with pytest.raises(InputError, match="the vector of id 'bad' has"):
            call(["good", "bad"], np.stack([one, one * np.float32(scale)]))
    assert len(index) == 10 and len(index.search(one)) == 10


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_what_is_taken_can_be_searched(metric):
    for scale in (1e-44, 1e-30, 1e-19, 1e-15, 1e-8, 1e8, 1e15, 1e17, 1e18, 1e19, 1e30):
        index = filled(10, metric=metric)
        try:
            index.add("x", drawn(2, 1)[0] * np.float32(scale))
        except InputError:
            assert metric == "cosine" or scale > 1e10
        assert len(index.search(one, 20)) == len(index)
    with pytest.raises(InputError, match="the vector of id 'x' holds NaN, infinity or a number too large for float16"):
        filled(10, metric=metric, storage="f16").add("x", one * np.float32(1e6))


def test_an_index_has_its_models_measure_or_none():
    embedder = FakeEmbedder()
    embedder.info["similarity"] = "manhattan"
    index = weft.Index.from_embedder(embedder)
    index.add_texts(["a", "b"], ["a cat", "a dog"])
    distance = np.abs(np.diff(embedder.encode_document(["a cat", "a dog"]), axis=0)).sum()
    assert index.metric == "manhattan" and index.search_texts("a cat", 2)[1].score == pytest.approx(distance, 1e-5)
    with pytest.raises(TierError, match="manhattan"):
        weft.Index.from_embedder(embedder, codes="int8")
    embedder.info["similarity"] = "chebyshev"
    with pytest.raises(InputError, match="got 'chebyshev'; give metric="):
        weft.Index.from_embedder(embedder)
    assert weft.Index.from_embedder(embedder, metric="dot").metric == "dot"


class Counting(FakeEmbedder):
    calls = 0

    def embed(self, texts, **options):
        self.calls += 1
        return super().embed(texts, **options)


@pytest.mark.parametrize("method", ["add_texts", "update_texts"])
@pytest.mark.parametrize(
    "ids, texts, options, word",
    [
        (["b", "c"], "hi", {}, "texts must be a list of strings, not one string"),
        (["b", "c"], {"the cat", "one two"}, {}, "texts must be a list of strings, not set"),
        (["b", "c"], ["the cat", None], {}, "text 1 must be a string: got None"),
        ({"b", "c"}, ["the cat", "one two"], {}, "ids must be a list, since a set has no order"),
        (["b", "c"], ["the cat"], {}, "ids must be a list of 1, one for each of the texts"),
        (["b", "b"], ["the cat", "one two"], {}, "repeats an id"),
        (["b", 1.5], ["the cat", "one two"], {}, "string or an integer"),
        (["b", "c"], ["the cat", "one two"], {"metadata": [{"a": {1}}, None]}, "JSON"),
        (["b", "c"], ["the cat", "one two"], {"prompt_name": "query"}, "prompt_name cannot be set"),
    ],
)
def test_what_is_wrong_with_texts_is_said_before_they_are_embedded(method, ids, texts, options, word):
    index = weft.Index.from_embedder(Counting())
    with pytest.raises(InputError, match=word):
        getattr(index, method)(ids, texts, **options)
    assert index.embedder.calls == 0 and len(index) == 0


def test_ids_that_are_there_and_a_mapped_index_are_told_before_texts_are_embedded(tmp_path):
    index = weft.Index.from_embedder(Counting())
    index.add_texts(["a"], ["a cat"])
    with pytest.raises(InputError, match="'a'; use update"):
        index.add_texts(["b", "a"], ["a dog", "a fish"])
    index.save(tmp_path)
    mapped = weft.Index.open(tmp_path, mapped=True, embedder=Counting())
    for call in (mapped.add_texts, mapped.update_texts):
        with pytest.raises(InputError, match="read-only"):
            call(["b"], ["a dog"])
    assert index.embedder.calls == 1 and mapped.embedder.calls == 0
    index.add_texts(iter(["b", "c"]), (text for text in ["a dog", "a fish"]))
    assert index.search_texts(iter(["a fish"]), 1)[0][0].id == "c"


def test_what_has_no_order_is_refused_and_what_has_one_is_taken():
    index = weft.Index.from_embedder(FakeEmbedder())
    rows = drawn(1, 2)
    for call in (
        lambda: index.add({"a", "b"}, rows),
        lambda: index.add(["a", "b"], rows, texts={"x", "y"}),
        lambda: index.update(frozenset("ab"), rows),
        lambda: index.search_texts({"a", "b"}),
        lambda: index.search_texts("a", prompt_name="document"),
    ):
        with pytest.raises(InputError):
            call()
    index.add({"a": 1, "b": 2}.keys(), rows)
    assert index.ids == ["a", "b"] and index.delete({"a", "b"}) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: weft.Index.from_embedder("minilm"),
        lambda: weft.Index(3, embedder="minilm"),
        lambda: weft.Index.open("nowhere", embedder="minilm"),
    ],
)
def test_a_name_is_no_embedder(call):
    with pytest.raises(InputError, match=r"embedder must be .*got 'minilm'; give weft.Embedder\('minilm'\)"):
        call()


def test_texts_go_through_the_embedder():
    index = weft.Index.from_embedder(FakeEmbedder())
    index.add_texts([1, 2, 3], ["a cat", "a dog", "a fish"], metadata=[{"legs": 4}, {"legs": 4}, {"legs": 0}])
    assert index.search_texts("a dog", 1)[0].text == "a dog"
    assert [hits[0].id for hits in index.search_texts(["a fish", "a cat"], 1)] == [3, 1]
    assert index.search_texts("a dog", 3, where={"legs": 0})[0].id == 3
    assert index.fingerprint == FakeEmbedder().info["fingerprint"]
    with pytest.raises(FingerprintError):
        weft.Index(8, embedder=FakeEmbedder())
    with pytest.raises(FingerprintError):
        weft.Index(16, fingerprint="weft2:other", embedder=FakeEmbedder())


def test_numbers_of_numpy_are_numbers():
    index = weft.Index(np.int64(DIM), threads=np.int32(1))
    index.add(np.int64(3), one)
    index.add(np.arange(2), drawn(1, 2))
    assert index.search(one, np.int64(2))[0].id == 3 and index.delete(np.int64(3)) == 1
    assert index.delete(np.arange(2)) == 2 and len(index) == 0


def test_an_index_takes_the_first_fingerprint_it_is_given_and_no_other_after():
    index = weft.Index(DIM)
    index.add("plain", one)
    with pytest.raises(InputError):
        index.add("x", one * np.nan, fingerprint="A")
    assert index.fingerprint == ""
    index.add("a", one, fingerprint="A")
    assert index.fingerprint == "A"
    for change in (index.add, index.update):
        with pytest.raises(FingerprintError, match="fingerprint B"):
            change("b", one, fingerprint="B")
    assert index.ids == ["plain", "a"]
    index.add("unknown", one)  # whose numbers only the caller knows
    assert weft.Index(16, embedder=FakeEmbedder()).fingerprint == FakeEmbedder().info["fingerprint"]


def test_what_embed_returns_is_added_and_searched_with_its_fingerprint():
    embedder, index = FakeEmbedder(), weft.Index(DIM)
    index.add([1, 2], embedder.embed(["a cat", "a dog"]))
    index.add("one", embedder.embed("a fish"), texts="a fish", metadata={"legs": 0})
    assert index.fingerprint == embedder.info["fingerprint"]
    assert [hits[0].id for hits in index.search(embedder.embed(["a dog", "a fish"]), 1)] == [2, "one"]
    other = FakeEmbedder(fingerprint="weft2:other").embed("a bird")
    for call in (lambda: index.add(3, other), lambda: index.update(1, other), lambda: index.search(other)):
        with pytest.raises(FingerprintError, match="fingerprint weft2:other"):
            call()
    with pytest.raises(FingerprintError):
        index.add(3, embedder.embed("a bird"), fingerprint="weft2:other")
    with pytest.raises(ShapeError, match="ids must be a list of"):
        index.add(3, embedder.embed(["a bird", "a cat"]))
    assert len(index) == 3


def test_bytes_of_an_embedder_are_added_at_their_true_length():
    made = FakeEmbedder().embed(["a cat", "a dog"])
    scales = 127 / np.abs(made.vectors).max(axis=1)
    coded = replace(made, vectors=np.round(made.vectors * scales[:, None]).astype(np.int8), scales=scales)
    index = weft.Index(DIM, metric="dot")
    index.add([1, 2], coded)
    assert np.allclose(index.vector(2), made.vectors[1], atol=0.02)


def test_an_adapter_makes_other_vectors():
    index = weft.Index.from_embedder(FakeEmbedder())
    index.add_texts(["a"], ["a cat"])
    index.update_texts(["a", "b"], ["a dog", "a fish"])
    assert index.get("a").text == "a dog" and index.search_texts("a dog", 1)[0].id == "a"
    for call in (lambda: index.add_texts(["c"], ["a bird"], adapter="x"), lambda: index.search_texts("a", adapter="x")):
        with pytest.raises(FingerprintError):
            call()
    assert index.ids == ["a", "b"]


def test_threads_may_add_and_search_at_once():
    index, errors = filled(50), []

    def work(number):
        try:
            for i in range(30):
                index.update(f"t{number}-{i % 5}", drawn(i, 1)[0])
                assert index.search(one, 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(index) == 50 + 4 * 5
