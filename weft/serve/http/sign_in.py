"""Sign-in to the page of a server with keys: without a key, `/` answers 401 with a form as its body.

The form's key is used twice. The browser tab keeps it, and the page sends it with every request, as any client does.
The server exchanges it for a cookie that opens the page's files and nothing else: a browser sends cookies to every port
of a machine, so the cookie must not be worth stealing.
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from weft.serve.http.bodies import Receive, read_body
from weft.serve.http.faults import Fault
from weft.serve.http.keys import Keys, header

if TYPE_CHECKING:
    from weft.serve.http.routes import Scope, Send
    from weft.serve.settings import Limits

PATH = "/weft/sign-in"
COOKIE = b"weft_page"
MOST_BYTES = 8192
WRONG = b"That key is not valid for this server."


class SignIn:
    """The form, the cookie, and the requests that the cookie allows."""

    def __init__(self, keys: Keys, limits: Limits) -> None:
        self._keys = keys
        self._limits = limits
        self._pass = secrets.token_urlsafe(32).encode()  # the same for everybody: it proves that somebody knew a key
        self._page = Path(__file__).with_name("sign_in.html").read_bytes()
        self._policy = _policy(self._page)

    def opens(self, scope: Scope) -> bool:
        """Whether a request asks for a file of the page and has the cookie."""
        if scope["method"] not in ("GET", "HEAD") or not is_page(scope["path"]):
            return False
        cookies = [part.strip().partition(b"=") for part in (header(scope, b"cookie") or b"").split(b";")]
        return any(name == COOKIE and hmac.compare_digest(value, self._pass) for name, _, value in cookies)

    def wanted(self, scope: Scope) -> bool:
        """Whether a refused request came from a browser that opened the page."""
        return scope["method"] == "GET" and scope["path"] == "/" and b"text/html" in (header(scope, b"accept") or b"")

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the submitted form: redirect to the page with a valid key, else show the form again."""
        if (header(scope, b"content-type") or b"").partition(b";")[0].strip() != b"application/x-www-form-urlencoded":
            raise Fault(
                401,
                "an API key is required: send the header Authorization: Bearer KEY",
                kind="authentication_error",
                code="no_key",
            )
        body = await read_body(receive, dict(scope["headers"]), MOST_BYTES, self._limits)
        try:
            given = parse_qs(body.decode("ascii"), max_num_fields=4).get("key", [""])[0].strip()
        except ValueError:
            given = ""
        if self._keys.find(given.encode("utf-8", "replace")) is None:
            await self.show(send, WRONG)
            return
        cookie = COOKIE + b"=" + self._pass + b"; Path=/; HttpOnly; SameSite=Lax"
        headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def show(self, send: Send, words: bytes = b"") -> None:
        """The form, as the body of a 401."""
        body = self._page.replace(b'<p role="alert"></p>', b'<p role="alert">' + words + b"</p>")
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"content-security-policy", self._policy),
            (b"x-frame-options", b"DENY"),
            (b"referrer-policy", b"same-origin"),  # otherwise the browser sends no Origin with the form
            (b"www-authenticate", b"Bearer"),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def is_page(path: str) -> bool:
    """Whether a path is the page or one of its files."""
    return path == "/" or path.startswith("/page/")


def _policy(page: bytes) -> bytes:
    """The content security policy of the form: its own style and script, by digest, and submitting to this server."""
    found = {}
    for tag in (b"style", b"script"):
        inside = re.search(b"<" + tag + b">(.*?)</" + tag + b">", page, re.DOTALL)
        assert inside is not None
        found[tag] = b"'sha256-" + b64encode(sha256(inside[1]).digest()) + b"'"
    return (
        b"default-src 'none'; style-src %s; script-src %s; img-src data:; form-action 'self'; base-uri 'none'; "
        b"frame-ancestors 'none'" % (found[b"style"], found[b"script"])
    )
