"""The chat tab does what it offers: sends, streams, stops, regenerates, edits, follows schemas, shows probabilities."""

import json
import math
from pathlib import Path

import httpx
import jsonschema
import pytest
from driving import finished, kept, last_reply, send, settings, start_long_reply, text_of, until, use_schema

# How many different lengths the reply has had on the page.
WATCH_GROWTH = """() => {
  window.lengths = new Set();
  new MutationObserver(() => {
    const prose = document.querySelector('.message.assistant .prose');
    if (prose) window.lengths.add(prose.textContent.length);
  }).observe(document.querySelector('.messages'), { subtree: true, childList: true, characterData: true });
}"""
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def test_the_reply_is_the_one_that_the_api_gives(open_page, server):
    page = open_page()
    settings(page, temperature=0, max_tokens=60)
    page.fill("#system", "Be brief.")
    send(page, "hello")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 60}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    reply = last_reply(page)
    assert reply["content"] == answer["choices"][0]["message"]["content"]
    assert reply["count"] == answer["usage"]["completion_tokens"]
    assert "tokens/s" in page.locator(".stats").inner_text()


def test_every_setting_is_sent_and_an_empty_one_is_not(open_page):
    page = open_page()
    chosen = {"temperature": 0.5, "top_p": 0.9, "min_p": 0.05, "top_k": 40, "max_tokens": 3, "presence_penalty": 0.5}
    chosen |= {"frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": 7}
    with page.expect_request("**/v1/chat/completions") as plain:
        send(page, "hello")
    assert not chosen.keys() & plain.value.post_data_json.keys()
    settings(page, **chosen)
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "hello")
    assert chosen.items() <= request.value.post_data_json.items()
    settings(page, temperature=99)
    assert page.locator("[data-setting=temperature]").get_attribute("aria-invalid") == "true"
    assert kept(page)["settings"]["temperature"] == 0.5


def test_the_model_of_a_conversation_stays(open_page):
    page = open_page()
    settings(page, max_tokens=3)
    page.locator(".model-choice").select_option("plain")
    send(page, "hello")
    page.reload()
    page.wait_for_selector(".message.assistant")
    until(page, lambda: page.locator(".model-choice").is_enabled(), "the models are known")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "hello")
    assert request.value.post_data_json["model"] == "plain"


def test_an_adapter_is_asked_for_by_its_name(open_page):
    """The list is made up here; what the server does with adapters is tested beside it."""
    page = open_page()
    live = {"models": [{"name": "tiny", "state": "ready", "kind": "generate", "bytes": 1, "adapters": ["law"]}]}
    page.route("**/weft/live", lambda route: route.fulfill(json=live))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body="data: [DONE]\n\n"))
    page.reload()
    page.get_by_label("Adapter", exact=True).select_option("law")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "hello")
    assert request.value.post_data_json["model"] == "law"


def test_reasoning_is_folded_and_kept_apart(open_page):
    """The stream is made up here: random models do not reason."""
    page = open_page()
    deltas = [{"reasoning_content": "Two and two"}, {"reasoning_content": " are four."}, {"content": "It is **four**."}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    send(page, "hello")
    assert page.locator(".prose").inner_html() == "<p>It is <strong>four</strong>.</p>"
    assert page.locator(".thought").is_hidden()
    page.get_by_text("Reasoning, 5 words").click()
    assert page.locator(".thought").inner_text() == "Two and two are four."
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "and now?")
    assert request.value.post_data_json["messages"][1] == {"role": "assistant", "content": "It is **four**."}


def test_text_appears_while_it_is_written(open_page):
    page = open_page()
    page.evaluate(WATCH_GROWTH)
    start_long_reply(page)
    until(page, lambda: page.evaluate("window.lengths.size") > 5, "the reply grew five times")
    assert page.locator(".message.assistant").get_attribute("aria-busy") == "true"
    page.get_by_label("Stop", exact=True).click()
    finished(page)


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_ends_the_reply_here_and_on_the_server(open_page, server, way):
    page = open_page()
    start_long_reply(page)
    assert server.app.serving.tracking.working()
    if way == "button":
        page.get_by_label("Stop", exact=True).click()
    else:
        page.keyboard.press("Escape")
    finished(page)
    reply = last_reply(page)
    assert reply["finish"] == "stopped" and 20 < len(reply["content"]) < 30000
    assert "stopped" in page.locator(".stats").inner_text()
    until(page, lambda: not server.app.serving.tracking.working(), "the server has stopped too")
    assert page.get_by_label("Send", exact=True).is_visible()


def test_a_conversation_goes_on_while_another_is_shown(open_page):
    page = open_page()
    start_long_reply(page)
    page.click("#new-conversation")
    assert page.locator(".message").count() == 0
    assert page.locator(".conversations .dot").count() == 1
    page.locator(".conversation").first.click()
    before = len(text_of(page))
    until(page, lambda: len(text_of(page)) > before, "the reply goes on")
    page.keyboard.press("Escape")
    finished(page)


def test_regenerate_keeps_every_version(open_page):
    page = open_page()
    settings(page, max_tokens=30, temperature=1)
    send(page, "hello")
    first = last_reply(page)["content"]
    page.get_by_label("Regenerate").click()
    page.wait_for_selector("text=2 / 2")
    finished(page)
    assert len(kept(page)["messages"]) == 2 and last_reply(page)["content"] != first
    page.get_by_label("Previous version").click()
    page.wait_for_selector("text=1 / 2")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Next version"
    assert last_reply(page)["content"] == first
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "and now?")
    assert [message["content"] for message in request.value.post_data_json["messages"]] == ["hello", first, "and now?"]


def test_an_edited_message_is_sent_again_and_can_be_undone(open_page):
    page = open_page()
    settings(page, max_tokens=5)
    for text in ("one", "two"):
        send(page, text)
    page.locator(".message.user").first.hover()
    page.get_by_label("Edit and send again").first.click()
    page.fill(".edit", "three")
    page.press(".edit", "Enter")
    until(page, lambda: page.locator(".message").count() == 2, "the later messages are gone")
    finished(page)
    assert kept(page)["messages"][0]["content"] == "three"
    page.get_by_role("button", name="Undo").click()
    assert [message.get("content") for message in kept(page)["messages"]] == ["one", None, "two", None]
    assert page.locator(".message").count() == 4


def test_a_schema_is_followed(open_page):
    page = open_page()
    use_schema(page, json.dumps(SCHEMA))
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "a colour")
    assert request.value.post_data_json["response_format"]["json_schema"]["schema"] == SCHEMA
    jsonschema.validate(json.loads(last_reply(page)["content"]), SCHEMA)
    assert page.locator(".message.assistant .code-head").inner_text().startswith("json")


def test_a_schema_that_does_not_parse_is_not_sent(open_page):
    page = open_page()
    use_schema(page, '{"type": ')
    area = page.get_by_label("JSON schema")
    assert area.get_attribute("aria-invalid") == "true"
    send(page, "hello", wait=False)
    page.wait_for_selector(".toast")
    assert page.locator(".message").count() == 0 and page.input_value("#composer") == "hello"
    area.fill("[]")
    assert page.locator("#schema-state").inner_text() == "A schema is a JSON object."


def test_tokens_show_their_probabilities_and_alternatives(open_page):
    page = open_page()
    settings(page, temperature=0, max_tokens=12, probabilities=True)
    send(page, "hello")
    page.get_by_label("Token probabilities", exact=True).last.click()
    tokens = last_reply(page)["tokens"]
    shown = page.locator(".token-text .token")
    assert shown.count() == len(tokens) == 12
    for _, logprob, others in tokens:
        assert logprob <= 0 and len(others) == 8
        assert [p for _, p in others] == sorted((p for _, p in others), reverse=True)
        assert sum(math.exp(p) for _, p in others) <= 1.000001
    shown.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.at") == "1"
    assert page.locator(".token-card li").count() in (8, 9)
    assert page.locator(".token-card li.chosen").count() >= 1
    page.keyboard.press("Escape")
    assert page.locator(".token-card").is_hidden()


def test_an_error_is_shown_and_the_conversation_goes_on(open_page):
    page = open_page(excused=("400",))
    settings(page, max_tokens=5)
    send(page, "x " * 25_000)
    assert "tokens" in page.get_by_role("alert").inner_text()
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "hello")
    assert [message["role"] for message in request.value.post_data_json["messages"]] == ["user", "user"]


def test_a_reply_that_breaks_off_is_kept_and_said_to_be_cut(open_page):
    page = open_page()
    chunk = {"choices": [{"index": 0, "delta": {"content": "Half of"}, "finish_reason": None}]}
    body = f"data: {json.dumps(chunk)}\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    send(page, "hello")
    assert page.get_by_role("alert").inner_text() == "Not the whole reply\nThe answer broke off."
    assert text_of(page) == last_reply(page)["content"] == "Half of"
    failed = "data: " + json.dumps({"error": {"message": "the engine was lost"}}) + "\n\n"
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=failed, content_type="text/event-stream"))
    send(page, "hello")
    assert page.get_by_role("alert").last.inner_text() == "No reply\nthe engine was lost"


def test_conversations_stay_and_can_be_renamed_and_deleted(open_page):
    page = open_page()
    settings(page, max_tokens=5)
    send(page, "first subject")
    page.keyboard.press("Alt+n")
    send(page, "second subject")
    page.reload()
    titles = page.locator(".conversation-title")
    page.wait_for_selector(".message.assistant")
    assert titles.all_inner_texts() == ["second subject", "first subject"]
    page.get_by_label("Rename first subject").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Title").fill("weaving")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=weaving")
    page.get_by_label("Delete second subject").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete", exact=True).click()
    until(page, lambda: titles.all_inner_texts() == ["weaving"], "one conversation is left")
    page.get_by_role("button", name="Undo").click()
    assert sorted(titles.all_inner_texts()) == ["second subject", "weaving"]


def test_code_can_be_copied(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    chunk = {"choices": [{"index": 0, "delta": {"content": "Try\n\n```py\nprint(1)\n```"}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    send(page, "hello")
    page.get_by_role("button", name="Copy", exact=True).click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"


def test_two_tabs_share_their_conversations(open_page):
    page = open_page()
    settings(page, max_tokens=4)
    send(page, "from the first")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".message.assistant")
    page.keyboard.press("Alt+n")
    send(page, "and another")
    titles = other.locator(".conversation-title")
    until(other, lambda: titles.all_inner_texts() == ["and another", "from the first"], "the other tab has both")


def test_a_browser_without_room_loses_probabilities_first(open_page):
    """Storage is filled but for a little: old token probabilities go, and then the user is told."""
    page = open_page()
    settings(page, temperature=0, max_tokens=60, probabilities=True)
    send(page, "old")
    fill = """() => { for (let size = 2 ** 22; size >= 64; size /= 2) {
      try { for (let i = 0; i < 9; i += 1) localStorage[`fill-${size}-${i}`] = 'x'.repeat(size); } catch { /* full */ }
    } }"""
    page.evaluate(fill)
    page.keyboard.press("Alt+n")
    settings(page, probabilities=False)
    send(page, "new")
    stored = page.evaluate(
        "Object.keys(localStorage).filter(key => key.startsWith('weft.chat.')).map(key => localStorage[key])"
    )
    read = {one["messages"][0]["content"]: one["messages"][1]["replies"][0] for one in map(json.loads, stored)}
    assert read["old"]["tokens"] == [] and read["old"]["content"] and read["new"]["content"]
    page.evaluate(fill)
    page.keyboard.press("Alt+n")
    send(page, "one more")
    page.get_by_text("storage is full").wait_for()
    assert text_of(page)


def test_an_exported_conversation_can_be_imported(open_page, tmp_path: Path):
    page = open_page()
    settings(page, temperature=0, max_tokens=8, probabilities=True)
    send(page, "keep this")
    with page.expect_download() as saved:
        page.get_by_role("button", name="JSON", exact=True).click()
    assert saved.value.suggested_filename == "keep-this.json"
    path = tmp_path / "conversation.json"
    saved.value.save_as(path)
    before = kept(page)
    assert json.loads(path.read_text()) == before
    with page.expect_download() as page_of_text:
        page.get_by_role("button", name="Markdown").click()
    assert Path(page_of_text.value.path()).read_text().startswith("# keep this\n\n---\n\n**You**\n\nkeep this\n")
    other = open_page()
    with other.expect_file_chooser() as chooser:
        other.get_by_label("Import conversations").click()
    chooser.value.set_files(path)
    other.wait_for_selector(".message.assistant")
    assert kept(other) == before


def test_a_file_that_is_no_conversation_is_refused(open_page, tmp_path: Path):
    path = tmp_path / "other.json"
    page = open_page()
    for content in ("", "[]", "{", '{"messages": 3}', '{"messages": [{"role": "system"}, null, 5]}', "5"):
        path.write_text(content)
        with page.expect_file_chooser() as chooser:
            page.get_by_label("Import conversations").click()
        chooser.value.set_files(path)
        page.get_by_text("No conversation found in that file.").wait_for()
        page.evaluate("document.getElementById('toasts').replaceChildren()")
    assert page.locator(".message").count() == 0


def test_calls_of_tools_are_shown_kept_and_exported(open_page):
    """The page offers no tools itself; a model behind the same address may call those that its template knows."""
    page = open_page()

    def chunk(**delta: object) -> str:
        return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': None}]})}\n\n"

    def call(index: int, name: str, arguments: str) -> str:
        return chunk(tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}}])

    said = [chunk(role="assistant", content="Let me look."), call(0, "weather", '{"place": '), call(0, "", '"Oslo"}')]
    said += [call(1, "clock", "{}"), "data: [DONE]\n\n"]
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body="".join(said)),
    )
    send(page, "How is the weather?")
    shown = page.get_by_role("region", name="Call of weather")
    assert "Oslo" in shown.inner_text() and page.get_by_role("region", name="Call of clock").is_visible()
    assert last_reply(page)["calls"] == [["weather", '{"place": "Oslo"}'], ["clock", "{}"]]
    page.reload()
    page.get_by_role("region", name="Call of weather").wait_for()
