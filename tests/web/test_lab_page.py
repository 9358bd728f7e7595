"""The demonstration page in Chromium with tiny models: search, chat, stop, no network, damage, no room, two tabs."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from static_site import ROOT, Site

from weft import Embedder

sys.path.insert(0, str(ROOT / "tools"))
PASSAGES = ["the cat sat", "one two three", "the quick brown fox jumps over the lazy dog", "Hello, WORLD! 123"]
QUERY = "the dog"
LINES = "() => [...document.querySelectorAll('#found li span:last-child')].map((line) => line.textContent)"
SEARCHED = "4 passages searched"
WRITTEN = " tokens"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def lab(wasm: Path, st_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as `make lab` writes it, with other models. The one that chats does not end by itself."""
    from make_lab import write_page
    from tiny_chat import write_chat_model

    from weft.export import export

    folder = tmp_path_factory.mktemp("lab") / "lab"
    write_page(folder)
    (folder / "models").mkdir()
    shutil.copytree(st_bundle, folder / "models" / "search")
    tiny = write_chat_model(folder.parent / "tiny.gguf", llama__context_length=8000)
    export(str(tiny), folder / "models" / "chat", compute="f32")
    script = (folder / "lab.js").read_text()
    for old, new in (("CONTEXT = 2048", "CONTEXT = 8000"), ("temperature: 0.6", "temperature: 0")):
        assert old in script
        script = script.replace(old, new)
    (folder / "lab.js").write_text(script)
    return folder


@pytest.fixture
def site(lab: Path, isolated: bool) -> Iterator[Site]:
    opened = Site({"lab": lab}, isolated=isolated)
    yield opened
    opened.close()


@pytest.fixture
def tab(page: Any, site: Site) -> Any:
    """The page, with its files kept by the service worker."""
    return opened(page, site)


def opened(page: Any, site: Site) -> Any:
    page.goto(f"{site.url}/lab/")
    wait(page, "offline", "kept for use without a network")
    return page


def wait(page: Any, name: str, words: str) -> str:
    state = page.locator(f"#{name}-state")
    try:
        state.filter(has_text=words).wait_for()
    except Exception:
        pytest.fail(f"{name}: {words!r} was waited for; the page says {state.inner_text()!r}")
    return state.inner_text()


def search(page: Any, passages: list[str] = PASSAGES) -> None:
    page.fill("#text", "\n".join(passages))
    page.fill("#query", QUERY)
    page.click("#search-go")


def ranked(folder: Path) -> list[str]:
    model = Embedder(str(folder), threads=1, compute="f32")
    scores = model.encode(PASSAGES) @ model.encode([QUERY])[0]
    return [PASSAGES[i] for i in np.argsort(-scores)]


@pytest.mark.parametrize("isolated", [False, True])
def test_search_chat_and_stop(tab, st_folder: Path, isolated: bool) -> None:
    assert tab.evaluate("crossOriginIsolated") == isolated
    search(tab)
    assert "4 were new" in wait(tab, "search", SEARCHED)
    assert tab.evaluate(LINES) == ranked(st_folder)
    search(tab)
    wait(tab, "search", "0 were new")
    # The stop button, as soon as there is text.
    tab.evaluate(
        """() => new MutationObserver((_, observer) => {
          if (!document.querySelector("#talk .assistant")?.textContent) return;
          observer.disconnect();
          document.getElementById("chat-stop").click();
        }).observe(document.getElementById("talk"), { childList: true, subtree: true, characterData: true })"""
    )
    tab.fill("#message", "Once upon a time")
    tab.click("#chat-go")
    assert "stopped" in wait(tab, "chat", WRITTEN)
    assert tab.locator("#talk .user").inner_text() == "Once upon a time"
    assert tab.locator("#talk .assistant").inner_text()
    tab.click("#chat-new")
    assert tab.locator("#talk p").count() == 0


def test_an_embedding_of_many_passages_is_stopped(tab) -> None:
    tab.evaluate(
        """() => new MutationObserver((_, observer) => {
          if (!/passages embedded/.test(document.getElementById("search-state").textContent)) return;
          observer.disconnect();
          document.getElementById("search-stop").click();
        }).observe(document.getElementById("search-state"), { childList: true })"""
    )
    many = "() => Array.from({ length: 8000 }, (_, i) => `the quick brown fox ${i}`).join('\\n')"
    tab.evaluate(f"() => {{ document.getElementById('text').value = ({many})(); }}")  # typing it would take minutes
    tab.click("#search-go")
    wait(tab, "search", "Stopped.")
    search(tab)
    wait(tab, "search", SEARCHED)


def test_reload_without_a_network(tab, site: Site, st_folder: Path) -> None:
    search(tab)
    wait(tab, "search", SEARCHED)
    site.close()
    tab.reload()
    assert tab.locator("h1").inner_text() == "weft lab"
    search(tab)
    wait(tab, "search", SEARCHED)
    assert tab.evaluate(LINES) == ranked(st_folder)
    # What was never downloaded says so, and the question can be sent again.
    tab.fill("#message", "Hello")
    tab.click("#chat-go")
    assert "cannot be fetched" in wait(tab, "chat", "manifest.json")
    assert tab.input_value("#message") == "Hello"


def test_files_that_earlier_pages_kept_are_removed(tab) -> None:
    tab.evaluate("""async () => {
        for (const name of ["weft-lab-1", "another page's"]) await caches.open(name);
        await (await navigator.serviceWorker.ready).unregister();
    }""")
    tab.reload()
    tab.wait_for_function("async () => !(await caches.keys()).includes('weft-lab-1')")
    assert {"weft-lab-2", "another page's"} <= set(tab.evaluate("() => caches.keys()"))


def test_a_download_shows_progress_and_can_be_stopped(tab, site: Site) -> None:
    weights = "/lab/models/chat/weights-00001.bin"
    site.held[weights] = threading.Event()
    tab.fill("#message", "Hello")
    tab.click("#chat-go")
    wait(tab, "chat", "Downloading the model")
    assert tab.locator("#chat-progress").is_visible()
    tab.click("#chat-stop")
    wait(tab, "chat", "Stopped.")
    assert not tab.locator("#chat-progress").is_visible()
    assert tab.input_value("#message") == "Hello"
    site.held.pop(weights).set()


def test_a_damaged_shard_is_named(tab, site: Site, lab: Path) -> None:
    path = "/lab/models/search/weights-00001.bin"
    data = bytearray((lab / "models" / "search" / "weights-00001.bin").read_bytes())
    data[len(data) // 2] ^= 1
    site.changed[path] = bytes(data)
    search(tab)
    wait(tab, "search", "[weights-00001.bin] is damaged")
    site.changed.clear()
    search(tab)
    wait(tab, "search", SEARCHED)


def test_without_room_the_model_works_and_the_page_says_so(tab, site: Site) -> None:
    quota = tab.context.new_cdp_session(tab)
    quota.send("Storage.overrideQuotaForOrigin", {"origin": site.url, "quotaSize": 1000})
    search(tab)
    assert "no room" in wait(tab, "search", SEARCHED)


def test_two_tabs_download_once_and_models_can_be_deleted(tab, site: Site) -> None:
    weights = "/lab/models/search/weights-00001.bin"
    search(tab)
    wait(tab, "search", SEARCHED)
    other = opened(tab.context.new_page(), site)
    search(other)
    wait(other, "search", SEARCHED)
    assert tab.evaluate(LINES) == other.evaluate(LINES)
    assert site.asked.count(weights) == 1
    other.click("#forget")
    wait(other, "search", "deleted")
    other.wait_for_function(
        "async () => (await (await caches.open('weft-bundles-1')).keys()).every(({ url }) => !url.includes('sha256'))"
    )
    search(other)
    wait(other, "search", SEARCHED)
    assert site.asked.count(weights) == 2


def test_a_server_hosts_the_page_behind_its_key(chromium, lab: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed; the server is not tested")
    from weft.serve import BackgroundServer, ModelSpec, Settings

    spec = ModelSpec("tiny", str(lab.parent / "tiny.gguf"), {"threads": 1})
    with BackgroundServer(Settings(models=(spec,), port=0, lab_dir=lab, keys=("a-key",))) as server:
        context = chromium.new_context()
        context.set_default_timeout(120_000)
        page, wrong = context.new_page(), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"{server.url}/lab/")
        page.fill("input[name=key]", "a-key")
        page.press("input[name=key]", "Enter")
        page.wait_for_selector("#search-go")
        wait(page, "offline", "isolated")
        search(page)
        wait(page, "search", SEARCHED)
        page.fill("#message", "Once upon a time")
        page.click("#chat-go")
        wait(page, "chat", WRITTEN)
        context.close()
    assert not [words for words in wrong if "401" not in words]


def test_the_page_can_be_installed(tab) -> None:
    answer = tab.context.new_cdp_session(tab).send("Page.getInstallabilityErrors")
    assert [error["errorId"] for error in answer["installabilityErrors"] if error["errorId"] != "in-incognito"] == []
