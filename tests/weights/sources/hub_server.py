"""A hub on the loopback interface: the listing, the files, and a switch for every way a server can misbehave."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Behaviour:
    """What to do wrong. Counters go down to nothing, so a failure can be made to pass."""

    ignore_range: bool = False
    drop_after: int | None = None  # bytes of each body to send before the connection is cut
    drops: int = 10**9  # how many bodies to cut
    wrong_bytes: bool = False
    wrong_range: bool = False  # 206 with a Content-Range that was not asked for
    bare_listing: bool = False  # a mirror that lists names only
    redirect_to: str | None = None  # address of another server that has the bytes of large files
    moved: dict[str, str] = field(default_factory=dict)  # paths of this server that lead to others
    statuses: list[int] = field(default_factory=list)  # answers to give before behaving; 200 behaves
    extra_names: list[str] = field(default_factory=list)


class Hub:
    """Files of one repository; those in `large` are described as large-file storage does."""

    def __init__(self, repo: str, files: dict[str, bytes], large: tuple[str, ...] = ()) -> None:
        self.repo, self.files, self.large = repo, files, large
        self.commit = COMMIT
        self.behaviour = Behaviour()
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bytes_sent = 0
        self.address = ""

    def paths(self, method: str = "GET") -> list[str]:
        return [path for given, path, _ in self.seen if given == method]

    def listing(self) -> dict[str, object]:
        rows: list[dict[str, object]] = []
        for name in [*self.files, *self.behaviour.extra_names]:
            data = self.files.get(name, b"x")
            row: dict[str, object] = {"rfilename": name}
            if not self.behaviour.bare_listing:
                row |= {"size": len(data), "blobId": git_sha1(data)}
                if name in self.large:
                    row["lfs"] = {"sha256": sha256(data), "size": len(data)}
            rows.append(row)
        return {"sha": self.commit, "siblings": rows}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub.seen.append((self.command, self.path, dict(self.headers)))
        if self.hub.behaviour.statuses and (status := self.hub.behaviour.statuses.pop(0)) != 200:
            self._send(status, b"busy", {})
            return
        path = unquote(urlsplit(self.path).path)
        if path in self.hub.behaviour.moved:
            self._send(307, b"", {"Location": self.hub.behaviour.moved[path]})
            return
        path = path.replace("/resolve/main/", f"/resolve/{self.hub.commit}/")
        resolve = f"/{self.hub.repo}/resolve/{self.hub.commit}/"
        if path.startswith(f"/api/models/{self.hub.repo}/revision/"):
            if path.rsplit("/", 1)[1] in ("main", self.hub.commit):
                self._send(200, json.dumps(self.hub.listing()).encode(), {})
                return
        elif path.startswith(resolve) and path.removeprefix(resolve) in self.hub.files:
            self._file(path.removeprefix(resolve))
            return
        self._send(404, b"no", {})

    def _file(self, name: str) -> None:
        hub, behaviour = self.hub, self.hub.behaviour
        data = hub.files[name]
        headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{git_sha1(data)}"'}
        if name in hub.large:
            headers |= {"X-Linked-ETag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        if behaviour.redirect_to and name in hub.large:
            self._send(302, b"", {**headers, "Location": f"{behaviour.redirect_to}{self.path}"})
            return
        if behaviour.wrong_bytes:
            data = bytes([data[0] ^ 1]) + data[1:]
        start, status = 0, 200
        asked = self.headers.get("Range")
        if asked and not behaviour.ignore_range:
            start, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            shown = start - 1 if behaviour.wrong_range else start
            headers["Content-Range"] = f"bytes {shown}-{len(data) - 1}/{len(data)}"
        self._send(status, data[start:], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        behaviour = self.hub.behaviour
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = behaviour.drop_after
        if status in (200, 206) and "ETag" in headers and cut is not None and behaviour.drops > 0 and cut < len(body):
            behaviour.drops -= 1
            body = body[:cut]
            self.close_connection = True
        self.wfile.write(body)
        self.hub.bytes_sent += len(body) if "ETag" in headers else 0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the play."""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, answering on a free port until the block ends."""
    handler = type("Bound", (Handler,), {"hub": hub})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
