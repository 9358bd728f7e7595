"""Digests stay what they were: caches, stores and indexes on users' disks are found by them."""

import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from weft import digest
from weft.embed.cache import disk, lookup
from weft.runtime import store
from weft.runtime.paged import fingerprint as pages
from weft.runtime.paged.pages import PagePool
from weft.runtime.paged.prefix import Prefixes
from weft.serve.models.digest import digest_of


def test_a_part_cannot_pass_for_two():
    assert digest.framed("ab", b"c") == b"\2\0\0\0\0\0\0\0ab\1\0\0\0\0\0\0\0c"
    assert digest.framed("ab", "c") != digest.framed("a", "bc") != digest.framed("abc")
    assert digest.framed("\ud800") == b"\3\0\0\0\0\0\0\0\xed\xa0\x80"  # half of a pair, as file names have them


def test_adding_parts_hashes_them_framed():
    hashed = sha256()
    digest.add(hashed, "weft", memoryview(b"\0\1\2"), b"")
    assert hashed.digest() == sha256(digest.framed("weft", b"\0\1\2", b"")).digest()
    assert hashed.hexdigest() == "cd2521c61734aa6e9eae93602e71f79c0670fe0cc23217da27d0903bb02647db"


@pytest.mark.parametrize("size, starts", [(10, [0]), (4, [0]), (13, [0, 1, 2, 3]), (100, [0, 30, 60, 90])])
def test_pieces_are_spread_from_the_first_byte_to_the_last(size, starts):
    assert digest.spread(size, piece=10, pieces=4) == starts


def test_keys_of_the_embedding_cache():
    found = lookup.key_of("weft2:00", "a text", prompt="query: ", truncate="head", longest=12)
    assert found.hex() == "2e1fc92b0d15350ee10e6ec2f3b6fa1139d894b5b1a6aeef981322876c057832"
    assert lookup.key_of("f", "\ud800 ü").hex() == "9db5255510b6a3c5ac147bebb047853c9435e38707913962e3f647dcab435f14"


def test_checksums_of_entries_of_the_disk_cache():
    assert disk._sum("weft2:00", b"k" * 32, b"header", b"numbers").hex() == "b9b18e47d3657681a8e9034d4b10657b"


def test_keys_of_the_program_cache(monkeypatch):
    monkeypatch.setattr(store, "_sources", lambda: "sources")
    assert store.key_of(["config", "ten\ud800sors"]) == "dbdaf0cae2a6e81580f390ad06db7927"


def test_names_of_prefixes():
    root = Prefixes(PagePool(4), secret=b"secret").root("salt", "ädapter")
    assert root.tokens == b"\4\0\0\0\0\0\0\0salt\x08\0\0\0\0\0\0\0\xc3\xa4dapter"
    assert root.hash.hex() == "91065dd95169c0ceea69d76b7d2236df"


def test_fingerprints_of_a_key_value_state(tmp_path: Path):
    """The core, its level, the program without its inputs, constants, files by size and time, tensors in pieces."""
    backend = SimpleNamespace(digest=(b"core", "avx2"))
    file = tmp_path / "weights"
    file.write_bytes(b"12345")
    os.utime(file, ns=(10**18, 10**18))
    program = '{"values": [{"kind": "input"}, {"kind": "weight"}], "body": []}'
    data = (np.arange(70_000) % 251).astype(np.uint8)
    tensors = {
        name: SimpleNamespace(view=SimpleNamespace(dtype="u8", shape=(size,), buffer=lambda size=size: data[:size]))
        for name, size in (("large", 70_000), ("small", 7))
    }
    checkpoint = SimpleNamespace(files=[SimpleNamespace(path=file)], tensors=tensors, release=lambda: None)
    prepared = SimpleNamespace(json=program, constants={"rope": b"\1\2\3\4"})
    assert pages.fingerprint(checkpoint, [prepared], backend) == "e0297850bd046c54ff33ed31f84e6947"  # type: ignore[arg-type]


def test_digests_of_served_models(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(251)) * 1000)
    (tmp_path / "config.json").write_text("{}")
    assert digest_of(tmp_path) == "120c3c2272d102c01cf244a80fa6a9a40c27920ee3fe9844b4503a6127db2e9f"


def test_digests_of_files_read_them_in_blocks(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"weft" * 1_000_000)
    with open(file, "rb") as opened:
        assert digest.of_file(opened) == sha256(b"weft" * 1_000_000).hexdigest()
