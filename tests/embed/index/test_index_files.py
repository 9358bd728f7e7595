"""A saved index comes back the same; a save that is cut short leaves the old one; a damaged folder is a typed error."""

import contextlib
import json
import os
import threading

import numpy as np
import pytest
from lettered_embedder import FakeEmbedder

import weft
from weft.embed.index import files, records, saving
from weft.errors import BusyError, FingerprintError, FormatError, InputError, NotFoundError


def made(count=40, embedder=None, **options):
    index = weft.Index(16, fingerprint="weft2:" + "0" * 64, embedder=embedder, **options)
    rng = np.random.default_rng(1)
    ids = [i if i % 2 else f"näme {i}" for i in range(count)]
    index.add(ids, rng.standard_normal((count, 16)).astype(np.float32), metadata=[{"n": i} for i in range(count)],
              texts=[f"text\n{i}" if i % 3 else None for i in range(count)])  # fmt: skip
    return index


QUERY = np.linspace(-1, 1, 16, dtype=np.float32)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("options", [{}, {"storage": "f16"}, {"codes": "int8"}, {"codes": "int4", "metric": "dot"},
                                     {"codes": "binary"}, {"metric": "euclidean"},
                                     {"metric": "manhattan"}])  # fmt: skip
def test_what_was_saved_comes_back(tmp_path, options, mapped):
    index = made(**options)
    index.delete([1, 3])
    index.save(tmp_path / "x")
    again = weft.Index.open(tmp_path / "x", mapped=mapped)
    assert again.search(QUERY, 38) == index.search(QUERY, 38) and len(again) == 38
    assert again.search(QUERY, 3, where={"n": {"lt": 9}}) == index.search(QUERY, 3, where={"n": {"lt": 9}})
    assert again.ids == index.ids and again.get(5) == index.get(5)
    assert {**again.info, "read_only": False} == index.info
    if mapped:
        for change in (lambda: again.add("new", QUERY), lambda: again.delete(5), lambda: again.update(5, QUERY)):
            with pytest.raises(InputError, match="read-only"):
                change()
    else:
        again.add("new", QUERY)
        again.save(tmp_path / "x")
        assert np.allclose(weft.Index.open(tmp_path / "x").vector("new"), QUERY, atol=1e-3)
    assert len(os.listdir(tmp_path / "x")) == 1 + len(files.read_header(tmp_path / "x").files)


def test_an_empty_index_too(tmp_path):
    weft.Index(3).save(tmp_path)
    assert len(weft.Index.open(tmp_path)) == 0 and weft.Index.open(tmp_path, mapped=True).search([1.0, 0, 0]) == []


@pytest.mark.parametrize("fatal", range(12))
def test_a_save_that_ends_anywhere_leaves_the_old_index_or_the_new(tmp_path, monkeypatch, fatal):
    """Every system call that makes bytes durable is made to fail in turn, the rename among them."""
    index = made()
    index.save(tmp_path)
    before = index.search(QUERY, 5)
    index.add("new", QUERY)
    calls = 0

    def dying(real):
        def call(*args):
            nonlocal calls
            calls += 1
            if calls > fatal:
                raise OSError("the machine stopped")
            return real(*args)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", dying(os.fsync))
        patched.setattr(files.os, "replace", dying(os.replace))
        with contextlib.suppress(OSError):
            index.save(tmp_path)
    found = weft.Index.open(tmp_path).search(QUERY, 5)
    assert found in (before, index.search(QUERY, 5))
    index.save(tmp_path)
    assert weft.Index.open(tmp_path).search(QUERY, 1)[0].id == "new"


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    index = made()
    index.save(tmp_path)
    before = sorted(os.listdir(tmp_path))

    def full(record):
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "to_line", full)
        with pytest.raises(OSError, match="space"):
            index.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before and len(weft.Index.open(tmp_path)) == 40


def saved_meanwhile(monkeypatch, tmp_path, owner, name, times):
    """An index in `tmp_path` that is saved again, with another row, at the third call of `name`, and so on."""
    index, real, calls = made(), getattr(owner, name), []
    index.save(tmp_path)

    def slow(*args, **options):
        calls.append(args)
        if len(calls) % 5 == 3 and len(calls) < 5 * times:
            index.add(f"new {len(calls)}", QUERY)
            index.save(tmp_path)  # which removes the files that the header named
        return real(*args, **options)

    monkeypatch.setattr(owner, name, slow)


@pytest.mark.parametrize("mapped", [False, True])
def test_an_index_that_is_saved_while_its_files_are_opened_is_the_new_one(tmp_path, monkeypatch, mapped):
    saved_meanwhile(monkeypatch, tmp_path, files, "_opened", 1)
    assert len(weft.Index.open(tmp_path, mapped=mapped)) == 41


@pytest.mark.parametrize("mapped", [False, True])
def test_an_index_that_is_saved_while_it_is_read_is_the_old_one(tmp_path, monkeypatch, mapped):
    saved_meanwhile(monkeypatch, tmp_path, files.Opened, "array", 1)
    opened = weft.Index.open(tmp_path, mapped=mapped)
    assert len(opened) == 40 and len(opened.search(QUERY, 50, where={"n": {"gte": 0}})) == 40


def test_an_index_that_is_saved_all_the_time_is_busy(tmp_path, monkeypatch):
    saved_meanwhile(monkeypatch, tmp_path, files, "_opened", 1000)
    with pytest.raises(BusyError, match="was saved 8 times while"):
        weft.Index.open(tmp_path)


def test_a_filter_reads_the_metadata_of_a_mapped_index_once(tmp_path, monkeypatch):
    index = made(400)
    index.save(tmp_path)
    again, read, real = weft.Index.open(tmp_path, mapped=True), [], records.from_line
    monkeypatch.setattr(records, "from_line", lambda line, row, file: read.append(row) or real(line, row, file))
    for least in (0, 100, 399):
        where = {"n": {"gte": least}}
        assert again.search(QUERY, 5, where=where) == index.search(QUERY, 5, where=where)
    assert len(read) == 400 + 5 + 5 + 1


def test_strays_of_an_hour_ago_are_removed_and_strangers_are_not(tmp_path):
    index = made(3)
    index.save(tmp_path)
    stray, young, stranger = (
        tmp_path / name for name in ("vectors-0123456789abcdef.bin", "norms-0123456789abcdef.bin", "notes.bin")
    )
    for path in (stray, young, stranger):
        path.write_bytes(b"x")
    os.utime(stray, (0, 0))
    index.save(tmp_path)
    assert not stray.exists() and young.exists() and stranger.exists()


def edited(tmp_path, change):
    """A saved index whose header was changed."""
    made(codes="int8").save(tmp_path)
    header = json.loads((tmp_path / "index.json").read_text())
    change(header)
    (tmp_path / "index.json").write_text(json.dumps(header))


def entry(role, **changes):
    return lambda header: header["files"][role].update(changes)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(format="other"),
        lambda header: header.update(version=2),
        lambda header: header.update(count=41),
        lambda header: header.update(count=-1),
        lambda header: header.update(count=2**62),
        lambda header: header.update(count=True),
        lambda header: header.update(dimension=17),
        lambda header: header.update(dimension=0),
        lambda header: header.update(dimension=10**9),
        lambda header: header.update(metric="chebyshev"),
        lambda header: header.update(storage="f8"),
        lambda header: header.update(codes="int3"),
        lambda header: header.update(codes=["int8"]),
        lambda header: header.update(fingerprint=None),
        lambda header: header.update(canary_texts=["a"]),
        lambda header: header.update(canary_texts="a"),
        lambda header: header.update(files=[]),
        lambda header: header["files"].pop("vectors"),
        lambda header: header["files"].pop("records"),
        lambda header: header["files"].update(norms="x"),
        entry("vectors", bytes=5),
        entry("vectors", bytes="5"),
        entry("vectors", name="../../etc/passwd"),
        entry("vectors", name="/etc/passwd"),
        entry("vectors", name="a/b-0123456789abcdef.bin"),
        entry("vectors", name="gone-0123456789abcdef.bin"),
    ],
)
def test_a_header_that_lies_is_a_format_error(tmp_path, change, mapped):
    edited(tmp_path, change)
    with pytest.raises(FormatError):
        weft.Index.open(tmp_path, mapped=mapped)


@pytest.mark.parametrize("role", ["vectors", "norms", "codes", "code_scales", "records", "record_ends", "canaries"])
def test_damage_is_found(tmp_path, role):
    made(codes="int8", embedder=FakeEmbedder()).save(tmp_path)
    path = files.read_header(tmp_path).path(role)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0x40
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="damaged"):
        weft.Index.open(tmp_path)
    path.write_bytes(whole[:-1])
    for mapped in (False, True):
        with pytest.raises(FormatError, match="bytes"):
            weft.Index.open(tmp_path, mapped=mapped)


def test_random_damage_of_any_file_is_an_error_or_an_answer(tmp_path):
    """Without checksums, as a mapped index is opened: bytes that are anything never break more than the answer."""
    made(codes="int8").save(tmp_path)
    rng = np.random.default_rng(7)
    paths = sorted(tmp_path.iterdir())
    for _ in range(150):
        path = paths[rng.integers(len(paths))]
        before = path.read_bytes()
        after = bytearray(before)
        for _ in range(3):
            if after:
                after[rng.integers(len(after))] = rng.integers(256)
        path.write_bytes(after)
        try:
            for mapped in (False, True):
                index = weft.Index.open(tmp_path, mapped=mapped, verify=False)
                index.search(QUERY, 5)
                index.search(QUERY, 5, where={"n": 3})
        except (FormatError, InputError, NotFoundError):
            pass
        path.write_bytes(before)
    assert len(weft.Index.open(tmp_path)) == 40


def test_a_link_is_not_followed(tmp_path):
    made().save(tmp_path)
    path = files.read_header(tmp_path).path("vectors")
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="link"):
        weft.Index.open(tmp_path)


def test_there_may_be_no_index(tmp_path):
    with pytest.raises(NotFoundError):
        weft.Index.open(tmp_path)
    with pytest.raises(NotFoundError):
        weft.Index.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        made().save(tmp_path / "file")


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    foreign = tmp_path / "index.json"
    for content in ('{"my": "data"}', "", "[1, 2"):
        foreign.write_text(content)
        with pytest.raises(InputError, match=r"has an index.json that is not the header of a weft index"):
            made().save(tmp_path, overwrite=True)
        assert foreign.read_text() == content and os.listdir(tmp_path) == ["index.json"]
    for content in ('{"format": "weft-index", "version": 99}', '{"format": "weft-index", "ver'):
        foreign.write_text(content)
        made().save(tmp_path)
        assert len(weft.Index.open(tmp_path)) == 40


def test_an_index_is_not_put_among_files_of_somebody_else(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="other files in it"):
        made().save(tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_what_somebody_else_saved_meanwhile_is_not_lost(tmp_path):
    made().save(tmp_path)
    first, second = weft.Index.open(tmp_path), weft.Index.open(tmp_path)
    first.add("first", QUERY)
    first.save(tmp_path)
    second.add("second", QUERY)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BusyError, match="was changed by another save since"):
        second.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before and "first" in weft.Index.open(tmp_path)
    first.add("more", QUERY)
    first.save(tmp_path)  # which nobody else has saved to since its own save
    second.save(tmp_path / "elsewhere")
    second.save(tmp_path, overwrite=True)
    assert "second" in weft.Index.open(tmp_path) and "first" not in weft.Index.open(tmp_path)
    second.save(tmp_path)
    made(3).save(tmp_path)  # an index that is new replaces whatever is there
    with pytest.raises(BusyError):
        second.save(tmp_path)


def test_a_save_does_not_come_between_the_last_look_and_the_rename_of_another(tmp_path, monkeypatch):
    made().save(tmp_path)
    first, second, look = weft.Index.open(tmp_path), weft.Index.open(tmp_path), files.Writer._check_place
    first.add("first", QUERY)
    second.add("second", QUERY)
    looks, refused, others = [], [], []

    def save():
        with contextlib.suppress(BusyError):
            second.save(tmp_path)
            return
        refused.append(True)

    def looked(writer):
        look(writer)
        looks.append(writer)
        if len(looks) == 2:  # at its beginning, and now
            others.append(threading.Thread(target=save))
            others[0].start()
            others[0].join(0.5)

    monkeypatch.setattr(files.Writer, "_check_place", looked)
    first.save(tmp_path)
    others[0].join()
    assert refused and "first" in weft.Index.open(tmp_path)


def test_a_save_that_ends_while_another_one_writes_is_not_lost(tmp_path, monkeypatch):
    made().save(tmp_path)
    first, second, real = weft.Index.open(tmp_path), weft.Index.open(tmp_path), saving.to_line
    first.add("first", QUERY)
    waiting = [first]

    def slow(record):
        while waiting:
            waiting.pop().save(tmp_path)
        return real(record)

    monkeypatch.setattr(saving, "to_line", slow)
    with pytest.raises(BusyError, match="another save"):
        second.save(tmp_path)
    assert "first" in weft.Index.open(tmp_path)
    assert len(os.listdir(tmp_path)) == 1 + len(files.read_header(tmp_path).files)


@pytest.mark.parametrize("metric, scale", [("cosine", 1e-20), ("cosine", 1e20), ("euclidean", 1e25)])
def test_a_vector_that_ends_every_search_is_named_when_the_index_is_opened(tmp_path, monkeypatch, metric, scale):
    index = made(metric=metric)
    with monkeypatch.context() as patched:  # as an earlier weft took it
        patched.setattr("weft.embed.index.rows.LEAST_NORM", 0.0)
        patched.setattr("weft.embed.index.rows.MOST_NORM", 1e38)
        index.add("bad", QUERY * np.float32(scale))
        index.save(tmp_path)
    with pytest.raises(FormatError, match=r"the vector of id 'bad' .*verify=False, delete the id and save"):
        weft.Index.open(tmp_path)
    rescued = weft.Index.open(tmp_path, verify=False)
    rescued.delete("bad")
    rescued.save(tmp_path)
    assert len(weft.Index.open(tmp_path).search(QUERY, 50)) == 40


@pytest.mark.parametrize("fingerprint, word", [(5, "got 5"), ("x" * 1001, "not 1001")])
def test_a_fingerprint_that_cannot_be_kept_is_refused(fingerprint, word):
    index = weft.Index(16)
    for call in (
        lambda: weft.Index(16, fingerprint=fingerprint),
        lambda: index.add("x", QUERY, fingerprint=fingerprint),
        lambda: index.search(QUERY, fingerprint=fingerprint),
    ):
        with pytest.raises(InputError, match=word):
            call()
    assert index.fingerprint == "" and len(index) == 0


def test_what_is_taken_comes_back(tmp_path):
    index = weft.Index(16, fingerprint=None)
    index.save(tmp_path)
    assert weft.Index.open(tmp_path).fingerprint == ""
    index.add("deep", QUERY, metadata={"a": deep(499)})
    index.add("wide", QUERY, metadata={"a": [[i] for i in range(5000)]})
    for depth in (501, 980, 100_000):
        with pytest.raises(InputError, match="cannot be written as JSON"):
            index.add("deeper", QUERY, metadata={"a": deep(depth)})
    index.save(tmp_path)
    assert weft.Index.open(tmp_path).get("deep").metadata == {"a": deep(499)}


def deep(depth):
    made = 0
    for _ in range(depth):
        made = [made]
    return made


def test_a_folder_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("", None):
        for call in (made().save, weft.Index.open):
            with pytest.raises(InputError, match="path must be a folder"):
                call(path)
    assert os.listdir(tmp_path) == []


def test_a_fifo_among_the_files_is_an_error_and_not_a_wait(tmp_path):
    made().save(tmp_path)
    path = files.read_header(tmp_path).path("records")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match="is not a regular file"):
        weft.Index.open(tmp_path)


def test_canaries_notice_an_embedder_that_changed_behind_its_fingerprint(tmp_path):
    made(embedder=FakeEmbedder()).save(tmp_path)
    assert weft.Index.open(tmp_path).info["canaries"] == 7  # the short ones: it does not say that it cuts
    assert weft.Index.open(tmp_path, embedder=FakeEmbedder()).search_texts("a", 1)
    assert weft.Index.open(tmp_path, embedder=FakeEmbedder(drift=0.02))
    with pytest.raises(FingerprintError, match="canary"):
        weft.Index.open(tmp_path, embedder=FakeEmbedder(drift=1.0))
    with pytest.raises(FingerprintError, match="weft2:ff"):
        weft.Index.open(tmp_path, embedder=FakeEmbedder(fingerprint="weft2:" + "f" * 64))
    with pytest.raises(FingerprintError, match="8 numbers"):
        weft.Index.open(tmp_path, embedder=FakeEmbedder(dimension=8))


OLD = "weft1:" + "0" * 64


def of_before(tmp_path, embedder):
    """An index whose fingerprint an earlier weft made."""
    index = made(embedder=embedder)
    index.fingerprint = OLD
    index.save(tmp_path)


def test_an_index_of_an_earlier_weft_says_so_and_is_taken_over_where_its_canaries_agree(tmp_path):
    of_before(tmp_path, FakeEmbedder())
    with pytest.raises(FingerprintError, match=r"an earlier weft.*adopt=True"):
        weft.Index.open(tmp_path, embedder=FakeEmbedder())
    assert weft.Index.open(tmp_path).fingerprint == OLD
    with pytest.raises(FingerprintError, match="canary"):
        weft.Index.open(tmp_path, embedder=FakeEmbedder(drift=1.0), adopt=True)
    taken = weft.Index.open(tmp_path, embedder=FakeEmbedder(), adopt=True)
    taken.add_texts(["new"], ["a cat"])
    taken.save(tmp_path)
    assert weft.Index.open(tmp_path, embedder=FakeEmbedder()).search_texts("a cat", 1)[0].id == "new"


def test_no_index_is_taken_over_that_has_no_canaries_or_the_fingerprint_of_another_model(tmp_path):
    of_before(tmp_path / "old", None)
    with pytest.raises(FingerprintError, match="canary"):
        weft.Index.open(tmp_path / "old", embedder=FakeEmbedder(), adopt=True)
    made(embedder=FakeEmbedder()).save(tmp_path / "other")
    with pytest.raises(FingerprintError, match="weft2:ff"):
        weft.Index.open(tmp_path / "other", embedder=FakeEmbedder(fingerprint="weft2:" + "f" * 64), adopt=True)
