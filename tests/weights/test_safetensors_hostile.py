"""A safetensors file that breaks any rule of the format is refused with a clean error, and so is a hostile index."""

import json
import os
import random
import re
import time
from pathlib import Path

import pytest
from safetensors_corpus import GOOD, entry, file_of, header_of, malformed, well_formed

from weft.errors import FormatError, NotFoundError, WeftError
from weft.weights import open_safetensors

BROKEN = list(malformed())
# Where a file is wrong: a field of a tensor, an entry of the metadata, a place in the header, or how it ends.
PLACE = re.compile(
    r"tensor '.*'.*\b(dtype|shape|data_offsets)\b|__metadata__|the name '.*' occurs twice|the key '.*' is given twice"
    r"|the header is .* at (byte|character) \d+|header length at byte 0|too short for a header|the data does not end"
    r"|is empty"
)


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(raw)
    return path


def refuses(folder: Path, raw: bytes) -> bool:
    """Whether the reader refuses the file; anything but a FormatError with the file's name alone is a failure."""
    try:
        with open_safetensors(written(folder, raw)) as file:
            for tensor in file.tensors.values():
                assert tensor.bytes().size == tensor.nbytes
    except FormatError as error:
        assert "model.safetensors" in str(error) and str(folder) not in str(error) and len(str(error)) < 500  # noqa: PT017
        assert PLACE.search(str(error)), str(error)  # noqa: PT017
        return True
    return False


def test_there_are_at_least_300_malformed_files() -> None:
    assert len(BROKEN) >= 300


def test_every_malformed_file_is_refused(tmp_path: Path) -> None:
    assert [what for what, raw in BROKEN if not refuses(tmp_path, raw)] == []


def test_unusual_files_that_are_right_are_read(tmp_path: Path) -> None:
    assert [what for what, raw in well_formed() if refuses(tmp_path, raw)] == []


def test_what_the_reference_refuses_is_refused(tmp_path: Path) -> None:
    """Random edits of small files: never accepted here and refused by the `safetensors` package."""
    deserialize = pytest.importorskip("safetensors").deserialize
    rng = random.Random(7)
    seeds = [raw for _, raw in well_formed()] + [GOOD]
    accepted, missed = 0, []
    for _ in range(1000):
        raw = edited(rng, rng.choice(seeds))
        if refuses(tmp_path, raw):
            continue
        accepted += 1
        try:
            deserialize(raw)
        except Exception:
            missed.append(raw)
    assert missed == []
    assert accepted > 25, "the edits are too wild to test anything"


def test_the_reference_agrees_about_the_corpus() -> None:
    """What is called right here is right to the package; the rules it leaves to good will are listed."""
    deserialize = pytest.importorskip("safetensors").deserialize

    def reads(raw: bytes) -> bool:
        try:
            deserialize(raw)
        except Exception:
            return False
        return True

    assert [what for what, raw in well_formed() if not reads(raw)] == []
    lenient = {what for what, raw in BROKEN if reads(raw)}
    assert lenient <= {
        *("space before the header", "newline before the header", "tab after the header", "newline after the header"),
        *("same name twice", "same name twice, escaped", "metadata key twice"),
    }


def edited(rng: random.Random, raw: bytes) -> bytes:
    """`raw` with one to three bytes of the header changed, removed or added; the length is put right half the time."""
    header, data = (
        bytearray(raw[8 : 8 + int.from_bytes(raw[:8], "little")]),
        raw[8 + int.from_bytes(raw[:8], "little") :],
    )
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(header) + 1)
        kind = rng.randrange(3)
        if kind == 0 and at < len(header):
            header[at] = rng.choice(b'{}[]",: 0123456789-+.eE\\untfals\x00\xff')
        elif kind == 1 and at < len(header):
            del header[at]
        else:
            header.insert(at, rng.choice(b' 0123456789,"[]{}\n'))
    return file_of(bytes(header), data, None if rng.random() < 0.9 else len(raw) - 8 - len(data))


def test_a_header_of_too_many_tensors_is_refused_in_linear_time(tmp_path: Path) -> None:
    empty = json.dumps(entry(shape=(0,), offsets=(0, 0)), separators=(",", ":"))
    raw = file_of("{" + ",".join(f'"{i}":{empty}' for i in range(131_073)) + "}")
    path = written(tmp_path, raw)
    start = time.process_time()
    with pytest.raises(FormatError, match="more than 131072 tensors"):
        open_safetensors(path)
    assert time.process_time() - start < 10


def test_more_than_eight_dimensions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="9 dimensions"):
        open_safetensors(written(tmp_path, file_of(header_of(a=entry(shape=[1] * 9)), bytes(4))))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, error in [("absent", NotFoundError), ("pipe.safetensors", FormatError), (".", FormatError)]:
        with pytest.raises(error):
            open_safetensors(tmp_path / name)


ESCAPES = [
    *("../x.safetensors", "a/../../x.safetensors", "/etc/passwd", "./x.safetensors", "a//x.safetensors", "..", ".", ""),
    *(
        "C:\\x.safetensors",
        "C:x.safetensors",
        "\\\\host\\x.safetensors",
        "//host/x.safetensors",
        "a\\..\\x.safetensors",
    ),
    *("x.safetensors\0", "x.safetensors.", "x.safetensors ", "CON", "nul.safetensors", "com1.safetensors", "x\n"),
    *("a/", "~/..", "file:///etc/passwd"),
]


@pytest.mark.parametrize("shard", ESCAPES)
def test_a_shard_name_cannot_leave_the_folder(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    with pytest.raises(FormatError, match="must be the name of a file inside the folder"):
        open_safetensors(index_of(folder, {"a": shard}))


def index_of(folder: Path, weight_map: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 4}, "weight_map": weight_map}), encoding="utf-8")
    return path


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    (folder / "x.safetensors").symlink_to(tmp_path / "x.safetensors")
    (folder / "sub").symlink_to(tmp_path)
    for shard in ("x.safetensors", "sub/x.safetensors"):
        with pytest.raises(FormatError, match="link out of the folder"):
            open_safetensors(index_of(folder, {"a": shard}))


def test_a_cache_may_link_a_whole_snapshot_to_one_folder(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "111").write_bytes(GOOD)
    index_of(blobs, {"a": "model-1.safetensors"}).rename(blobs / "222")
    (snapshot / "model-1.safetensors").symlink_to(blobs / "111")
    (snapshot / "model.safetensors.index.json").symlink_to(blobs / "222")
    assert list(open_safetensors(snapshot / "model.safetensors.index.json").tensors) == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", '{"weight_map":[]}', '{"weight_map":{}}', '{"weight_map":{"a":1}}', "{" * 100_000),
        '{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}',
        '{"weight_map":{"a":"x.safetensors"}} x',
        '{"weight_map":{"b":"\\ud800"}}',
        '{"weight_map":{"nothing":"x.safetensors"}}',
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError):
        open_safetensors(path)


def test_an_index_of_a_missing_shard_says_which(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x-00001\.safetensors"):
        open_safetensors(index_of(tmp_path, {"a": "x-00001.safetensors"}))


def test_an_index_over_the_limit_is_not_parsed(tmp_path: Path) -> None:
    path = index_of(tmp_path, {"a": "x"})
    os.truncate(path, (64 << 20) + 1)
    with pytest.raises(WeftError, match="too large"):
        open_safetensors(path)


def test_too_many_shards_are_refused(tmp_path: Path) -> None:
    shards = {f"t{i}": f"s{i}.safetensors" for i in range(4097)}
    with pytest.raises(FormatError, match="more than 4096 shards"):
        open_safetensors(index_of(tmp_path, shards))
