"""The API reference at /docs shows every route of the document, and requests can be tried there."""

import json

import pytest

READY = ".operation"


def test_every_route_is_there_and_can_be_found(open_page, server):
    page = open_page("docs", ready=READY)
    shown = {tuple(row.split()[:2]) for row in page.locator(".operation > summary").all_inner_texts()}
    assert shown == {(r.method, r.path.replace(":path}", "}")) for r in server.app.routes}
    assert page.locator("h2").all_inner_texts()[:3] == ["OpenAI", "Anthropic", "Ollama"]
    page.get_by_label("Find a route").fill("post chat")
    found = page.locator(".operation:visible .path").all_inner_texts()
    assert "/v1/chat/completions" in found and "/v1/models" not in found and "TEI" not in page.inner_text("main")


def test_a_route_shows_its_fields_and_answers_a_trial(open_page, server):
    page = open_page("docs#post_v1_chat_completions", ready=f"{READY}[open] textarea")
    chat = page.locator("#post_v1_chat_completions")
    words = chat.inner_text()
    for wanted in ("messages", "required", "at most 2048 items", "temperature", "fields of messages", "429"):
        assert wanted in words, wanted
    chat.get_by_text("fields of messages").first.click()
    assert '"user"' in chat.inner_text()
    body = json.loads(chat.get_by_label("Body").input_value())
    assert set(body) == {"model", "messages"} and body["messages"] == [{"role": "user", "content": "Hello"}]
    chat.get_by_label("Body").fill(json.dumps({**body, "model": "tiny", "max_tokens": 2}))
    assert f"curl -X POST {server.url}/v1/chat/completions" in chat.inner_text()
    chat.get_by_role("button", name="Send").click()
    page.wait_for_function("() => document.querySelector('[open] pre:last-of-type')?.textContent.startsWith('200')")
    assert '"completion_tokens": 2' in chat.inner_text()


@pytest.mark.parametrize("width", [390, 1400])
def test_it_fits_every_screen_and_screen_readers(open_page, width):
    page = open_page("docs#post_v1_chat_completions", width=width, ready=f"{READY}[open] textarea")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    axe = pytest.importorskip("axe_core_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(page)
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def test_with_keys_the_form_leads_back_to_it(open_page, specs):
    from weft.serve import BackgroundServer, Settings

    with BackgroundServer(Settings(models=specs, port=0, keys=("the-key",))) as locked:
        page = open_page("docs", url=locked.url, ready="form", excused=("401",))
        page.get_by_label("Key").fill("the-key")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector(READY)
        assert page.url == f"{locked.url}/docs"
        page.locator("#get_v1_models > summary").click()
        page.locator("#get_v1_models").get_by_role("button", name="Send").click()
        page.wait_for_function("() => document.querySelector('[open] pre:last-of-type')?.textContent.startsWith('200')")
