"""A server on this machine that speaks three dialects, and fails, stalls, refuses and lies as a test says.

It keeps its own books: what it charged for every request (`billed`), and which replies were acknowledged. A worker asks
one thing after the other on a line, and puts a reply on disk before it asks again, so a second request on a connection
says that the reply before it is safe: `broken_promises` has the requests that were asked again all the same.
"""

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PRICE_IN, PRICE_OUT = 3_000_000, 15_000_000  # picounits a token: 3 and 15 for a million
LABELS = ("refund", "delivery", "account")


def right_label(text: str) -> str:
    """The label that this teacher gives to a text: a word decides, else its digest."""
    for label in LABELS:
        if label in text:
            return label
    return LABELS[sha256(text.encode()).digest()[0] % len(LABELS)]


class Books:
    """What the server knows of itself."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # digests of all requests
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.billed = 0
        self.most = 0  # under way at once
        self.under_way = 0
        self.good: dict[str, int] = {}  # complete, readable replies by request
        self.acknowledged: set[str] = set()
        self.broken_promises: list[str] = []


class TeacherServer:
    """`faults` draws what becomes of a request: "ok", or one of the names below, from a generator and the request's
    number."""

    def __init__(self, faults: Callable[[int], str] = lambda number: "ok", delay_s: float = 0.0) -> None:
        self.books, self.faults, self.delay_s = Books(), faults, delay_s
        self.stall_s = 5.0
        self.answer: Callable[[str], str] = lambda prompt: right_label(prompt.rsplit("Text:", 1)[-1])
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            before = ""  # the request on this connection whose good reply was sent

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                digest = sha256(self.path.encode() + data).hexdigest()
                body = json.loads(data)
                with server.lock:
                    books = server.books
                    if self.before:
                        books.acknowledged.add(self.before)
                    if digest in books.acknowledged:
                        books.broken_promises.append(digest)
                    number = len(books.asked)
                    books.asked.append(digest)
                    books.bodies.append(body)
                    books.heads.append({name.lower(): value for name, value in self.headers.items()})
                    books.paths.append(self.path)
                    books.times.append(time.monotonic())
                    books.under_way += 1
                    books.most = max(books.most, books.under_way)
                self.before = ""
                time.sleep(server.delay_s)
                try:
                    if server.serve(self, body, server.faults(number), digest):
                        self.before = digest
                except OSError:
                    self.close_connection = True
                finally:
                    with server.lock:
                        server.books.under_way -= 1

            def log_message(self, *arguments: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def charge(self, tokens_in: int, tokens_out: int) -> None:
        with self.lock:
            self.books.billed += tokens_in * PRICE_IN + tokens_out * PRICE_OUT

    def serve(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], fault: str, digest: str) -> bool:
        """Answer; True if a complete and readable reply was sent."""
        if fault in ("429", "503", "400", "401", "302"):
            headers = {"retry-after": "0.05"} if fault in ("429", "503") else {}
            self.send(handler, int(fault), {"error": {"message": f"fault {fault}"}}, headers)
            return False
        prompt, most = read_prompt(handler.path, body)
        text = self.answer(prompt)
        tokens_in, tokens_out = len(prompt.encode()) // 3 + 12, min(most, len(text.encode()) // 3 + 1)
        self.charge(tokens_in, tokens_out)  # from here on it costs, whatever the client gets
        reply = written(handler.path, text, tokens_in, tokens_out, body)
        if fault == "500":
            self.send(handler, 500, {"error": {"message": "internal"}})
        elif fault == "drop":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "stall":
            time.sleep(self.stall_s)
        elif fault == "drip":
            self.drip(handler, reply)
        elif fault == "short":
            data = json.dumps(reply).encode()
            self.head(handler, 200, len(data))
            handler.wfile.write(data[: len(data) // 2])
            handler.close_connection = True
        elif fault == "notjson":
            self.send_bytes(handler, 200, b'{"choices": [{"message": {"content": "refu')
        elif fault == "empty":
            self.send(handler, 200, {})
        else:
            if fault.startswith("usage"):
                lie(reply, fault)
            with self.lock:
                self.books.good[digest] = self.books.good.get(digest, 0) + 1
            self.send(handler, 200, reply)
            return True
        return False

    def drip(self, handler: BaseHTTPRequestHandler, reply: Any) -> None:
        """One byte now and then: never silent for long, and never done."""
        data = json.dumps(reply).encode()
        self.head(handler, 200, len(data))
        for byte in data:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.1)

    def send(self, handler: Any, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.send_bytes(handler, status, json.dumps(body).encode(), headers)

    def send_bytes(self, handler: Any, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.head(handler, status, len(data), headers)
        handler.wfile.write(data)

    def head(self, handler: Any, status: int, length: int, headers: dict[str, str] | None = None) -> None:
        handler.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(length)}.items():
            handler.send_header(name, value)
        handler.end_headers()


def read_prompt(path: str, body: dict[str, Any]) -> tuple[str, int]:
    """All text of a request, and the most tokens of its answer."""
    if path.endswith(":generateContent"):
        parts = [body.get("systemInstruction", {"parts": []}), *body["contents"]]
        return "".join(one["text"] for part in parts for one in part["parts"]), body["generationConfig"][
            "maxOutputTokens"
        ]
    text = body.get("system", "") + "".join(one["content"] for one in body["messages"])
    return text, body.get("max_tokens") or body["max_completion_tokens"]


def written(path: str, text: str, tokens_in: int, tokens_out: int, body: dict[str, Any]) -> dict[str, Any]:
    """A reply in the dialect of the path."""
    if path.endswith("/chat/completions"):
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if body.get("logprobs"):
            top = [{"token": text, "logprob": -0.1}, {"token": "other", "logprob": -2.5}][: body["top_logprobs"]]
            choice["logprobs"] = {"content": [{"token": text, "logprob": -0.1, "top_logprobs": top}]}
        return {"choices": [choice], "usage": usage}
    if path.endswith("/v1/messages"):
        usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
        return {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage}
    assert path.endswith(":generateContent"), path
    usage = {"promptTokenCount": tokens_in, "candidatesTokenCount": tokens_out}
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}


def lie(reply: dict[str, Any], how: str) -> None:
    """Change what a reply says of its tokens."""
    name = "usage" if "usage" in reply else "usageMetadata"
    wrong = {"usage_none": None, "usage_zero": 0, "usage_text": "12", "usage_below": -5, "usage_half": 0.5}[how]
    reply[name] = None if wrong is None else dict.fromkeys(reply[name], wrong)


FAULTS = (
    "429",
    "503",
    "500",
    "drop",
    "short",
    "notjson",
    "empty",
    "usage_none",
    "usage_zero",
    "usage_text",
    "usage_below",
)


def troubled(seed: int, share: float, faults: tuple[str, ...] = FAULTS) -> Callable[[int], str]:
    """A fault for a `share` of all requests."""

    def draw(number: int) -> str:
        own = random.Random(f"{seed} {number}")
        return own.choice(faults) if own.random() < share else "ok"

    return draw
