"""Debian's Chromium on the page of a live server. Every page is watched: a console error or a request to another origin
fails the test that opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browser import open_chromium

if TYPE_CHECKING:
    from weft.serve import BackgroundServer, ModelSpec

# Long enough that a reply is still being written when a test looks, on any machine.
CONTEXT = 40_000
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def specs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, ...]:
    from tiny_models import write_models

    from weft.serve import ModelSpec

    files = write_models(tmp_path_factory.mktemp("page"), llama__context_length=CONTEXT)
    options = {"tiny": {"threads": 1, "context": CONTEXT, "kv_tokens": 2 * CONTEXT}}
    return tuple(ModelSpec(name, str(path), options.get(name, {"threads": 1})) for name, path in files.items())


@pytest.fixture(scope="session")
def server(specs: tuple[ModelSpec, ...]) -> Iterator[BackgroundServer]:
    from weft.serve import BackgroundServer, Settings

    with BackgroundServer(Settings(models=specs, port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with open_chromium("the page is not tested") as browser:
        yield browser


class Watch:
    """What a page did that it must not do."""

    def __init__(self, page: Any, origin: str, excused: tuple[str, ...]) -> None:
        self.wrong: list[str] = []
        self._origin, self._excused = origin, excused
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(words in text for words in self._excused):
            self.wrong.append(f"console: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith((f"{self._origin}/", "data:", "blob:")):
            self.wrong.append(f"request to {url}")


@pytest.fixture
def open_page(chromium: Any, server: BackgroundServer) -> Iterator[Open]:
    """`open_page("#live", width=360, excused=("401",))`: the page in a fresh profile; `excused` are words of console
    messages that the test provokes, `ready` is what a page has that is there."""
    opened: list[tuple[Any, Watch]] = []

    def open_one(
        address: str = "",
        *,
        url: str = "",
        width: int = 1360,
        height: int = 860,
        excused: tuple[str, ...] = (),
        ready: str = '.link-state[data-state="up"]',
        **context: Any,
    ) -> Any:
        base = url or server.url
        made = chromium.new_context(viewport={"width": width, "height": height}, **context)
        made.set_default_timeout(20_000)
        page = made.new_page()
        opened.append((made, Watch(page, base, excused)))
        page.goto(f"{base}/{address}")
        page.wait_for_selector(ready, state="attached")
        return page

    yield open_one
    for made, _ in opened:
        made.close()
    assert not [wrong for _, watch in opened for wrong in watch.wrong]
