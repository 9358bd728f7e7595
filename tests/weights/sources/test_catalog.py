"""The catalogue's data file is well formed, and a malformed one is refused with the entry's name."""

import json
import re
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


@pytest.mark.parametrize("entry", catalog.entries(), ids=lambda entry: entry.name)
def test_every_entry_pins_every_byte(entry: catalog.Entry) -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256 or "") for file in entry.files)
    assert entry.licence and entry.note.endswith(".")
    assert any(isinstance(source, PackageSource) for source in entry.sources)
    assert any(isinstance(source, HubSource) for source in entry.sources)
    assert entry.path(Path("x")) == Path("x") or entry.path(Path("x")).suffix == ".gguf"


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "ALL-minilm_l6_v2", "minilm", "smollm2-135m-instruct"])
def test_names_are_found_without_regard_to_case_and_underscores(name: str) -> None:
    assert catalog.find(name) is not None


def test_the_values_of_the_two_first_models() -> None:
    minilm, smollm = catalog.find("all-MiniLM-L6-v2"), catalog.find("smollm2-135m-instruct")
    assert minilm and smollm
    assert (minilm.kind, minilm.pooling, minilm.max_tokens, minilm.normalise) == ("embed", "mean", 256, True)
    assert (smollm.kind, smollm.bytes, smollm.max_tokens) == ("generate", 98362432, 8192)


def test_sources_read_back_as_they_were_written() -> None:
    for text in (
        f"hub:org/name@{'a' * 40}",
        "pypi:one==1.0!folder/",
        "pypi:one==1.0,two==2.0!*.bin",
    ):
        assert str(catalog.parse_source(text)) == text
    assert catalog.parse_source("pypi:one==1.0,two==2.0!*.bin") == PackageSource(("one==1.0", "two==2.0"), "*.bin")


@pytest.mark.parametrize(
    "text",
    ["hub:org/name", "hub:org/name@main", "pypi:one!x", "pypi:one==1!", "pypi:-r==1!x", "ftp:x", "pypi:a==1 b!x"],
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
        ({"files": [{"name": "a", "bytes": 0}]}, "size in bytes"),
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
