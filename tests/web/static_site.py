"""A server of static files for pages in Chromium, which can lie, wait, isolate and count."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.resolve().parent.parent
RUNTIME = ROOT / "web" / "runtime"


def type_of(path: str) -> str:
    from weft.serve.admin.lab import TYPES

    return TYPES.get(Path(path).suffix, "application/octet-stream")


class Site:
    """The runtime and some bundles over HTTP: `changed` has bytes for paths that should lie, `held` paths that stop in
    the middle until they are let go, and `asked` what was asked for. `isolated` sends the headers for isolation."""

    def __init__(self, folders: dict[str, Path], *, isolated: bool = False) -> None:
        self.folders = folders
        self.changed: dict[str, bytes] = {}
        self.held: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                path += "index.html" if len(path) > 1 and path.endswith("/") else ""
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
                self.send_header("content-type", "text/html" if path == "/" else type_of(path))
                if isolated:
                    self.send_header("cross-origin-opener-policy", "same-origin")
                    self.send_header("cross-origin-embedder-policy", "require-corp")
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
