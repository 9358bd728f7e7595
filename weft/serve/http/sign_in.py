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
from weft.serve.http.faults import no_key
from weft.serve.http.keys import Attempts, Keys, header

if TYPE_CHECKING:
    from weft.serve.http.routes import Scope, Send
    from weft.serve.serving import Serving
    from weft.serve.work.tracking import Call

PATH = "/weft/sign-in"
PAGES = ("/", "/docs", "/lab/")  # people open these; whoever has no key gets the form, and comes back
COOKIE = b"weft_page"
MOST_BYTES = 8192
WRONG = b"That key is not valid for this server."


class SignIn:
    """The form, the cookie, and the requests that the cookie allows."""

    def __init__(self, keys: Keys, attempts: Attempts, serving: Serving) -> None:
        self._keys = keys
        self._attempts = attempts
        self._serving = serving
        self._pass = secrets.token_urlsafe(32).encode()  # the same for everybody: it proves that somebody knew a key
        self._page = Path(__file__).with_name("sign_in.html").read_bytes()
        self._policy = inline_policy(self._page, b"form-action 'self'")

    def opens(self, scope: Scope) -> bool:
        """Whether a request asks for a file of the page and has the cookie."""
        if scope["method"] not in ("GET", "HEAD") or not is_page(scope["path"]):
            return False
        cookies = [part.strip().partition(b"=") for part in (header(scope, b"cookie") or b"").split(b";")]
        return any(name == COOKIE and hmac.compare_digest(value, self._pass) for name, _, value in cookies)

    def wanted(self, scope: Scope) -> bool:
        """Whether a refused request came from a browser that opened the page."""
        return scope["method"] == "GET" and scope["path"] in PAGES and b"text/html" in (header(scope, b"accept") or b"")

    async def answer(self, scope: Scope, call: Call, receive: Receive, send: Send) -> None:
        """Answer the submitted form: redirect to the page with a valid key, else show the form again."""
        if (header(scope, b"content-type") or b"").partition(b";")[0].strip() != b"application/x-www-form-urlencoded":
            raise no_key()
        with self._serving.arrivals.arriving(call) as note:
            limits = self._serving.settings.limits
            body = await read_body(receive, dict(scope["headers"]), MOST_BYTES, limits, note)
        try:
            form = parse_qs(body.decode("ascii"), max_num_fields=4)
        except ValueError:
            form = {}
        given = form.get("key", [""])[0].strip()
        page = form.get("page", [""])[0]
        page = page if page in PAGES else PAGES[0]
        number = self._keys.find(given.encode("utf-8", "replace"))
        if given:
            await self._attempts.judge(scope["client"], number)
        if number is None:
            await self.show(send, page, WRONG)
            return
        secure = b"; Secure" if scope["scheme"] == "https" else b""
        cookie = COOKIE + b"=" + self._pass + b"; Path=/; HttpOnly; SameSite=Lax" + secure
        headers = [(b"location", page.encode()), (b"set-cookie", cookie), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def show(self, send: Send, page: str, words: bytes = b"") -> None:
        """The form, as the body of a 401; it leads back to `page`."""
        body = self._page.replace(b'<p role="alert"></p>', b'<p role="alert">' + words + b"</p>")
        body = body.replace(b'name="page" value="/"', b'name="page" value="' + page.encode() + b'"')
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
    """Whether a path is a page or one of its files, which hold nothing of this server's clients."""
    return path in PAGES or path.startswith(("/page/", "/lab/"))


def inline_policy(page: bytes, more: bytes) -> bytes:
    """The content security policy of a page in one file: its own style and script, by digest, and `more`."""
    found = {}
    for tag in (b"style", b"script"):
        inside = re.search(b"<" + tag + b">(.*?)</" + tag + b">", page, re.DOTALL)
        assert inside is not None
        found[tag] = b"'sha256-" + b64encode(sha256(inside[1]).digest()) + b"'"
    return (
        b"default-src 'none'; style-src %s; script-src %s; img-src data:; base-uri 'none'; frame-ancestors 'none'; %s"
        % (found[b"style"], found[b"script"], more)
    )
