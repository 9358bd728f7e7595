"""GET /lab/: the files of one folder, with the headers that isolate a page; nothing outside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from weft.errors import NotFoundError
from weft.serve import ModelSpec, Settings

WEIGHTS = bytes(range(256)) * 12_000  # three parts of a megabyte


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lab = tmp_path / "lab"
    (lab / "models" / "search").mkdir(parents=True)
    (lab / "index.html").write_text("<!doctype html><title>lab</title>")
    (lab / "lab.js").write_text("1")
    (lab / "weft.wasm").write_bytes(b"\0asm")
    (lab / "models" / "search" / "weights-00001.bin").write_bytes(WEIGHTS)
    (lab / "notes.txt").write_text("private")
    (tmp_path / "outside.js").write_text("private")
    (lab / "link.js").symlink_to(tmp_path / "outside.js")
    return lab


def test_files_have_their_types_and_the_page_is_isolated(serve, folder: Path) -> None:
    with httpx.Client(base_url=serve(lab_dir=folder).url, timeout=60) as client:
        page = client.get("/lab/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["cross-origin-opener-policy"] == "same-origin"
        assert page.headers["cross-origin-embedder-policy"] == "require-corp"
        assert "'wasm-unsafe-eval'" in page.headers["content-security-policy"]
        moved = client.get("/lab", follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (308, "/lab/")
        assert client.get("/lab/weft.wasm").headers["content-type"] == "application/wasm"
        large = client.get("/lab/models/search/weights-00001.bin")
        assert hashlib.sha256(large.content).digest() == hashlib.sha256(WEIGHTS).digest()
        assert large.headers["content-length"] == str(len(WEIGHTS))


@pytest.mark.parametrize(
    "path",
    ["notes.txt", "nothing.js", "models/", "link.js", "../outside.js", "..%2Foutside.js", "models/../lab.js/x.js"],
)
def test_other_files_are_not_there(serve, folder: Path, path: str) -> None:
    with httpx.Client(base_url=serve(lab_dir=folder).url, timeout=60) as client:
        answer = client.get(f"/lab/{path}")
        assert answer.status_code == 404
        assert b"private" not in answer.content


def test_without_a_folder_the_answer_says_how(client, tmp_path: Path) -> None:
    answer = client.get("/lab/")
    assert answer.status_code == 404
    assert "--lab" in answer.text
    with pytest.raises(NotFoundError, match=r"index\.html"):
        Settings(models=(ModelSpec("a", "a"),), lab_dir=tmp_path).checked()


def test_a_server_with_keys_asks_for_one(serve, folder: Path) -> None:
    with httpx.Client(base_url=serve(lab_dir=folder, keys=("a-key",)).url, timeout=60) as client:
        assert client.get("/lab/lab.js").status_code == 401
        form = client.get("/lab/", headers={"accept": "text/html"})
        assert form.status_code == 401
        assert 'value="/lab/"' in form.text
        assert client.get("/lab/lab.js", headers={"authorization": "Bearer a-key"}).text == "1"
