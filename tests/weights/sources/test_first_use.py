"""The first download of a file without a published digest records it; every later download must match."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, Hub, serving, sha256

from weft.errors import ChecksumError, DownloadError
from weft.weights.sources import catalog, list_local, locate

FILES = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}", "model.safetensors": b"weights " * 4096}
LARGE = ("model.safetensors",)


@pytest.fixture
def hub(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub("org/tiny", dict(FILES), large=LARGE)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> catalog.Entry:
    """The weights are pinned, the settings by their digest alone, the tokenizer not at all."""
    return known(
        monkeypatch,
        [
            {"name": "config.json", "sha256": sha256(FILES["config.json"])},
            {"name": "tokenizer.json"},
            {"name": "model.safetensors", "bytes": 32768, "sha256": sha256(FILES["model.safetensors"])},
        ],
    )


def known(monkeypatch: pytest.MonkeyPatch, files: list[dict[str, Any]], **more: Any) -> catalog.Entry:
    row = {"name": "tiny", "kind": "generate", "licence": "MIT", "origin": "org/tiny", "files": files, **more}
    entries = catalog.parse(json.dumps({"models": [{**row, "sources": [f"hub:org/tiny@{COMMIT}"]}]}))
    monkeypatch.setattr(catalog, "entries", lambda: entries)
    return entries[0]


def record(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "cache" / "weft" / "first-use").iterdir()
    return {row["name"]: row for row in json.loads(path.read_text())["files"]}


def forget_the_snapshot(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache" / "huggingface")


def test_the_first_download_is_written_down(hub: Hub, entry: catalog.Entry, tmp_path: Path) -> None:
    assert not entry.pinned and entry.bytes == 32768
    found = locate("tiny")
    assert sorted(path.name for path in found.path.iterdir()) == sorted(FILES)
    assert record(tmp_path) == {"tokenizer.json": {"name": "tokenizer.json", "bytes": 2, "sha256": sha256(b"{}")}}
    assert entry.bytes == 32770 and locate("tiny", offline=True) == found
    assert [model.name for model in list_local()] == [f"org/tiny@{COMMIT}"]


def test_later_downloads_must_bring_the_same_bytes(hub: Hub, entry: catalog.Entry, tmp_path: Path) -> None:
    locate("tiny")
    forget_the_snapshot(tmp_path)
    assert locate("tiny").path.is_dir()
    forget_the_snapshot(tmp_path)
    hub.files["tokenizer.json"] = b"[]"  # the same commit, the same size, other bytes
    with pytest.raises(ChecksumError, match=r"tokenizer\.json is not the expected file"):
        locate("tiny")
    hub.files["tokenizer.json"] = b"[ ]"
    with pytest.raises(ChecksumError, match=r"tokenizer\.json is not the pinned file"):
        locate("tiny")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_published_digest_holds_from_the_first_time_on(hub: Hub, entry: catalog.Entry, name: str) -> None:
    hub.files[name] = FILES[name].replace(b"e", b"i")
    with pytest.raises(ChecksumError):
        locate("tiny")
    assert not entry.complete(Path("nowhere"))


def test_a_record_that_cannot_be_read_is_made_again(hub: Hub, entry: catalog.Entry, tmp_path: Path) -> None:
    locate("tiny")
    (path,) = (tmp_path / "cache" / "weft" / "first-use").iterdir()
    for text in ("", "[]", '{"files": [{"name": "../x"}]}', '{"files": 7}'):
        path.write_text(text)
        forget_the_snapshot(tmp_path)
        locate("tiny")
        assert record(tmp_path)["tokenizer.json"]["sha256"] == sha256(b"{}")


def test_a_record_that_cannot_be_written_is_a_warning(
    hub: Hub, entry: catalog.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file" / "cache"))
    assert locate("tiny").path.is_dir()
    assert "cannot be recorded" in caplog.text


def test_a_file_that_the_commit_lacks_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [{"name": "model.safetensors"}, {"name": "vocab.txt"}])
    with pytest.raises(DownloadError, match=r"lacks vocab\.txt"):
        locate("tiny")


def test_another_commit_is_another_model(entry: catalog.Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "tiny", "kind": "generate", "licence": "MIT", "origin": "org/tiny", "files": [{"name": "a"}]}
    prints = set()
    for commit in ("a" * 40, "b" * 40):
        (one,) = catalog.parse(json.dumps({"models": [{**row, "sources": [f"hub:org/tiny@{commit}"]}]}))
        prints.add(one.fingerprint)
    assert len(prints) == 2


def test_a_gated_model_of_the_catalogue_says_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [{"name": "config.json"}], gated=True)
    hub.behaviour.statuses = [401]
    with pytest.raises(DownloadError, match="accept its licence on") as error:
        locate("tiny")
    assert "HF_TOKEN" in str(error.value)
