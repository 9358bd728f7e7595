"""A GGUF file that is wrong in any field is refused with a clean error, in bounded time and memory."""

import os
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_corpus import GOOD, bombs, boundary_files, good_fields, joined, pairwise_files, single_faults, with_field

from weft.errors import FormatError, UnsupportedError
from weft.weights import StringArray, open_gguf

# What is wrong and where: a key, a tensor or a count, at a byte; the head and the alignment have but one place.
PLACE = re.compile(
    r"(key|tensor|array|value|type|length|count|rank|shape|offset|'.+').*\bat byte \d+|element type \d+"
    r"|general\.alignment|not a GGUF file|version|endian|empty"
)


def refuses(folder: Path, raw: bytes) -> bool:
    """Whether the reader refuses the file; an accepted one must be readable to its last byte."""
    path = folder / "model.gguf"
    path.write_bytes(raw)
    try:
        with open_gguf(path) as file:
            for tensor in file.tensors.values():
                assert tensor.numpy().shape == tensor.shape
            for value in file.metadata.values():
                assert not isinstance(value, StringArray) or len(list(value)) == len(value)
    except (FormatError, UnsupportedError) as error:
        assert "model.gguf" in str(error) and str(folder) not in str(error) and len(str(error)) < 500  # noqa: PT017
        assert PLACE.search(str(error)), str(error)  # noqa: PT017
        return True
    return False


# Changes that leave another file that is right: data that no tensor names, a type of the same size, smaller tensors,
# and a key one byte longer whose type and value then read as zeros.
HARMLESS = {
    "version is 2",
    *(f"tensor count is {n}" for n in (0, 1, 2)),
    *("key scalar.2 length is 9", "key scalar.3 length is 9"),
    *(
        f"type of scalar.{kind}"
        for kind in ("0 is 1", "1 is 0", "2 is 3", "3 is 2", "4 is 5", "5 is 4", "5 is 6", "6 is 5")
    ),
    *(f"type of scalar.{kind}" for kind in ("7 is 0", "7 is 1", "10 is 11", "11 is 10", "11 is 12", "12 is 11")),
    *("element type of numbers is 4", "element type of numbers is 6"),
    *("element type of a is 1", "element type of b is 1", "element type of b is 7"),
    *("ne0 of a is 1", "ne0 of a is 3", "ne1 of a is 1", "ne0 of c is 1", "ne2 of c is 1", "ne2 of c is 2"),
}
HARMLESS_PAIRS = {
    *("ne0 of a is 1, ne1 of a is 1", "ne0 of a is 1, ne1 of a is 8"),
    *("ne0 of b is 1, element type of b is 0", "ne0 of b is 1, element type of b is 1"),
    *(f"tensor count is {n}, alignment is {alignment}" for n in (0, 1) for alignment in (8, 16)),
}


def test_the_good_file_is_read(tmp_path: Path) -> None:
    assert not refuses(tmp_path, GOOD)


def test_every_boundary_value_in_every_field_is_refused(tmp_path: Path) -> None:
    cases = list(boundary_files())
    assert len(cases) > 400
    assert {what for what, raw in cases if not refuses(tmp_path, raw)} <= HARMLESS


def test_two_wrong_fields_are_not_right_together(tmp_path: Path) -> None:
    cases = list(pairwise_files())
    assert len(cases) > 600
    assert {what for what, raw in cases if not refuses(tmp_path, raw)} <= HARMLESS_PAIRS


def test_every_single_fault_is_refused(tmp_path: Path) -> None:
    assert [what for what, raw in single_faults() if not refuses(tmp_path, raw)] == []


def test_bombs_are_refused_quickly_and_in_little_memory(tmp_path: Path) -> None:
    for what, raw in bombs():
        tracemalloc.start()
        start = time.process_time()
        assert refuses(tmp_path, raw), what
        seconds = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seconds < 1 and peak < 64 << 20, f"{what}: {seconds} s, {peak} bytes"


def test_many_keys_with_a_common_prefix_take_linear_time(tmp_path: Path) -> None:
    prefix = b"x" * 200
    pairs = b"".join(
        struct.pack("<Q", 206) + prefix + b"%06d" % i + struct.pack("<I", 0) + b"\0" for i in range(65_536)
    )
    start = time.process_time()
    assert not refuses(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 65_536) + pairs)
    assert time.process_time() - start < 5


def test_a_string_over_the_limit_is_refused(tmp_path: Path) -> None:
    for kind, before in ((8, b""), (9, struct.pack("<IQ", 8, 1))):
        length = (16 << 20) + 1
        value = struct.pack("<I", kind) + before + struct.pack("<Q", length) + bytes(length)
        with pytest.raises(FormatError, match="too long"):
            opened(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + value)


def opened(folder: Path, raw: bytes) -> None:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    open_gguf(path)


def test_metadata_over_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    array = struct.pack("<IIQ", 9, 12, 64 << 20)  # 64 Mi doubles: 512 MiB, all there in a sparse file
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + array)
    os.truncate(path, 1 << 30)
    with pytest.raises(FormatError, match="metadata is over"):
        open_gguf(path)


def test_a_sparse_terabyte_opens_in_no_time_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GOOD)
    try:
        os.truncate(path, 1 << 40)
    except OSError:
        pytest.skip("the file system has no sparse files of this size")
    start = time.process_time()
    open_gguf(path)
    assert time.process_time() - start < 1


def test_big_endian_and_old_versions_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="big-endian"):
        opened(tmp_path, b"GGUF" + struct.pack(">I", 3) + GOOD[8:])
    for version in (0, 1, 4, 1 << 31):
        with pytest.raises(UnsupportedError, match=f"version {version}"):
            opened(tmp_path, with_field("version", version))


def test_an_unknown_element_type_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="element type 9"):
        opened(tmp_path, with_field("element type of b", 9))


def test_errors_say_field_and_byte(tmp_path: Path) -> None:
    at = joined(good_fields()[: [f.name for f in good_fields()].index("rank of b")])
    with pytest.raises(FormatError, match=rf"tensor 'b' has 5 dimensions, at byte {len(at)}; 1 to 4 are"):
        opened(tmp_path, with_field("rank of b", 5))


def test_flipped_bits_never_escape_as_anything_but_errors(tmp_path: Path) -> None:
    rng = random.Random(11)
    refused = 0
    for _ in range(500):
        raw = bytearray(GOOD)
        for _ in range(rng.choice((1, 8, 64))):
            raw[rng.randrange(len(raw) - 108)] ^= 1 << rng.randrange(8)
        refused += refuses(tmp_path, bytes(raw))
    assert 150 < refused < 500


def test_what_the_reference_refuses_is_refused(tmp_path: Path) -> None:
    """Random edits: never accepted here and refused by the `gguf` package's reader."""
    reader = pytest.importorskip("gguf").GGUFReader
    rng = random.Random(12)
    missed = []
    for _ in range(500):
        raw = bytearray(GOOD)
        raw[rng.randrange(4, len(raw))] = rng.choice((0, 1, 2, 4, 8, 16, 32, 127, 128, 255))
        if refuses(tmp_path, bytes(raw)):
            continue
        try:
            reader(tmp_path / "model.gguf")
        except Exception as error:
            missed.append((bytes(raw), error))
    assert missed == []
