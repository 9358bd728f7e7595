"""Through the graph a search finds nearly what an exact one finds, with exact scores; deletions and files hold."""

import numpy as np
import pytest

import weft
from weft.embed.index import files
from weft.errors import BackendError, FormatError

pytest.importorskip("usearch", reason="usearch is not installed: pip install weft[hnsw]")

ROWS = np.random.default_rng(1).standard_normal((3000, 32)).astype(np.float32)
QUERIES = np.random.default_rng(2).standard_normal((50, 32)).astype(np.float32)


def filled(**options):
    index = weft.Index(32, graph=True, **options)
    index.add(list(range(3000)), ROWS)
    return index


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_recall_is_high_and_scores_are_exact(metric):
    index = filled(metric=metric)
    found = 0
    for near, right in zip(index.search(QUERIES, 10), index.search(QUERIES, 10, exact=True)):
        scores = {hit.id: hit.score for hit in right}
        found += len({hit.id for hit in near} & scores.keys())
        assert all(hit.score == scores[hit.id] for hit in near if hit.id in scores)
    assert found >= 0.98 * 500


def test_what_is_deleted_is_not_found_and_what_is_added_is():
    index = filled()
    index.search(QUERIES[0], 1)
    gone = {hit.id for hit in index.search(QUERIES[0], 5)}
    index.delete(gone)
    assert not gone & {hit.id for hit in index.search(QUERIES[0], 20)}
    index.add("new", QUERIES[0])
    index.update(7, QUERIES[0])
    assert {hit.id for hit in index.search(QUERIES[0], 2)} == {"new", 7}
    assert index.search(QUERIES[0], 5, where=lambda metadata: False) == []


def test_the_graph_is_saved_and_read_only_when_asked_for(tmp_path):
    index = filled()
    near = index.search(QUERIES, 10)
    index.save(tmp_path)
    assert weft.Index.open(tmp_path, graph=True, load_graph=True).search(QUERIES, 10) == near
    assert weft.Index.open(tmp_path, graph=True)._graph is None
    path = files.read_header(tmp_path).path("graph")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FormatError, match="damaged"):
        weft.Index.open(tmp_path, load_graph=True)


def test_without_usearch_a_graph_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "usearch.index", None)
    with pytest.raises(BackendError, match=r"weft\[hnsw\]"):
        filled().search(QUERIES[0])
