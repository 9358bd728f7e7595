"""weft drift reads indexes and stores; both are searched with another model's queries through a map."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Run
from tiny_st import write_st_folder

import weft
from weft.transport.drift import Alignment

WORDS = ["the", "cat", "sat", "on", "mat", "and", "slept", "one", "two", "three", "quick", "brown", "fox", "dog"]
QUICK = ("--permutations", "99", "--sample", "40", "--threads", "1", "--json")


def texts(seed: int, count: int = 60, words: list[str] = WORDS) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, 7)) for _ in range(count)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two models: the second pools otherwise."""
    folder = tmp_path_factory.mktemp("models")
    first, second = (write_st_folder(folder / name, vocab_size=240) for name in ("one", "two"))
    pooling = second / "1_Pooling" / "config.json"
    about = json.loads(pooling.read_text())
    about |= {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    pooling.write_text(json.dumps(about))
    return str(first), str(second)


def index_of(run: Run, folder: Path, name: str, model: str, lines: list[str]) -> str:
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps({"id": f"{i}", "text": text}) + "\n" for i, text in enumerate(lines)))
    place = folder / f"{name}.index"
    built = run("index", "build", str(rows), "-m", model, "--output", str(place))
    assert built.exit_code == 0, built.stderr
    return str(place)


def store_of(run: Run, folder: Path, name: str, model: str, lines: list[str]) -> str:
    rows, place = folder / f"{name}.jsonl", str(folder / f"{name}.db")
    rows.write_text("".join(json.dumps({"id": f"{i}", "text": text}) + "\n" for i, text in enumerate(lines)))
    added = run("store", "add", place, str(rows), "--model", model)
    assert added.exit_code == 0, added.stderr
    return place


def said(result: Any) -> Any:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def test_an_index_and_a_store_are_compared(run: Run, models: tuple[str, str], tmp_path: Path) -> None:
    index = index_of(run, tmp_path, "a", models[0], texts(1))
    store = store_of(run, tmp_path, "b", models[0], texts(1))
    other = store_of(run, tmp_path, "c", models[0], texts(2, words=WORDS[:5]))
    same = said(run("drift", index, store, *QUICK))  # which have their rows in different orders
    assert same["paired"] and same["rows"] == [60, 60] and not same["drifted"] and same["displacement"]["max"] < 1e-5
    moved = said(run("drift", index, other, *QUICK))
    assert moved["drifted"] and moved["p"] == 0.01


def test_an_empty_store_has_no_vectors(run: Run, models: tuple[str, str], tmp_path: Path) -> None:
    store = store_of(run, tmp_path, "empty", models[0], texts(1, 1))
    assert run("store", "delete", store, "0").exit_code == 0
    found = run("drift", store, store)
    assert found.exit_code == 2 and "has no vectors" in found.stderr


@pytest.mark.parametrize("make", [index_of, store_of])
def test_a_search_through_a_map(run: Run, models: tuple[str, str], tmp_path: Path, make: Any) -> None:
    lines, (old, new) = texts(3, 80), models
    place, again = make(run, tmp_path, "old", old, lines), make(run, tmp_path, "new", new, lines)
    search = ("search",) if make is index_of else ("store", "search")
    maps = {}
    for name, source, target in (("places", place, again), ("models", old, new), ("itself", old, old)):
        maps[name] = str(tmp_path / f"{name}.npz")
        more = () if name == "places" else ("--texts", str(tmp_path / "learn.txt"))
        (tmp_path / "learn.txt").write_text("".join(f"{line}\n" for line in lines))
        learnt = run("drift", "align", source, target, *more, "--method", "linear", "-o", maps[name], "--json")
        assert learnt.exit_code == 0, learnt.stderr
        assert said(learnt)["query_recall"] > 0.5
    one, other = (str(weft.Embedder(model).fingerprint) for model in models)
    assert [Alignment.load(maps[name]).models for name in maps] == [(one, other), (one, other), (one, one)]

    def ids(*arguments: str) -> list[str]:
        found = run(*search, *arguments, "-k", "5", "--json")
        assert found.exit_code == 0, found.stderr
        return [json.loads(line)["id"] for line in found.stdout.splitlines()]

    query = "the quick fox and the lazy cat"
    vector = Alignment.load(maps["places"]).queries(weft.Embedder(new).encode_query(query))
    vectors = weft.Embedder(old).encode_document(lines)
    nearest = [str(row) for row in np.argsort(-(vectors @ vector), kind="stable")[:5]]
    assert ids(place, query, "--model", new, "--map", maps["places"]) == nearest
    assert ids(place, query, "--model", old, "--map", maps["itself"]) == ids(place, query)
    wrong = run(*search, place, query, "--model", new, "--map", maps["itself"])
    assert wrong.exit_code == 2 and "weft drift align" in wrong.stderr
    unnamed = run(*search, place, query, "--map", maps["models"])
    assert unnamed.exit_code == 2 and "--map needs --model" in unnamed.stderr
    absent = run(*search, place, query, "--model", new, "--map", "nowhere.npz")
    assert absent.exit_code == 2 and "cannot read nowhere.npz" in absent.stderr
