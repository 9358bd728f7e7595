"""The catalogue's data file is well formed, and a malformed one is refused with the entry's name."""

import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import DownloadError, FormatError
from weft.weights.sources import catalog
from weft.weights.sources.catalog import HubSource, PackageSource

ROW: dict[str, Any] = {
    "name": "tiny",
    "kind": "embed",
    "licence": "MIT",
    "origin": "org/tiny",
    "pooling": "mean",
    "files": [{"name": "model.safetensors", "bytes": 4, "sha256": "0" * 64}],
    "sources": ["pypi:tiny==1.0!tiny/"],
}


def parse(*rows: dict[str, Any]) -> tuple[catalog.Entry, ...]:
    return catalog.parse(json.dumps({"models": list(rows)}))


NAMES = [
    *("all-MiniLM-L6-v2", "bge-small-en-v1.5", "bge-base-en-v1.5", "bge-large-en-v1.5", "multilingual-e5-small"),
    *("multilingual-e5-base", "paraphrase-multilingual-MiniLM-L12-v2", "Qwen3-Embedding-0.6B", "Qwen3-Embedding-4B"),
    *("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct", "Qwen3-0.6B", "Llama-3.2-1B-Instruct"),
    *("TinyLlama-1.1B-Chat-v1.0", "gemma-3-1b-it"),
]


def test_the_models_that_are_known_by_name() -> None:
    assert [entry.name for entry in catalog.entries()] == NAMES


@pytest.mark.parametrize("entry", catalog.entries(), ids=lambda entry: entry.name)
def test_every_entry_says_what_it_is_and_where_it_comes_from(entry: catalog.Entry) -> None:
    assert entry.licence and entry.note.endswith(".") and entry.origin.count("/") == 1
    assert entry.path(Path("x")) == Path("x") or entry.path(Path("x")).suffix == ".gguf"
    assert isinstance(entry.sources[0], HubSource)  # at a commit: catalog.parse_source takes nothing else
    names = {file.name for file in entry.files}
    assert names & {"model.safetensors", "model.safetensors.index.json"} or len(names) == 1
    assert len(names) == 1 or {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    if entry.kind == "embed":
        assert {"modules.json", "1_Pooling/config.json"} <= names
        assert entry.max_tokens and None not in (entry.query_prefix, entry.document_prefix, entry.normalise)


@pytest.mark.parametrize("entry", catalog.entries(), ids=lambda entry: entry.name)
def test_weights_and_vocabularies_are_pinned(entry: catalog.Entry) -> None:
    large = [file for file in entry.files if file.name.endswith((".safetensors", ".gguf", "tokenizer.json"))]
    if entry.name == "Qwen3-Embedding-4B":  # nobody publishes its digests: the commit, and the first download, pin it
        assert not any(file.sha256 for file in entry.files)
    else:
        assert large and all(file.sha256 and file.bytes for file in large)


def test_a_file_has_one_digest_wherever_it_occurs() -> None:
    seen: dict[str, int | None] = {}
    for entry in catalog.entries():
        for file in entry.files:
            assert file.sha256 is None or seen.setdefault(file.sha256, file.bytes) == file.bytes


@pytest.mark.parametrize(
    "name",
    [
        "all-MiniLM-L6-v2",
        "ALL-minilm_l6_v2",
        "minilm",
        "bge-small",
        "qwen2.5-coder",
        "Qwen3:0.6b",
        "baai/BGE-base-en-v1.5",
    ],
)
def test_names_are_found_without_regard_to_case_and_underscores(name: str) -> None:
    assert catalog.find(name) is not None


BGE = "Represent this sentence for searching relevant passages: "
QWEN = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


@pytest.mark.parametrize(
    "name, pooling, tokens, normalise, query, document",
    [
        ("all-MiniLM-L6-v2", "mean", 256, True, "", ""),
        ("bge-small", "cls", 512, True, BGE, ""),
        ("bge-base", "cls", 512, True, BGE, ""),
        ("bge-large", "cls", 512, True, BGE, ""),
        ("e5-small", "mean", 512, True, "query: ", "passage: "),
        ("e5-base", "mean", 512, True, "query: ", "passage: "),
        ("paraphrase-multilingual", "mean", 128, False, "", ""),
        ("qwen3-embedding", "last", 8192, True, QWEN, ""),
        ("qwen3-embedding:4b", "last", 8192, True, QWEN, ""),
    ],
)
def test_how_the_embedding_models_are_used(
    name: str, pooling: str, tokens: int, normalise: bool, query: str, document: str
) -> None:
    entry = catalog.find(name)
    assert entry and entry.kind == "embed"
    assert (entry.pooling, entry.max_tokens, entry.normalise) == (pooling, tokens, normalise)
    assert (entry.query_prefix, entry.document_prefix) == (query, document)


def test_gated_models_are_those_whose_licence_must_be_accepted() -> None:
    assert [entry.name for entry in catalog.entries() if entry.gated] == ["Llama-3.2-1B-Instruct", "gemma-3-1b-it"]


def test_sources_read_back_as_they_were_written() -> None:
    for text in (
        f"hub:org/name@{'a' * 40}",
        "pypi:one==1.0!folder/",
        "pypi:one==1.0,two==2.0!*.bin",
        "pypi:part{1..3}==1.0!*.bin",
    ):
        assert str(catalog.parse_source(text)) == text


def test_packages_are_listed_or_numbered() -> None:
    source = catalog.parse_source("pypi:one==1.0,part{9..11}==2.0!*.bin")
    assert isinstance(source, PackageSource) and source.member == "*.bin"
    assert source.packages == ("one==1.0", "part9==2.0", "part10==2.0", "part11==2.0")
    coder = catalog.find("qwen2.5-coder")
    assert coder and isinstance(coder.sources[1], PackageSource) and len(coder.sources[1].packages) == 22


@pytest.mark.parametrize(
    "text",
    [
        *("hub:org/name", "hub:org/name@main", "pypi:one!x", "pypi:one==1!", "pypi:-r==1!x", "ftp:x", "pypi:a==1 b!x"),
        *("pypi:a{3..1}==1!x", "pypi:a{1..}==1!x"),
    ],
)
def test_a_source_that_is_not_pinned_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        catalog.parse_source(text)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"kind": "sing"}, "kind must be one of"),
        ({"pooling": "max"}, "pooling must be one of"),
        ({"pooling": None}, "needs its pooling"),
        ({"colour": "red"}, "unknown keys"),
        ({"sources": []}, "at least one"),
        ({"files": [{"name": "a", "bytes": 4, "sha256": "xyz"}]}, "malformed sha256"),
        ({"files": [{"name": "a", "bytes": 0}]}, "malformed size"),
        ({"files": [{"name": "a", "bytes": 4}]}, "need their size and sha256"),
        ({"sources": ["pypi:a==1,b==1!folder/"]}, "one package"),
        ({"files": ROW["files"] * 2, "sources": ["pypi:a==1!*.bin"]}, "exactly one file"),
    ],
)
def test_a_malformed_entry_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse({**ROW, **change})


def test_a_file_name_that_leads_outside_is_refused() -> None:
    with pytest.raises(DownloadError, match="outside its folder"):
        parse({**ROW, "files": [{"name": "../x", "bytes": 4}]})


def test_a_name_may_be_taken_once_aliases_included() -> None:
    with pytest.raises(FormatError, match="'Ti_NY' is taken"):
        parse(ROW, {**ROW, "name": "other", "aliases": ["ti-ny", "Ti_NY"]})


def test_the_fingerprint_follows_the_pinned_files() -> None:
    (one,) = parse(ROW)
    (same,) = parse({**ROW, "note": "Changed."})
    (other,) = parse({**ROW, "files": [{**ROW["files"][0], "sha256": "1" * 64}]})
    assert one.fingerprint == same.fingerprint != other.fingerprint
