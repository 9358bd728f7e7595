"""GET /lab/NAME: the page with models that run in the browser, and its bundles, from the folder of --lab.

The headers isolate the page (threads and shared memory need that), and let it compile WebAssembly, which the policy
of the page at / does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from weft.serve.admin import page
from weft.serve.http.faults import Fault
from weft.serve.http.routes import Answer, Context, Send
from weft.serve.work.tracking import Call

TYPES = {
    **page.TYPES,
    ".webmanifest": "application/manifest+json",
    ".wasm": "application/wasm",
    ".bin": "application/octet-stream",
}
_NAME = re.compile(r"(?:[a-z0-9_-][a-z0-9_.-]*/){0,3}[a-z0-9_-]+(?:[.-][a-z0-9_]+)+", re.IGNORECASE)
POLICY = (
    b"default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; manifest-src 'self'; connect-src 'self' blob:; form-action 'none'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
CHUNK_BYTES = 1 << 20


@dataclass
class File:
    """A file, read and sent in parts: a bundle's weights have up to gigabytes."""

    path: Path
    media_type: str

    async def send(self, send: Send, call: Call) -> None:
        with await asyncio.to_thread(self.path.open, "rb") as opened:
            left = os.fstat(opened.fileno()).st_size
            sizes = [(b"content-type", self.media_type.encode()), (b"content-length", str(left).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": [*sizes, *HEADERS]})
            while left > 0:
                part = await asyncio.to_thread(opened.read, min(CHUNK_BYTES, left))
                if not part:  # the file became shorter: the client sees that the answer is not whole
                    call.abort()
                    return
                left -= len(part)
                call.sending_since = time.monotonic()
                await send({"type": "http.response.body", "body": part, "more_body": True})
                call.sending_since = None
            await send({"type": "http.response.body", "body": b""})


@dataclass
class Moved:
    """A redirect within this server."""

    to: bytes

    async def send(self, send: Send, call: Call) -> None:
        headers = [(b"location", self.to), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 308, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def index(context: Context, _: None) -> Answer:
    _folder(context)
    return Moved(b"/lab/")


async def file(context: Context, _: None) -> Answer:
    folder = _folder(context)
    name = context.path["name"] or "index.html"
    path = folder / name
    if not _NAME.fullmatch(name) or path.suffix not in TYPES or not path.is_file():
        raise Fault(404, "no such file", kind="not_found_error", code="404")
    if folder.resolve() not in path.resolve().parents:
        raise Fault(404, "no such file", kind="not_found_error", code="404")
    return File(path, TYPES[path.suffix])


def _folder(context: Context) -> Path:
    folder = context.serving.settings.lab_dir
    if folder is None:
        reason = "this server does not host the lab; start it with --lab FOLDER"
        raise Fault(404, reason, kind="not_found_error", code="404")
    return folder
