"""A server on this machine that answers as OpenAI's does, or as a test says."""

import base64
import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import weft

Reply = tuple[int, dict[str, str], bytes]


class Endpoint:
    """A server on this machine whose answers a test writes; `asked` are the bodies it got."""

    def __init__(self, embedder: weft.Embedder) -> None:
        self.embedder = embedder
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lines: set[Any] = set()  # who asked, by address
        self.targets: list[tuple[str, str | None]] = []
        self.replies: list[Callable[[dict[str, Any]], Reply]] = []  # before the right ones
        self.headers: dict[str, str] = {}
        self.closing = threading.Event()
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with endpoint._lock:
                    endpoint.lines.add(self.client_address)
                    endpoint.targets.append((self.path, self.headers["proxy-authorization"]))
                    endpoint.asked.append(body)
                    endpoint.keys.append(self.headers["authorization"])
                    reply = endpoint.replies.pop(0) if endpoint.replies else endpoint.right
                status, headers, data = reply(body)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):  # whoever asked may have gone
                    self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def right(self, body: dict[str, Any]) -> Reply:
        vectors = self.embedder.encode(body["input"])
        return self.giving(vectors)

    def giving(self, vectors: np.ndarray) -> Reply:
        data = [{"index": i, "embedding": coded(v)} for i, v in enumerate(vectors)]
        return 200, self.headers, json.dumps({"data": data[::-1]}).encode()  # in any order


def coded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def saying(status: int, body: object = None, **headers: str) -> Callable[[dict[str, Any]], Reply]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (status, names, json.dumps(body or {"error": {"message": "no"}}).encode())


def remote(endpoint: Endpoint, **options: Any) -> tuple[weft.RemoteEmbedder, list[float]]:
    """An embedder of the endpoint, and the waits that it did not make."""
    embedder = weft.RemoteEmbedder("tiny", endpoint.url, "secret", **options)
    waits: list[float] = []
    embedder._wait = lambda line, seconds: waits.append(seconds)
    return embedder, waits
