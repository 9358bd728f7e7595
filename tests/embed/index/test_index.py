"""An index finds what a plain list of vectors would, whatever was added, updated and deleted, and refuses strangers."""

import threading

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
    else:
        scores = wide @ q if metric == "dot" else -np.linalg.norm(wide - q, axis=1)
    return list(np.argsort(-scores, kind="stable")[:k])


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
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
    ],
)
def test_filters_choose_rows(where, right):
    index = filled()
    index.delete(["id12", "id2"])
    query = drawn(5, 1)[0]
    everything = [hit for hit in index.search(query, 300) if right(hit.metadata)]
    assert index.search(query, 300, where=where) == everything
    assert index.search(query, 3, where=where) == everything[:3]


@pytest.mark.parametrize("where", [{"n": {"like": 1}}, {"n": {}}, {"n": {"in": "abc"}}, 3])
def test_an_unknown_condition_is_an_error(where):
    with pytest.raises(InputError, match=r"\[where\]"):
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


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda i: i.add("id0", one), InputError, "use update"),
        (lambda i: i.add(["x", "x"], np.stack([one, one])), InputError, "twice"),
        (lambda i: i.add("x", one[:3]), FingerprintError, "vectors of 3 numbers"),
        (lambda i: i.search(one[:3]), FingerprintError, "vectors of 3 numbers"),
        (lambda i: i.add("x", one, fingerprint="other"), FingerprintError, "vectors of other"),
        (lambda i: i.search(one, fingerprint="other"), FingerprintError, "vectors of other"),
        (lambda i: i.add("x", one * 0), InputError, "norm of zero"),
        (lambda i: i.add("x", one * np.nan), InputError, "NaN"),
        (lambda i: i.add(["x", "y"], np.stack([one, one]), texts=["a"]), ShapeError, "texts"),
        (lambda i: i.add(["x"], np.stack([one, one])), ShapeError, "ids"),
        (lambda i: i.add("x", np.stack([one, one])), ShapeError, "one id"),
        (lambda i: i.add(1.5, one), InputError, "string or an integer"),
        (lambda i: i.add(True, one), InputError, "string or an integer"),
        (lambda i: i.add(2**63, one), InputError, "64 bits"),
        (lambda i: i.add("x", one, metadata={"a": object()}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata={"a": float("nan")}), InputError, "JSON"),
        (lambda i: i.add("x", one, metadata={1: 2}), InputError, "names as keys"),
        (lambda i: i.add("x", one, texts="\ud800"), InputError, "JSON"),
        (lambda i: i.get("nobody"), NotFoundError, "nobody"),
        (lambda i: i.search(one, 0), InputError, "k is 0"),
        (lambda i: i.search_texts("a"), InputError, "embedder"),
        (lambda i: weft.Index(0), InputError, "dimension"),
        (lambda i: weft.Index(4, metric="manhattan"), InputError, "metric"),
        (lambda i: weft.Index(4, storage="f64"), InputError, "storage"),
        (lambda i: weft.Index(4, metric="euclidean", codes="int8"), TierError, "int8 codes"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(call, error, words):
    index = filled(10, fingerprint="own")
    before = index.search(one, 10)
    with pytest.raises(error, match=words):
        call(index)
    assert index.search(one, 10) == before and len(index) == 10


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
        weft.Index(16, fingerprint="weft1:other", embedder=FakeEmbedder())


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
