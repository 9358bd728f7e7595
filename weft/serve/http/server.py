"""The process around the application: sockets, signals, orderly shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from weft.errors import BackendError, InputError
from weft.serve.app import App
from weft.serve.http.connection import Connection
from weft.serve.models.pool import Entry
from weft.serve.settings import Settings

LATECOMERS_S = 0.1  # requests on connections that were open when the server stopped listening still get a 503
# A thread may hold the interpreter for this long before the event loop gets its turn (Python's default is 5 ms): tokens
# and refusals are written without delay while other threads render templates.
SWITCH_S = 0.0005
ENDING = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


class Server(uvicorn.Server):
    """A uvicorn server with orderly shutdown: the first signal drains, the second ends at once; the exit code is 0."""

    def __init__(self, app: App) -> None:
        settings = app.serving.settings
        limits = settings.limits
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.keep_alive_s),
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        super().__init__(config)
        self.app = app
        self.on_started: Callable[[], None] = lambda: None
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Our signals instead of uvicorn's, which raises them again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in ENDING}
        for number in ENDING:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.end))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Drain and end; called a second time, end at once. Runs in the event loop."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
        elif not self._draining.done():
            self._draining.cancel()
            self._draining = asyncio.ensure_future(self._drain(at_once=True))

    async def _drain(self, at_once: bool = False) -> None:
        serving = self.app.serving
        await (serving.abort() if at_once else serving.drain())
        for server in self.servers:
            server.close()
        await asyncio.sleep(LATECOMERS_S)
        await serving.abort()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        certificate = self.app.serving.certificate
        if certificate is None:
            await super().startup(sockets)
        else:
            self.config.ssl = certificate.context
            with self._short_handshakes():
                await super().startup(sockets)
        self.on_started()

    @contextmanager
    def _short_handshakes(self) -> Iterator[None]:
        """Give TLS handshakes the time that headers have: asyncio allows a minute, and uvicorn has no option for it."""
        loop: Any = asyncio.get_running_loop()
        seconds = self.app.serving.settings.limits.header_s
        loop.create_server = partial(loop.create_server, ssl_handshake_timeout=seconds)
        try:
            yield
        finally:
            del loop.create_server


def listen(settings: Settings) -> socket.socket:
    """The socket of a server, bound and not yet accepting; port 0 takes a free one."""
    if settings.socket is not None:
        return _listen_at(settings.socket)
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(
            family, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # asyncio sets TCP_NODELAY only if the protocol is named
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
    except OSError as error:
        reason = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise InputError("serve", reason, advice="choose another with --host and --port") from None
    return bound


def _listen_at(path: Path) -> socket.socket:
    """A Unix socket that only its owner may use. A stale socket file of a server that has ended is removed."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) != 0:
                    path.unlink()
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
    except (OSError, ValueError) as error:
        bound.close()
        reason = f"cannot listen on the socket {path}: {getattr(error, 'strerror', None) or error}"
        raise InputError("serve", reason, advice="choose another path with --socket") from None
    return bound


def port_of(bound: socket.socket) -> int:
    """The port of a listening socket; 0 for one in the file system."""
    name = bound.getsockname()
    return 0 if isinstance(name, str) else int(name[1])


def run(
    settings: Settings,
    entries: list[Entry] | None = None,
    on_started: Callable[[int], None] | None = None,
    bound: socket.socket | None = None,
) -> None:
    """Serve until a signal ends it. `on_started` is called with the port; `bound` is a socket from `listen`."""
    settings = settings.checked()
    sys.setswitchinterval(SWITCH_S)
    bound = bound or listen(settings)
    server = Server(App(settings, entries))
    port = port_of(bound)
    if on_started is not None:
        server.on_started = lambda: on_started(port)
    try:
        server.run(sockets=[bound])
    finally:
        if settings.socket is not None:
            settings.socket.unlink(missing_ok=True)


class BackgroundServer:
    """`with BackgroundServer(settings) as server:` serves from a thread of its own, at `server.url`."""

    def __init__(self, settings: Settings, entries: list[Entry] | None = None) -> None:
        self.settings = settings.checked()
        self.app = App(self.settings, entries)
        self._server = Server(self.app)
        self._bound = listen(self.settings)
        self.port = port_of(self._bound)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="weft-serve", daemon=True)

    @property
    def url(self) -> str:
        return f"{self.settings.scheme}://{self.settings.host}:{self.port}"

    def __enter__(self) -> BackgroundServer:
        self._thread.start()
        self._ready.wait(60)
        if not self._server.started:
            raise BackendError("serve", "the server did not start within 60 s; its log says why")
        return self

    def __exit__(self, *error: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.end)
            self._loop.call_soon_threadsafe(self._server.end)  # twice: at once
        self._thread.join(60)

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine function in the server's event loop and wait for it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def _run(self) -> None:
        def started() -> None:
            self._loop = asyncio.get_running_loop()
            self._ready.set()

        self._server.on_started = started
        try:
            self._server.run(sockets=[self._bound])
        finally:
            self._ready.set()
            if self.settings.socket is not None:
                self.settings.socket.unlink(missing_ok=True)
