"""GET / and /page/NAME: the files of the page, from one folder; no name leads outside it."""

from __future__ import annotations

import re
from pathlib import Path

from weft.serve.http.faults import Fault
from weft.serve.http.routes import Answer, Context, Plain

FOLDER = Path(__file__).resolve().parent.parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}
_NAME = re.compile(r"(?:[a-z0-9_-]+/)?[a-z0-9_-]+(?:\.[a-z0-9]+)+", re.IGNORECASE)
# Only this server's files may run or be fetched; no framing, and no requests to other origins.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    b"connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


async def index(context: Context, _: None) -> Answer:
    return _file("index.html")


async def asset(context: Context, _: None) -> Answer:
    return _file(context.path["name"])


def _file(name: str) -> Answer:
    path = FOLDER / name
    if not _NAME.fullmatch(name) or path.suffix not in TYPES or not path.is_file() or path.is_symlink():
        raise Fault(404, "no such file", kind="not_found_error", code="404")
    return Plain(path.read_bytes(), TYPES[path.suffix], HEADERS)
