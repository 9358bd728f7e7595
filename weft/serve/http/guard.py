"""The checks that every request passes before a route sees it: limits, Host, Origin, key; the headers of every answer.

All of it is in one place and denies by default, so that a route cannot forget it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.exceptions import HTTPException

from weft.serve.http.bodies import Disconnected, Receive
from weft.serve.http.faults import Fault, no_key, shape_for, too_busy, unavailable, wrong_key
from weft.serve.http.keys import Attempts, Keys, header, key_in
from weft.serve.http.routes import Scope, Send, logged_fault, send_fault
from weft.serve.http.sign_in import PATH as SIGN_IN
from weft.serve.http.sign_in import SignIn
from weft.serve.openai.refusals import refusal_of
from weft.serve.settings import is_address, is_loopback
from weft.serve.work.tracking import Call, tenant_of

if TYPE_CHECKING:
    from weft.serve.http.connection import Connection
    from weft.serve.serving import Serving

log = logging.getLogger("weft.serve")

_ID = re.compile(rb"[\w.-]{1,64}", re.ASCII)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# What a page of an allowed origin may read of an answer, beside its body.
EXPOSED = (
    b"x-request-id, request-id, retry-after, weft-fingerprint, "
    b"x-weft-ignored, x-weft-stream, x-weft-tools, x-weft-version"
)
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
OPEN_PATHS = ("/health",)  # answered without a key
ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
LINGER_S = 1.0  # for a client that is still sending to read that its connection is refused

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: App, serving: Serving) -> None:
        self._app = app
        self._serving = serving
        self._keys = Keys(serving.settings.keys)
        self._attempts = Attempts(serving.settings.limits.connections // 4)
        self._sign_in = SignIn(self._keys, self._attempts, serving)
        self._hosts = {host.lower().rstrip(".") for host in (serving.settings.host, *serving.settings.allowed_hosts)}
        self._origins = {origin.lower().rstrip("/").encode() for origin in serving.settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "(other)"  # clients must not create new labels
        call = scope["weft.call"] = Call(_request_id(scope), "(none)", method)
        connection: Connection = scope["state"]["connection"]
        call.abort = connection.abort
        call.arrived = lambda: connection.body_is_whole
        outgoing = _Outgoing(send, self._added(scope, call))
        calls = self._serving.tracking.calls
        calls.add(call)
        try:
            if connection.excess:
                await self._refuse_connection(receive, outgoing, shape_for(scope["path"]))
            elif connection.refusal is not None:
                raise connection.refusal
            elif not await self._preflight(scope, outgoing):
                await self._pass(scope, call, receive, outgoing)
        except HTTPException as error:
            phrase = _PHRASES.get(error.status_code, error.detail)
            fault = refusal_of(scope["path"]) or Fault(error.status_code, phrase, code=str(error.status_code))
            await send_fault(outgoing, fault, shape_for(scope["path"]))
        except Disconnected:
            call.finish_reason = "disconnected"
        except Exception as error:
            if not outgoing.status:
                await send_fault(outgoing, logged_fault(error, call), shape_for(scope["path"]))
            else:
                logged_fault(error, call)
        finally:
            calls.discard(call)
            self._note(call, outgoing.status, scope)

    async def _pass(self, scope: Scope, call: Call, receive: Receive, send: Send) -> None:
        """Check a request and run its route; a browser without a key gets the sign-in form."""
        self._check_sizes(scope)
        self._check_host(scope)
        self._check_origin(scope)
        if self._keys and scope["path"] == SIGN_IN and scope["method"] == "POST":
            call.route = SIGN_IN
            await _endable(call, self._sign_in.answer(scope, call, receive, send))
            return
        try:
            await _endable(call, self._check_key(scope, call))
        except Fault:
            if not self._sign_in.wanted(scope):
                raise
            await self._sign_in.show(send, scope["path"])
            return
        self._check_draining(scope)
        await self._app(scope, receive, send)

    def _added(self, scope: Scope, call: Call) -> list[tuple[bytes, bytes]]:
        added = [*ALWAYS, (b"x-request-id", call.id.encode())]
        if scope["path"].startswith("/v1/messages"):
            added.append((b"request-id", call.id.encode()))  # the header that Anthropic's clients read
        origin = header(scope, b"origin")
        if origin is not None and origin.lower() in self._origins:
            added += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", EXPOSED),
                (b"vary", b"origin"),
            ]
        return added

    def _check_draining(self, scope: Scope) -> None:
        serving = self._serving
        if serving.tracking.draining and scope["path"] not in ("/health", "/ready"):
            raise unavailable("the server is shutting down", "shutting_down", retry_after_s=10)

    async def _refuse_connection(self, receive: Receive, send: Send, shape: str) -> None:
        """Answer 429 and close. What the client still sends is read for a moment: closing with unread bytes would
        reset the connection, and the client might never see the answer."""
        limit = self._serving.settings.limits.connections

        async def hold_last(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"connection", b"close"))
            await send({**message, "more_body": True})

        async def read_rest() -> None:
            while (await receive()).get("more_body"):
                pass

        await send_fault(hold_last, too_busy(f"all {limit} connections of this server are in use"), shape)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read_rest(), LINGER_S)
        await send({"type": "http.response.body", "body": b""})

    def _check_sizes(self, scope: Scope) -> None:
        limits = self._serving.settings.limits
        if len(scope["headers"]) > limits.headers:
            raise Fault(431, f"the request has over {limits.headers} headers", code="headers_too_large")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > limits.uri_bytes:
            raise Fault(414, f"the URL is over {limits.uri_bytes} bytes", code="uri_too_long")

    def _check_host(self, scope: Scope) -> None:
        """Accept only names that are known to mean this server: with DNS rebinding, a foreign page's requests carry
        that page's host name. On a loopback address these are the names of this machine; elsewhere any IP address too,
        since no foreign page has one as its name. Where clients need a key, a foreign page has none: any name will do.
        """
        settings = self._serving.settings
        if settings.socket is not None:  # no web page can reach a Unix socket
            return
        if settings.keys and not settings.loopback:
            return
        values = [value for name, value in scope["headers"] if name == b"host"]
        host = host_of(values[0].decode("latin-1")) if len(values) == 1 else None
        if host is None:
            raise Fault(403, "the Host header is missing or malformed", code="host_not_allowed")
        if not (is_loopback(host) or host in self._hosts or (not settings.loopback and is_address(host))):
            raise Fault(
                403,
                f"this server does not answer to the host name {host:.100}; to allow it, start the server with "
                f"--allowed-host {host:.100}",
                code="host_not_allowed",
            )

    def _check_origin(self, scope: Scope) -> None:
        """Refuse requests that a browser makes for pages of other origins. Where they carry no Origin, as those for
        images do, browsers say in Sec-Fetch-Site that they come from elsewhere; following a link is allowed."""
        origin = header(scope, b"origin")
        if origin is None:
            site, mode = header(scope, b"sec-fetch-site"), header(scope, b"sec-fetch-mode")
            if site in (b"cross-site", b"same-site") and mode != b"navigate":
                raise _foreign_origin()
            return
        if origin.lower() in self._origins:
            return
        own = (header(scope, b"host") or b"").decode("latin-1").lower()
        try:
            sent = urlsplit(origin.decode("latin-1").lower())
        except ValueError:
            sent = urlsplit("")
        if sent.scheme not in ("http", "https") or not own or sent.netloc != own:
            raise _foreign_origin()

    async def _check_key(self, scope: Scope, call: Call) -> None:
        if not self._keys:
            return
        if scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS:
            return
        given = key_in(scope)
        number = self._keys.find(given)
        if given:
            await self._attempts.judge(scope["client"], number)
        if number is None:
            if self._sign_in.opens(scope):
                return
            raise wrong_key() if given else no_key()
        call.tenant = tenant_of(number)

    async def _preflight(self, scope: Scope, send: Send) -> bool:
        """Answer a CORS preflight request, for origins that were allowed by name; whether it was one.

        Such a page may send any header, since each client library has its own (x-stainless-*, anthropic-*, openai-*).
        """
        if scope["method"] != "OPTIONS" or header(scope, b"access-control-request-method") is None:
            return False
        self._check_host(scope)
        if (header(scope, b"origin") or b"").lower() not in self._origins:
            raise _foreign_origin()
        allowed = [
            (b"access-control-allow-methods", ", ".join(METHODS).encode()),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        wanted = (header(scope, b"access-control-request-headers") or b"").strip()
        if _TOKENS.fullmatch(wanted):
            allowed.append((b"access-control-allow-headers", wanted))
        if header(scope, b"access-control-request-private-network") == b"true":  # a public page that asks a private one
            allowed.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": allowed})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _note(self, call: Call, status: int, scope: Scope) -> None:
        """Log and measure an answer. Nothing that a client wrote is recorded except ids and counts."""
        took = time.monotonic() - call.started
        metrics = self._serving.metrics
        metrics.count("http_requests_total", route=call.route, method=call.method, status=str(status))
        metrics.observe("http_request_duration_seconds", took, route=call.route)
        facts: dict[str, Any] = {
            "request_id": call.id,
            "method": call.method,
            "route": call.route,
            "status": status,
            "ms": round(took * 1000, 1),
        }
        if call.model:
            facts |= {"model": call.model, "prompt_tokens": call.prompt_tokens, "output_tokens": call.output_tokens}
            facts |= {"cached_tokens": call.cached_tokens, "finish_reason": call.finish_reason}
        if call.tenant:
            facts["tenant"] = call.tenant
        log.info("request", extra=facts)
        if self._serving.spans is not None:
            self._serving.spans.note(call, status, dict(scope["headers"]))


_PHRASES = {
    404: "no such path; /openapi.json lists all routes",
    405: "this path does not support that method; /openapi.json lists all routes",
}


class _Outgoing:
    """`send` that adds headers to every answer and remembers its status."""

    def __init__(self, send: Send, added: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._added = added
        self.status = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message.get("headers", [])}
            added = [(name, value) for name, value in self._added if name not in own]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await self._send(message)


def _foreign_origin() -> Fault:
    message = (
        "requests from pages of other origins are refused; start the server with --allow-origin ORIGIN to allow one"
    )
    return Fault(403, message, code="origin_refused")


async def _endable(call: Call, work: Awaitable[None]) -> None:
    """Wait for `work`, which the server may end with a fault, as when it shuts down."""
    call.task = asyncio.current_task()
    try:
        await work
    except asyncio.CancelledError:
        if call.ending is None:
            raise
        raise call.ending from None
    finally:
        call.task = None


def _request_id(scope: Scope) -> str:
    given = header(scope, b"x-request-id")
    return given.decode() if given is not None and _ID.fullmatch(given) else f"req_{uuid4().hex}"


def host_of(header: str) -> str | None:
    """The host of a Host header, in lower case and without its port; None if it is malformed."""
    text = header.strip().lower()
    found = re.fullmatch(r"(\[[0-9a-f:.%]+\]|[a-z0-9._-]+)(?::\d{1,5})?", text)
    return found[1].strip("[]").rstrip(".") if found else None
