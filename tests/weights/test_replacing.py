"""A file takes its name when it is whole: through links, with the mode it had, and in the place of no pipe."""

import os
import stat
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.weights.files import replacing, replacing_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with replacing(target) as out:
        out.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new" and names(tmp_path) == ["a.bin"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(target) as out:
        out.write(b"new" * (1 // 0))
    assert target.read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "x.bin").symlink_to("real/x.bin")
    for content in (b"first", b"second"):  # it leads nowhere yet, then to a file
        with replacing(tmp_path / "x.bin") as out:
            out.write(content)
        assert (tmp_path / "x.bin").is_symlink() and (tmp_path / "real" / "x.bin").read_bytes() == content
        assert names(tmp_path / "real") == ["x.bin"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_what_is_replaced_keeps_its_mode_and_is_never_open_to_others(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "private"
    target.write_bytes(b"old")
    target.chmod(mode)
    with replacing_path(target) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new" and stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    with replacing(tmp_path / "a"):
        pass
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    for name, said in (("pipe", r"`-o -`"), ("link", "is a pipe, a device"), ("folder", "is a folder")):
        with pytest.raises(InputError, match=said), replacing(tmp_path / name):
            pytest.fail("it was opened")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and names(tmp_path) == ["folder", "link", "pipe"]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no names of open files on this system")
def test_an_open_file_is_not_replaced_by_its_name(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as log:
        log.write(b"before")
        log.flush()
        with pytest.raises(InputError, match="an open file"), replacing(f"/dev/fd/{log.fileno()}"):
            pass
    assert (tmp_path / "log").read_bytes() == b"before" and names(tmp_path) == ["log"]
