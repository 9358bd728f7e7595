"""Through the graph a search finds nearly what an exact one finds, with exact scores; deletions and files hold."""

import json
import os
import signal
import threading
import time

import numpy as np
import pytest

import weft
from weft.embed.index import files, graph
from weft.embed.index import index as index_module
from weft.errors import BackendError, FormatError, InputError

pytest.importorskip("usearch", reason="usearch is not installed: pip install weft-engine[hnsw]")

ROWS = np.random.default_rng(1).standard_normal((1500, 32)).astype(np.float32)
QUERIES = np.random.default_rng(2).standard_normal((50, 32)).astype(np.float32)


def filled(scale=1.0, built=True, **options):
    index = weft.Index(32, **options)
    index.add(list(range(1500)), ROWS * np.float32(scale))
    if built:
        index.build_graph()
    return index


def recall(index, queries=QUERIES):
    found = 0
    for near, right in zip(index.search(queries, 10), index.search(queries, 10, exact=True)):
        scores = {hit.id: hit.score for hit in right}
        found += len({hit.id for hit in near} & scores.keys())
        assert all(hit.score == scores[hit.id] for hit in near if hit.id in scores)
    return found / (10 * len(queries))


# Beyond float16, which ends at 65,504 and at 6e-8, and near both ends of float32, whose squares have no room.
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-8, 1e15, 1e-15])
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_recall_is_high_and_scores_are_exact(metric, scale):
    assert recall(filled(scale, metric=metric), QUERIES * np.float32(scale)) >= 0.98


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_a_few_rows_of_another_size_take_nothing_from_the_others(metric):
    index = filled(metric=metric)
    index.add(["small", "nothing"], np.stack([ROWS[0] * np.float32(1e-7), ROWS[0] * 0]))
    index.add("large", ROWS[0] * np.float32(1e9))
    assert index.search(ROWS[0] * np.float32(1e9), 1)[0].id == "large"
    if metric == "euclidean":  # by dot the large one is among the best of half of the queries, as it should be
        assert recall(index) >= 0.98


def test_a_query_that_is_no_vector_is_an_error():
    index = filled()
    for bad in (np.nan, np.inf, 0.0):
        with pytest.raises(InputError):
            index.search(QUERIES[0] * np.float32(bad))


def test_a_graph_is_used_where_it_is_there_and_a_search_never_makes_one(tmp_path, monkeypatch):
    index = filled(built=False)
    index.search(QUERIES)
    assert not index.uses_graph and not index.info["graph"]
    index.build_graph()
    assert index.uses_graph and index.info["graph"]
    near = index.search(QUERIES, 10)
    index.save(tmp_path)
    loaded = weft.Index.open(tmp_path, load_graph=True)
    assert loaded.uses_graph and loaded.search(QUERIES, 10) == near
    monkeypatch.setattr(index_module, "Graph", None)
    for mapped in (False, True):
        opened = weft.Index.open(tmp_path, mapped=mapped)
        assert not opened.uses_graph and opened.search(QUERIES, 10) == index.search(QUERIES, 10, exact=True)


def test_saving_many_rows_makes_a_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "GRAPH_FROM", 1500)
    index, told = filled(built=False), []
    index.save(tmp_path / "none", graph=False)
    assert not weft.Index.open(tmp_path / "none", load_graph=True).uses_graph
    index.save(tmp_path / "many", on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (1500, 1500) and weft.Index.open(tmp_path / "many", load_graph=True).uses_graph
    few = filled(built=False)
    few.delete(0)
    few.save(tmp_path / "few")
    assert not few.uses_graph
    few.save(tmp_path / "few", graph=True)
    assert few.uses_graph and weft.Index.open(tmp_path / "few", load_graph=True).uses_graph
    other = filled(built=False)
    monkeypatch.setattr(index_module, "has_usearch", lambda: False)
    other.save(tmp_path / "without")
    assert not other.uses_graph


def test_what_is_deleted_is_not_found_and_what_is_added_is():
    index = filled()
    gone = {hit.id for hit in index.search(QUERIES[0], 5)}
    index.delete(gone)
    assert not gone & {hit.id for hit in index.search(QUERIES[0], 20)}
    index.add("new", QUERIES[0])
    index.update(7, QUERIES[0])
    assert {hit.id for hit in index.search(QUERIES[0], 2)} == {"new", 7}
    assert index.search(QUERIES[0], 5, where=lambda metadata: False) == []


def test_the_graph_outlives_deletions_in_memory_and_in_a_folder(tmp_path):
    index = filled(metric="euclidean", scale=1e6)
    queries = QUERIES * np.float32(1e6)
    index.delete(range(0, 1500, 7))
    index.update([1, 2], queries[:2])
    for again in range(2):
        index.save(tmp_path)
        opened = weft.Index.open(tmp_path, load_graph=True)
        for kept in (index, opened):
            assert kept.uses_graph and len(kept._graph) == len(kept) and recall(kept, queries) >= 0.98
            assert kept.search(queries[0], 1)[0].id == 1
        index = opened
        index.add(f"more {again}", ROWS[again] * np.float32(1e6))
    index.delete(range(1400))  # most of them, so that the rows are numbered anew
    assert index.uses_graph and index._rows.dead == 0 and recall(index, queries) >= 0.98
    index.delete(index.ids)
    assert index.search(queries[0]) == []
    index.add("alone", queries[0])
    assert [hit.id for hit in index.search(queries[0])] == ["alone"]


def test_a_graph_may_be_begun_empty():
    index = weft.Index(32, metric="dot")
    index.build_graph()
    index.add(list(range(1000)), ROWS[:1000] * np.float32(1e6))
    index.build_graph()
    assert recall(index) >= 0.98 and weft.Index(32).search(QUERIES[0]) == []


def test_the_graph_is_read_only_when_asked_for_and_its_damage_is_found(tmp_path):
    filled().save(tmp_path)
    path = files.read_header(tmp_path).path("graph")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert weft.Index.open(tmp_path).search(QUERIES[0])
    for options in ({"load_graph": True}, {"verify": True}, {"verify": True, "mapped": True}):
        with pytest.raises(FormatError, match="damaged"):
            weft.Index.open(tmp_path, **options)


@pytest.fixture
def no_building(monkeypatch):
    monkeypatch.setattr(weft.Index, "build_graph", lambda *a: pytest.fail("a graph was built"))


def test_a_graph_that_was_not_loaded_is_carried_on(tmp_path, no_building):
    index = filled(built=False)
    index._graph = graph.Graph(32, "cosine")
    index._graph.add(np.arange(1500), ROWS)
    index.save(tmp_path / "a")
    near = index.search(QUERIES, 10)
    opened = weft.Index.open(tmp_path / "a")
    opened.save(tmp_path / "a")
    assert not opened.uses_graph and weft.Index.open(tmp_path / "a", load_graph=True).search(QUERIES, 10) == near
    opened.delete(range(0, 1500, 7))
    opened.update([1, 2], QUERIES[:2])
    opened.add("first", QUERIES[2])
    opened.delete(range(1, 1300, 3))  # so many that the rows are numbered anew at once, and again by the save
    opened._compact()
    opened.delete(range(2, 1300, 3))
    opened.add("last", QUERIES[3])
    for folder in ("a", "b"):
        opened.save(tmp_path / folder)
        again = weft.Index.open(tmp_path / folder, load_graph=True)
        assert again.uses_graph and len(again._graph) == len(again) == len(opened) and recall(again) >= 0.98
        assert [again.search(QUERIES[i], 1)[0].id for i in (2, 3)] == ["first", "last"]
    assert not opened.uses_graph and opened.search(QUERIES, 10) == opened.search(QUERIES, 10, exact=True)


def test_a_graph_is_left_out_only_where_somebody_says_so(tmp_path, caplog, monkeypatch):
    filled().save(tmp_path)
    opened = weft.Index.open(tmp_path)
    opened.add("new", QUERIES[0])
    with monkeypatch.context() as patched:
        patched.setitem(__import__("sys").modules, "usearch.index", None)
        with pytest.raises(BackendError, match=r"weft-engine\[hnsw\].*save\(graph=False\)"):
            opened.save(tmp_path)
    assert "graph" in files.read_header(tmp_path).files and not caplog.records
    opened.save(tmp_path, graph=False)
    assert "is left out of this save" in caplog.text
    assert "graph" not in files.read_header(tmp_path).files and "new" in weft.Index.open(tmp_path)
    caplog.clear()
    opened.save(tmp_path)
    assert not caplog.records and "graph" not in files.read_header(tmp_path).files


def test_a_graph_that_another_save_removes_while_it_is_read_is_not_carried_on(tmp_path, monkeypatch):
    filled().save(tmp_path)
    index, load = weft.Index.open(tmp_path), graph.Graph.load

    def late(path, *arguments, **options):
        weft.Index.open(tmp_path).save(tmp_path, graph=False)
        return load(path, *arguments, **options)

    monkeypatch.setattr(graph.Graph, "load", late)
    index.save(tmp_path, overwrite=True)
    assert weft.Index.open(tmp_path, load_graph=True).uses_graph is False


def test_a_damaged_graph_is_told_when_it_is_to_be_carried_on(tmp_path):
    filled().save(tmp_path)
    path = files.read_header(tmp_path).path("graph")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    opened = weft.Index.open(tmp_path)
    with pytest.raises(FormatError, match=r"damaged.*build_graph\(\)"):
        opened.save(tmp_path)
    opened.build_graph()
    opened.save(tmp_path)
    assert weft.Index.open(tmp_path, load_graph=True).uses_graph


def test_manhattan_has_no_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "GRAPH_FROM", 1500)
    index = filled(built=False, metric="manhattan")
    index.save(tmp_path)
    assert not index.uses_graph and "graph" not in files.read_header(tmp_path).files
    with pytest.raises(InputError, match="metric is not supported by a graph: got 'manhattan'"):
        index.build_graph()


@pytest.mark.parametrize("scale", [0, -1.0, "1", True])
def test_a_scale_that_cannot_be_is_a_format_error(tmp_path, scale):
    filled(metric="dot").save(tmp_path)
    header = json.loads((tmp_path / files.HEADER).read_text())
    (tmp_path / files.HEADER).write_text(json.dumps({**header, "graph_scale": scale}))
    with pytest.raises(FormatError, match="graph_scale"):
        weft.Index.open(tmp_path, load_graph=True)


@pytest.mark.parametrize("given, wanted", [(None, 1), (3, 3)])
def test_one_thread_builds_and_searching_keeps_to_the_threads_of_the_plan(monkeypatch, given, wanted):
    monkeypatch.setenv("WEFT_THREADS", "1")
    seen, added, real = [], [], graph.usearch_index()

    class Watched(real):
        def add(self, *args, threads=0, **options):
            added.append(threads)
            return super().add(*args, threads=threads, **options)

        def search(self, *args, threads=0, **options):
            seen.append(threads)
            return super().search(*args, threads=threads, **options)

    monkeypatch.setattr(graph, "usearch_index", lambda: Watched)
    filled(threads=given).search(QUERIES)
    assert set(seen) == {wanted} and set(added) == {1}


def file_of(graph, folder):
    graph.save(folder / "graph")
    return (folder / "graph").read_bytes()


@pytest.fixture(params=[1, 3])
def parts(request, monkeypatch):
    """Graphs of so many parts."""
    monkeypatch.setattr(graph, "PART_ROWS", 1500 // request.param)
    return request.param


def test_the_same_rows_give_the_same_graph_whatever_the_threads(tmp_path, parts):
    """All threads at once made another graph each time, of recall 0.968 on sixteen cores."""
    made = []
    for threads in (1, 2, 4, 16):
        index = filled(threads=threads)
        index.delete(range(0, 1500, 7))
        index.add(["more", "again"], ROWS[:2])
        made.append(file_of(index._graph, tmp_path))
        assert recall(index) >= 0.98 and len(index._graph._parts) == parts
    assert made[1:] == made[:1] * 3


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_a_graph_of_parts_finds_as_much_and_is_kept_up_to_date(tmp_path, metric, parts):
    index = filled(metric=metric)
    for again in range(2):
        assert recall(index) >= 0.98
        index.delete(range(again, 1500, 7))
        index.update([1300, 1301], QUERIES[:2])
        index.add(f"more {again}", ROWS[again])
        index.save(tmp_path)  # without the deleted rows: the others get new numbers
        opened = weft.Index.open(tmp_path, load_graph=True)
        assert len(opened._graph._parts) == parts and len(opened._graph) == len(opened) == len(index)
        assert opened.search(QUERIES, 10) == index.search(QUERIES, 10) and recall(opened) >= 0.98
        assert index.search(QUERIES, 1000)[0][999].score  # more than a part has
        index = opened
    later = weft.Index.open(tmp_path)
    later.add("last", QUERIES[3])
    later.save(tmp_path)
    assert weft.Index.open(tmp_path, load_graph=True).search(QUERIES[3], 1)[0].id == "last" or metric == "dot"


def test_the_table_of_parts_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "PART_ROWS", 500)
    whole = file_of(filled()._graph, tmp_path)
    assert whole.startswith(graph.SEVERAL)
    start = len(graph.SEVERAL)
    for damaged in (
        whole[: start + 2],
        whole[: start + 9],
        whole[:-1],
        whole + b"x",
        whole[:start] + b"\xff" * 4 + whole[start + 4 :],
    ):
        (tmp_path / "graph").write_bytes(damaged)
        with pytest.raises(FormatError, match="parts"):
            graph.Graph.load(tmp_path / "graph", 32, "cosine", 1500)
    (tmp_path / "graph").write_bytes(whole)
    with pytest.raises(FormatError, match="1500 rows of 32 numbers, the index 1499"):
        graph.Graph.load(tmp_path / "graph", 32, "cosine", 1499)


def test_an_interrupt_between_parts_leaves_the_index_as_it_was(monkeypatch):
    monkeypatch.setattr(graph, "PART_ROWS", 500)
    index, real, calls = filled(threads=3), graph.Graph._add, []
    before = index.search(QUERIES, 10)

    def failing(self, part, keys, vectors):
        calls.append(part)
        if part == 1:
            raise KeyboardInterrupt
        real(self, part, keys, vectors)

    with monkeypatch.context() as patched:
        patched.setattr(graph.Graph, "_add", failing)
        with pytest.raises(KeyboardInterrupt):
            index.add([f"new {i}" for i in range(300)], ROWS[:300])
    assert set(calls) >= {1} and len(index) == len(index._graph) == 1500 and index.search(QUERIES, 10) == before


def test_rows_go_in_shuffled_whatever_their_order(monkeypatch):
    """Rows that lie together are alike; put in as they come, they make a graph of regions with few ways between."""
    seen, real = [], graph.Graph._add
    monkeypatch.setattr(
        graph.Graph, "_add", lambda self, part, keys, rows: (seen.extend(keys.tolist()), real(self, part, keys, rows))
    )
    filled()
    first = list(seen)
    seen.clear()
    filled()
    assert first == seen and sorted(first) == list(range(1500)) and first != sorted(first)


def test_building_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(graph, "PIECE", 512)
    told = []
    filled(built=False).build_graph(lambda done, total: told.append((done, total)))
    assert told[-1] == (1500, 1500) and len(told) > 2 and sorted(told) == told


def test_ctrl_c_in_building_is_an_interrupt(monkeypatch):
    """usearch makes a RuntimeError of it, and ends the process where it reports progress to Python meanwhile."""
    monkeypatch.setattr(graph, "PIECE", 1500)
    index = filled(built=False)

    def build():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        index.build_graph()
        time.sleep(60)  # where the machine was too fast

    with pytest.raises(KeyboardInterrupt):
        build()
    assert len(index.search(QUERIES[0])) == 10


def test_ctrl_c_in_searching_is_an_interrupt():
    index = filled()

    def search():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            index.search(QUERIES)

    with pytest.raises(KeyboardInterrupt):
        search()
    assert len(index.search(QUERIES[0])) == 10


def test_a_build_that_is_stopped_leaves_the_index_as_it_was():
    def stop(done, total):
        raise KeyboardInterrupt

    plain, graphed = filled(built=False), filled()
    near = graphed.search(QUERIES, 10)
    for index in (plain, graphed):
        with pytest.raises(KeyboardInterrupt):
            index.build_graph(stop)
    assert not plain.uses_graph and graphed.search(QUERIES, 10) == near


def test_ctrl_c_in_adding_adds_nothing(monkeypatch):
    monkeypatch.setattr(graph, "PIECE", 512)
    index = filled()
    before, real, pieces = index.search(QUERIES, 10), graph.Graph._add, []

    def stopped(self, part, keys, vectors):
        pieces.append(len(keys))
        real(self, part, keys, vectors)
        if len(pieces) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(graph.Graph, "_add", stopped)
        with pytest.raises(KeyboardInterrupt):
            index.add([f"new {i}" for i in range(1500)], ROWS)
    assert len(index) == 1500 and "new 0" not in index and index.search(QUERIES, 10) == before
    index.add([f"new {i}" for i in range(1500)], ROWS)
    assert len(index) == 3000 and index.search(QUERIES, 10)[0][0].score == before[0][0].score


def test_without_usearch_a_graph_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "usearch.index", None)
    with pytest.raises(BackendError, match=r"weft-engine\[hnsw\]"):
        filled()
