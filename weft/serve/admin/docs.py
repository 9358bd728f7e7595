"""GET /docs: a page that shows /openapi.json, in one file that loads nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from weft.serve.http.routes import Answer, Context, Plain
from weft.serve.http.sign_in import inline_policy

_PAGE = Path(__file__).with_name("docs.html").read_bytes()
_HEADERS = (
    (b"content-security-policy", inline_policy(_PAGE, b"connect-src 'self'; form-action 'none'")),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-cache"),
)


async def docs(context: Context, _: None) -> Answer:
    return Plain(_PAGE, "text/html; charset=utf-8", _HEADERS)
