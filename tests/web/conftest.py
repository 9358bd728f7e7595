"""weft.wasm as `make wasm` builds it, in Node and in Chromium, beside Python; skipped where it was not built."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import open_chromium

ROOT = Path(__file__).resolve().parent.parent.parent
RUNTIME = ROOT / "web" / "runtime"
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
        done = subprocess.run(command, input=json.dumps(what), capture_output=True, text=True, timeout=600)
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


class Site:
    """The runtime and some bundles over HTTP: `changed` has bytes for paths that should lie, `held` paths that stop in
    the middle until they are let go, and `asked` what was asked for."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.changed: dict[str, bytes] = {}
        self.held: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                site.asked.append(path)
                top, _, rest = path.lstrip("/").partition("/")
                file = folders[top] / rest if top in folders else HERE / "nothing"
                if path == "/":
                    body: bytes | None = b"<!doctype html><title>weft</title><link rel=icon href=data:,>"
                else:
                    body = site.changed.get(path, file.read_bytes() if file.is_file() else None)
                if body is None:
                    return self.send_error(404)
                self.send_response(200)
                kinds = {".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}
                self.send_header(
                    "content-type",
                    kinds.get(Path(path).suffix, "text/html" if path == "/" else "application/octet-stream"),
                )
                self.send_header("content-length", str(len(body)))
                self.send_header("cache-control", "no-store")
                self.end_headers()
                with contextlib.suppress(OSError):
                    if path in site.held:
                        self.wfile.write(body[: len(body) // 2])
                        site.held[path].wait(60)
                        body = body[len(body) // 2 :]
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for event in self.held.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site(wasm: Path, st_bundle: Path) -> Iterator[Site]:
    opened = Site({"runtime": RUNTIME, "st": st_bundle})
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
