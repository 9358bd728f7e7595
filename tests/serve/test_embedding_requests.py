"""What a request asks of its vectors is done as the library does it, or refused in words that its client can follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tiny_st import write_st_folder

import weft
from weft.errors import TooLongError
from weft.serve import BackgroundServer, ModelSpec
from weft.serve.settings import read_toml

TEXTS = ["the cat sat", "a dog"]
LONG = "the cat " * 100
IDS = [[3, 4, 5], [6, 7]]


def write_wide(folder: Path, *, normalised: bool) -> Path:
    """An embedder of 36 numbers whose vectors may be cut."""
    write_st_folder(folder)
    modules = json.loads((folder / "modules.json").read_text())
    left_out = ("2_Dense",) if normalised else ("2_Dense", "3_Normalize")
    (folder / "modules.json").write_text(json.dumps([one for one in modules if one["path"] not in left_out]))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_matryoshka": True}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cut")
    return {name: write_wide(root / name, normalised=name == "wide") for name in ("wide", "raw")}


@pytest.fixture
def embed(serve: Callable[..., BackgroundServer], folders: dict[str, Path]) -> Callable[..., httpx.Response]:
    """`embed(path, body)`: the answer of a server of both models."""
    specs = tuple(ModelSpec(name, str(path), {"threads": 1}) for name, path in folders.items())
    started: list[BackgroundServer] = []

    def ask(path: str, **body: Any) -> httpx.Response:
        if not started:
            started.append(serve(models=specs))
        return httpx.post(started[0].url + path, json=body, timeout=30)

    return ask


def vectors(answer: httpx.Response) -> np.ndarray:
    """Those of an answer of any of the three APIs."""
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if isinstance(found, dict):
        found = [row["embedding"] for row in found["data"]] if "data" in found else found["embeddings"]
    return np.array(found, np.float32)


ROUTES = [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/embed", "inputs")]


@pytest.mark.parametrize(("path", "field"), ROUTES)
@pytest.mark.parametrize("model", ["wide", "raw"])
def test_every_length_is_the_library_s_whatever_the_default(
    embed: Callable[..., httpx.Response],
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    field: str,
    model: str,
) -> None:
    library = weft.Embedder(str(folders[model]), threads=1)
    monkeypatch.setenv("WEFT_EMBED_DIM", "33")
    kept = {"normalize": False} if (path, model) == ("/embed", "raw") else {}
    for dimensions in (None, 32, 34, 36):
        answer = embed(path, model=model, **{field: TEXTS}, dimensions=dimensions, **kept)
        wanted = library.at(33 if dimensions is None else dimensions)
        assert np.array_equal(vectors(answer), wanted.encode(TEXTS))
        assert answer.headers["weft-fingerprint"] == str(wanted.fingerprint)
    assert embed(path, model=model, **{field: TEXTS}, dimensions=37).status_code == 400


def test_tei_brings_cut_vectors_to_length_one_unless_it_is_told_not_to(embed: Callable[..., httpx.Response]) -> None:
    whole = vectors(embed("/embed", model="raw", inputs=TEXTS, normalize=False))
    cut = vectors(embed("/embed", model="raw", inputs=TEXTS, normalize=False, dimensions=32))
    assert np.array_equal(cut, whole[:, :32]) and np.linalg.norm(cut[0]) > 1.1
    unit = embed("/embed", model="raw", inputs=TEXTS, dimensions=32)
    assert np.allclose(np.linalg.norm(vectors(unit), axis=1), 1, atol=1e-6)
    assert (
        unit.headers["weft-fingerprint"] != embed("/v1/embeddings", model="raw", input="a").headers["weft-fingerprint"]
    )


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [
        ("/v1/embeddings", {"input": IDS, "prompt": "query: "}, "prompt"),
        ("/v1/embeddings", {"input": IDS, "prompt_name": "query"}, "prompt_name"),
        ("/v1/embeddings", {"input": IDS, "truncate": "head"}, "truncate"),
        ("/v1/embeddings", {"input": "a", "prompt": "query: ", "prompt_name": "query"}, "prompt_name"),
        ("/embed", {"inputs": IDS, "prompt_name": "query"}, "prompt_name"),
        ("/embed", {"inputs": IDS, "truncate": True}, "truncate"),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(
    client: httpx.Client, path: str, body: dict[str, Any], refused: str
) -> None:
    answer = client.post(path, json={"model": "bert", **body})
    assert answer.status_code == 400 and refused in answer.text
    if path == "/v1/embeddings":
        assert answer.json()["error"]["param"] == refused
    allowed = {**body, refused: False if (path, refused) == ("/embed", "truncate") else None}
    assert client.post(path, json={"model": "bert", **allowed}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "advice"),
    [
        ("/v1/embeddings", {"input": ["a", LONG]}, {"truncate": "head"}),
        ("/v1/embeddings", {"input": ["a", LONG]}, {"truncate": "tail"}),
        ("/api/embed", {"input": ["a", LONG]}, {"truncate": True}),
        ("/embed", {"inputs": ["a", LONG]}, {"truncate": True}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, {"parameters": {"truncate": True}}),
        ("/v1/rerank", {"query": "a", "documents": ["a", LONG]}, {"truncate": True}),
        ("/rerank", {"query": "a", "texts": ["a", LONG]}, {"truncate": True}),
        ("/api/embeddings", {"prompt": LONG}, None),
        ("/v1/embeddings", {"input": [[3], [3] * 100]}, None),
    ],
)
def test_what_is_too_long_is_named_by_its_place_with_advice_that_the_request_takes(
    client: httpx.Client, path: str, body: dict[str, Any], advice: dict[str, Any] | None
) -> None:
    answer = client.post(path, json={"model": "bert", **body})
    assert answer.status_code == 400 and "chunk" not in answer.text and "=" not in answer.text
    if path == "/v1/embeddings":
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert answer.json()["error"]["param"] == "input"
    place = 0 if path == "/api/embeddings" else 1
    assert f" {place} has " in answer.text and "the model takes 48; shorten it" in answer.text
    said = answer.text.replace("\\", "")
    if advice is None:
        assert "truncate" not in said
        return
    value = next(iter(advice.values()))
    word = f'"{value}"' if isinstance(value, str) else "truncate: true"
    assert word in said and ("parameters." in said) == ("parameters" in advice)
    assert client.post(path, json={"model": "bert", **body, **advice}).status_code == 200


def test_a_prompt_that_leaves_no_room_is_said_to_be_too_long_itself(client: httpx.Client) -> None:
    body = {"model": "bert", "input": "a", "prompt": LONG, "truncate": "head"}
    error = client.post("/v1/embeddings", json=body).json()["error"]
    assert error["code"] == "context_length_exceeded" and "the prompt has" in error["message"]


def test_vectors_that_may_not_be_cut_are_told_without_arguments_of_the_library(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"model": "bert", "input": "a", "dimensions": 5})
    assert (
        answer.status_code == 400
        and "not trained for shorter vectors" in answer.text
        and "matryoshka" not in answer.text
    )


def test_the_library_s_client_finds_the_text_that_is_too_long(server: BackgroundServer) -> None:
    remote = weft.RemoteEmbedder("bert", f"{server.url}/v1", batch_texts=2)
    with pytest.raises(TooLongError) as caught:
        remote.encode(["a", "b", "c", LONG])
    assert (caught.value.index, caught.value.limit) == (3, 48) and caught.value.length > 200


def test_a_server_s_own_settings_of_an_embedder(
    serve: Callable[..., BackgroundServer], folders: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        f'[models.own]\nsource = "{folders["wide"]}"\nthreads = 1\ndimensions = 33\n'
        f'[models.own.prompts]\nquery = "find: "\n[models.told]\nsource = "{folders["wide"]}"\nmatryoshka = false\n'
    )
    running = serve(models=read_toml(file)["models"])
    body = {"model": "own", "input": TEXTS, "prompt_name": "query"}
    answer = httpx.post(f"{running.url}/v1/embeddings", json=body, timeout=30)
    library = weft.Embedder(str(folders["wide"]), prompts={"query": "find: "}, dimensions=33, threads=1)
    assert np.array_equal(vectors(answer), library.encode_query(TEXTS))
    assert answer.headers["weft-fingerprint"] == str(library.fingerprint)
    uncut = httpx.post(f"{running.url}/v1/embeddings", json={"model": "told", "input": "a", "dimensions": 33})
    assert uncut.status_code == 400 and "not trained for shorter vectors" in uncut.text


def test_a_model_of_another_kind_is_refused_with_where_the_kinds_are(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        answer = client.post(path, json={"model": "tiny", **body})
        error = answer.json()["error"]
        assert answer.status_code == 400 and "GET /v1/models shows the kind of each" in error["message"], error
