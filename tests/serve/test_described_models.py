"""Models from a description behind every entry point: `weft.load`, `weft.Embedder`, the command line, the server."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_chat_folder import write_chat_folder
from tiny_st import TEXTS, write_st_folder

import weft
from weft.describe import description_of
from weft.runtime import open_checkpoint
from weft.serve import BackgroundServer, ModelSpec, Settings

PROMPT = "the quick brown fox"


def describe(folder: Path) -> Path:
    (folder / "weft.json").write_text(json.dumps(description_of(open_checkpoint(folder)).as_json()))
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A described llama, and what it says without its description."""
    folder = write_chat_folder(tmp_path_factory.mktemp("chat") / "tiny", {})
    said = weft.load(str(folder), threads=1).generate(PROMPT, max_tokens=12, temperature=0).text
    return describe(folder), said


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, str]:
    """A described bert, its vectors without its description, and the fingerprint they have."""
    folder = write_st_folder(tmp_path_factory.mktemp("embed") / "tiny")
    own = weft.Embedder(str(folder), threads=1)
    vectors, fingerprint = own.encode(TEXTS), str(own.fingerprint)
    return describe(folder), vectors, fingerprint


def test_a_described_model_generates(chat: tuple[Path, str]) -> None:
    model = weft.load(str(chat[0]), threads=1)
    assert model.info["model_type"] == "generic"
    assert model.generate(PROMPT, max_tokens=12, temperature=0).text == chat[1]


def test_a_described_model_embeds_and_has_a_fingerprint_of_its_own(embedder: tuple[Path, np.ndarray, str]) -> None:
    folder, vectors, fingerprint = embedder
    described = weft.Embedder(str(folder), threads=1)
    assert np.array_equal(described.encode(TEXTS), vectors)
    assert str(described.fingerprint) != fingerprint


@pytest.mark.parametrize("name", ["bert", "xlm_roberta-three", "distilbert-three", "modernbert-mean"])
def test_a_described_cross_encoder_scores_pairs_with_the_same_bits(tmp_path: Path, name: str) -> None:
    from tiny_rerank import DOCUMENTS, QUERIES, write_cross

    folder = write_cross(tmp_path / name, name)
    options: dict[str, Any] = {"threads": 1, "label": 1} if "three" in name else {"threads": 1}
    own = weft.Reranker(str(folder), **options).scores(QUERIES[0], DOCUMENTS)
    described = weft.Reranker(str(describe(folder)), **options)
    assert described.info["model_type"] == "generic_encoder"
    assert np.array_equal(described.scores(QUERIES[0], DOCUMENTS), own)


def test_a_description_without_a_classifier_scores_no_pairs(tmp_path: Path) -> None:
    from tiny_rerank import DOCUMENTS, QUERIES, write_cross

    folder = describe(write_cross(tmp_path / "bert", "bert"))
    words = json.loads((folder / "weft.json").read_text())
    weights = {role: name for role, name in words["weights"].items() if not role.startswith("classifier")}
    del words["classifier"]
    (folder / "weft.json").write_text(json.dumps({**words, "weights": weights}))
    with pytest.raises(weft.WeftError, match="the model's description has no classifier"):
        weft.Reranker(str(folder), threads=1).scores(QUERIES[0], DOCUMENTS)


def test_the_command_line_runs_described_models(chat: tuple[Path, str], embedder: tuple[Path, np.ndarray, str]) -> None:
    from click.testing import CliRunner

    from weft.cli.app import app

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments], prog_name="weft")
        assert result.exit_code == 0, result.stderr
        return result.stdout

    out = run("generate", PROMPT, "-m", str(chat[0]), "--max-tokens", "12", "--temperature", "0")
    assert chat[1].strip() in out
    rows = [
        json.loads(line) for line in run("embed", TEXTS[0], "-m", str(embedder[0]), "--format", "jsonl").splitlines()
    ]
    assert np.allclose(next(v for v in rows[0].values() if isinstance(v, list)), embedder[1][0], atol=1e-6)


def test_the_server_serves_described_models(chat: tuple[Path, str], embedder: tuple[Path, np.ndarray, str]) -> None:
    import httpx

    specs = (
        ModelSpec("chat", str(chat[0]), {"threads": 1}),
        ModelSpec("embed", str(embedder[0]), {"threads": 1}),
    )
    with BackgroundServer(Settings(models=specs, port=0)) as server, httpx.Client(base_url=server.url) as client:
        body = {"model": "chat", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        assert client.post("/v1/completions", json=body, timeout=60).json()["choices"][0]["text"] == chat[1]
        got = client.post("/v1/embeddings", json={"model": "embed", "input": TEXTS[0]}, timeout=60).json()
        assert np.allclose(got["data"][0]["embedding"], embedder[1][0], atol=1e-6)
