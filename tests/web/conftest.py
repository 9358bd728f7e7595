"""weft.wasm as `make wasm` builds it, in Node and in Chromium, beside Python; skipped where it was not built."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import open_chromium
from soaking import SOAK
from static_site import RUNTIME, Site

HERE = Path(__file__).parent
Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def wasm() -> Path:
    module = RUNTIME / "weft.wasm"
    if not module.is_file():
        pytest.skip("weft.wasm is not built here: `make wasm` builds it")
    return module


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed (Debian: apt-get install nodejs); weft.wasm is not tested there")
    return found


@pytest.fixture(scope="session")
def in_node(wasm: Path, node: str) -> Call:
    """`in_node(bundle, texts=[...])`: what tests/web/calls.mjs answers; each call is a process of its own."""

    def call(bundle: Path, **what: Any) -> dict[str, Any]:
        command = [node, str(HERE / "calls.mjs"), str(RUNTIME), str(bundle)]
        done = subprocess.run(
            command, input=json.dumps(what), capture_output=True, text=True, timeout=7200 if SOAK else 900
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture(scope="session")
def st_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedder: first-token pooling, a dense layer, prompts, at most 48 tokens."""
    from tiny_st import write_st_folder

    return write_st_folder(tmp_path_factory.mktemp("st"), vocab_size=230)


@pytest.fixture(scope="session")
def st_bundle(st_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from weft.export import export

    return export(str(st_folder), tmp_path_factory.mktemp("bundle") / "st.weft", compute="f32").path


@pytest.fixture
def isolated() -> bool:
    """Whether pages of the site are isolated; a test says so by a parameter of this name."""
    return False


@pytest.fixture
def site(wasm: Path, st_bundle: Path, isolated: bool) -> Iterator[Site]:
    opened = Site({"runtime": RUNTIME, "st": st_bundle}, isolated=isolated)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def chromium(wasm: Path) -> Iterator[Any]:
    with open_chromium("weft.wasm is not tested in a browser") as browser:
        yield browser


@pytest.fixture
def page(chromium: Any, site: Site) -> Iterator[Any]:
    """A page of the site in a fresh profile. An error that nobody caught fails the test."""
    context = chromium.new_context()
    context.set_default_timeout(120_000)
    opened, wrong = context.new_page(), []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(f"{site.url}/")
    yield opened
    context.close()
    assert not wrong
