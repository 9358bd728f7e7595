"""What a conversation can do: files, messages that wait, replies that survive, a full context, tools by hand."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from driving import finished, kept, last_reply, send, settings, start_long_reply, text_of, until

PDF = Path(__file__).resolve().parents[2] / "golden" / "pdf"
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}


def stream_of(*deltas: dict[str, Any], finish: str = "stop") -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def answers(page: Any, *bodies: str) -> list[dict[str, Any]]:
    """Answer chats with these streams, one after the other; the bodies of the requests come back."""
    asked: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(body=bodies[min(len(asked), len(bodies)) - 1], content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return asked


def attach(page: Any, *files: Any) -> None:
    page.locator("input[aria-label=Files]").first.set_input_files(list(files))


def test_files_are_sent_with_the_message_and_shown(open_page, tmp_path):
    page = open_page()
    asked = answers(page, stream_of({"content": "Read."}))
    notes = tmp_path / "notes.md"
    notes.write_text("# Looms\r\nA loom holds the warp.\n", encoding="utf-8")
    attach(page, notes, PDF / "standard.pdf")
    until(page, lambda: page.locator(".composer .chip-main").count() == 2, "both files were read")
    assert "2 pages" in page.locator(".composer .chip").nth(1).inner_text()
    send(page, "Summarise")
    content = asked[0]["messages"][0]["content"]
    assert content.startswith(
        "[File: notes.md]\n# Looms\nA loom holds the warp.\n[End of notes.md]\n\n[File: standard.pdf]\n"
    )
    assert "Café, naïve, Zürich" in content and content.endswith("\n\nSummarise")
    assert page.locator(".composer .chip").count() == 0
    page.reload()
    page.locator(".message.user .chip-main").first.click()
    page.get_by_role("dialog", name="notes.md").get_by_text("A loom holds the warp.").wait_for()
    page.keyboard.press("Escape")
    send(page, "And now?")
    assert asked[1]["messages"][0]["content"] == content


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("photo.png", b"\x89PNG", "photo.png is a picture, and tiny reads text only. No model of this server sees."),
        ("report.docx", b"PK", "save it as PDF or plain text first"),
        ("data.bin", b"ab\0cd", "data.bin is not text"),
        ("empty.txt", b"", "empty.txt is empty."),
        ("locked.pdf", (PDF / "encrypted.pdf").read_bytes(), "locked.pdf cannot be read: the PDF is encrypted"),
        ("scan.pdf", (PDF / "scanned.pdf").read_bytes(), "Run text recognition (OCR) on it first."),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(open_page, tmp_path, name, content, words):
    page = open_page()
    path = tmp_path / name
    path.write_bytes(content)
    attach(page, path)
    page.locator(".toast", has_text=words).wait_for()
    assert page.locator(".composer .chip").count() == 0
    assert page.get_by_label("Send", exact=True).is_disabled()


def test_a_message_waits_while_a_reply_is_written(open_page):
    page = open_page()
    start_long_reply(page)
    settings(page, json=False, max_tokens=4)
    page.fill("#composer", "the next one")
    page.get_by_label("Send when the reply is complete").click()
    page.fill("#composer", "and another")
    page.keyboard.press("Enter")
    assert page.locator(".queue-words").all_inner_texts() == ["the next one", "and another"]
    page.get_by_label("Remove the waiting message").last.click()
    page.get_by_label("Stop", exact=True).click()
    finished(page)
    assert len(kept(page)["messages"]) == 2  # a reply that was stopped sends nothing by itself
    page.get_by_role("button", name="Send now").click()
    until(page, lambda: page.locator(".message.user").count() == 2, "the message was sent")
    finished(page)
    assert kept(page)["messages"][2]["content"] == "the next one" and kept(page)["queue"] == []


def test_messages_that_wait_are_sent_in_their_order(open_page):
    page = open_page()
    settings(page, max_tokens=400, temperature=1)
    send(page, "one", wait=False)
    for text in ("two", "three"):
        page.fill("#composer", text)
        page.keyboard.press("Enter")
    until(page, lambda: page.locator(".message.user").count() == 3, "all were sent")
    finished(page)
    assert [message["content"] for message in kept(page)["messages"][::2]] == ["one", "two", "three"]


def letters_of(text: str) -> str:
    """Without the signs that Markdown may take away: a star is shown until another one follows."""
    return "".join(filter(str.isalnum, text))


def test_a_reply_survives_a_refresh(open_page, server):
    """The server goes on writing, and the page reads on from where it was."""
    page = open_page(excused=("404",))
    start_long_reply(page)
    before = text_of(page)
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert letters_of(text_of(page)).startswith(letters_of(before)[:10])
    if server.app.serving.tracking.working():
        until(page, lambda: len(text_of(page)) > len(before), "the reply goes on")
        page.get_by_label("Stop", exact=True).click()
        finished(page)
        whole = last_reply(page)["content"]
        assert whole.startswith('"') and letters_of(whole).startswith(letters_of(before)[:10])
        assert last_reply(page)["finish"] == "stopped"
        until(page, lambda: not server.app.serving.tracking.working(), "the server has stopped too")


def interrupted(page: Any, **reply: Any) -> None:
    """A conversation whose reply was open when the page was closed."""
    page.evaluate(
        """reply => {
          const messages = [{ role: 'user', content: 'Count' }, { role: 'assistant', replies: [reply], shown: 0 }];
          localStorage['weft.chat.a-conversation'] = JSON.stringify({ id: 'a-conversation', model: 'tiny', messages });
          localStorage['weft.last'] = 'a-conversation';
        }""",
        {"model": "tiny", "finish": "open", **reply},
    )
    page.reload()


def test_a_reply_that_the_server_forgot_can_be_continued(open_page):
    page = open_page(excused=("404",))
    asked = answers(page, stream_of({"content": " three"}))
    interrupted(page, content="One, two,", stream="stream-gone", event=7)
    page.get_by_text("The page was closed while this reply was written.").wait_for()
    page.get_by_role("button", name="Continue").click()
    until(page, lambda: text_of(page) == "One, two, three", "the reply has gone on")
    assert asked[0]["messages"][-1] == {"role": "assistant", "content": "One, two,"}
    assert asked[0]["continue_final_message"] is True and asked[0]["add_generation_prompt"] is False
    assert page.get_by_role("button", name="Continue").count() == 0


def test_continuing_is_the_servers_own_way(open_page, server):
    page = open_page()
    settings(page, temperature=0, max_tokens=12)
    send(page, "hello")
    before = last_reply(page)["content"]
    page.get_by_role("button", name="Continue").click()
    until(page, lambda: last_reply(page)["count"] > 12, "the reply has gone on")
    finished(page)
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": before}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12}
    body |= {"continue_final_message": True, "add_generation_prompt": False}
    more = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
    assert last_reply(page)["content"] == before + more["content"]


def test_the_meter_shows_the_tokens_of_the_conversation(open_page, server):
    page = open_page()
    settings(page, max_tokens=4)
    send(page, "hello")
    page.fill("#composer", "one two three")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": last_reply(page)["content"]}]
    messages.append({"role": "user", "content": "one two three"})
    asked = {"model": "tiny", "messages": messages}
    tokens = httpx.post(f"{server.url}/apply-template", json=asked, timeout=60).json()["tokens"]
    words = f"{tokens:,} of 40,000 tokens"
    until(page, lambda: page.locator(".meter").inner_text().strip() == words, f"the meter says {words}")
    assert page.get_by_role("meter", name="Context used").get_attribute("aria-valuenow") == str(tokens)


def fill_context(page: Any, server: Any) -> None:
    """Two messages that take most of the small model's context, and a third for which there is no room."""
    page.locator(".model-choice").select_option("plain")
    context = server.app.serving.models.entries["plain"].outline.max_tokens
    settings(page, max_tokens=4)
    tokens = httpx.post(f"{server.url}/tokenize", json={"model": "plain", "content": "x " * 100}, timeout=60).json()
    words = int(0.4 * context / (len(tokens["tokens"]) / 100))
    for word in ("first", "second"):
        send(page, f"{word} {'x ' * words}")
    page.fill("#composer", "third " + "y " * (words // 2))
    page.get_by_label("Send", exact=True).click()


def test_the_oldest_messages_can_be_left_out(open_page, server):
    page = open_page(excused=("400",))
    fill_context(page, server)
    alert = page.get_by_role("alert").last
    alert.get_by_text("The context is full").wait_for()
    assert "truncate" not in alert.inner_text()
    alert.get_by_role("button", name="Leave out the oldest messages").click()
    page.get_by_text("The model no longer reads the messages above.").wait_for()
    finished(page)
    one = kept(page)
    assert one["dropped"] == 2 and one["messages"][-1]["replies"][0]["error"] == ""
    assert page.locator(".message.left-out").count() == 2
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_label("Regenerate").last.click()
    contents = [message["content"][:6] for message in request.value.post_data_json["messages"]]
    assert contents[0] == "second" and "first " not in contents
    finished(page)
    page.get_by_role("button", name="Send them again").click()
    assert kept(page)["dropped"] == 0


def test_the_oldest_messages_go_by_themselves_where_that_is_set(open_page, server):
    page = open_page(excused=("400",))
    settings(page, roll=True)
    fill_context(page, server)
    page.get_by_text("The model no longer reads the messages above.").wait_for()
    finished(page)
    assert last_reply(page)["error"] == ""


def test_a_call_of_a_tool_is_answered_by_hand(open_page):
    page = open_page()
    call = {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}]}
    asked = answers(page, stream_of(call, finish="tool_calls"), stream_of({"content": "It rains."}))
    page.get_by_label("Tools", exact=True).fill(json.dumps([TOOL]))
    assert page.locator("#tools-state").inner_text() == "1 function; you answer the calls by hand"
    send(page, "How is the weather?")
    assert asked[0]["tools"] == [{"type": "function", "function": TOOL}]
    page.get_by_label("Result of weather").fill('{"sky": "rain"}')
    page.get_by_role("button", name="Send result").click()
    until(page, lambda: text_of(page) == "It rains.", "the model has answered")
    said, result = asked[1]["messages"][1:]
    (made,) = said["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": '{"place": "Oslo"}'}
    assert result == {"role": "tool", "tool_call_id": made["id"], "content": '{"sky": "rain"}'}
    assert page.get_by_label("Result of weather").count() == 0
    page.reload()
    page.get_by_text("Result of").wait_for()


def test_tools_that_are_not_json_are_not_sent(open_page):
    page = open_page()
    page.get_by_label("Tools", exact=True).fill('[{"description": "no name"}]')
    assert page.locator("#tools-state").inner_text() == "Function 1 has no name."
    page.fill("#composer", "hello")
    page.keyboard.press("Enter")
    page.get_by_text("The list of tools is not valid").wait_for()
    assert page.input_value("#composer") == "hello"


def test_a_preset_is_saved_chosen_and_deleted(open_page):
    page = open_page()
    page.get_by_label("Preset", exact=True).select_option("Precise")
    assert page.locator("[data-setting=temperature]").input_value() == "0.2"
    page.fill("#system", "Be a pirate.")
    settings(page, temperature=0.9, top_k=5)
    page.get_by_label("Save these settings as a preset").click()
    page.get_by_label("Name", exact=True).fill("Pirate")
    page.keyboard.press("Enter")
    until(page, lambda: "Pirate" in page.get_by_label("Preset", exact=True).inner_text(), "it is in the list")
    page.get_by_label("Preset", exact=True).select_option("Model defaults")
    assert page.locator("[data-setting=temperature]").input_value() == ""
    page.reload()
    page.wait_for_selector("#preset")
    page.get_by_label("Preset", exact=True).select_option("Pirate")
    assert page.input_value("#system") == "Be a pirate."
    until(page, lambda: "Pirate" in page.evaluate("JSON.stringify(localStorage)"), "it is kept")
    page.get_by_label("Delete this preset").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    until(page, lambda: "Pirate" not in page.get_by_label("Preset", exact=True).inner_text(), "it is gone")


def test_conversations_are_found_by_what_was_said(open_page):
    page = open_page()
    day = 86_400_000
    page.evaluate(
        """day => {
          const put = (id, user, reply, ago) => {
            const messages = [{ role: 'user', content: user }, { role: 'assistant', content: reply }];
            const one = { id, updated: Date.now() - ago * day, messages };
            localStorage[`weft.chat.${id}`] = JSON.stringify(one);
          };
          put('conversation-a', 'About looms', 'A loom holds the warp threads.', 0);
          put('conversation-b', 'About bread', 'Knead the dough.', 1);
          put('conversation-c', 'About stars', 'They are far away.', 400);
        }""",
        day,
    )
    page.reload()
    titles = page.locator(".conversation-title")
    page.wait_for_selector(".conversation")
    assert titles.all_inner_texts() == ["About looms", "About bread", "About stars"]
    dates = page.locator(".date").all_inner_texts()
    assert dates[:2] == ["Today", "Yesterday"] and re.fullmatch(r"\w+ \d{4}", dates[2])
    page.get_by_label("Search conversations").fill("WARP")
    assert titles.all_inner_texts() == ["About looms"]
    assert page.locator(".conversation-excerpt mark").inner_text() == "warp"
    page.get_by_label("Search conversations").fill("nowhere")
    page.get_by_text("Nothing found for “nowhere”.").wait_for()
    page.keyboard.press("Escape")
    assert titles.count() == 3
    with page.expect_download() as saved:
        page.get_by_label("Export all conversations").click()
    assert len(json.loads(Path(saved.value.path()).read_text())) == 3


@pytest.mark.parametrize("width", [1400, 390])
def test_a_toast_covers_neither_the_composer_nor_the_last_reply(open_page, width):
    page = open_page(width=width, height=800)
    page.get_by_label("Theme:").click()
    page.wait_for_selector(".toast")
    over = """() => {
      const box = (name) => document.querySelector(name).getBoundingClientRect();
      const [toast, composer, head] = ['.toast', '.composer', '.chat-head'].map(box);
      return toast.bottom > composer.top || toast.top < head.bottom;
    }"""
    assert page.evaluate(over) is False
    page.get_by_label("Close the message").click()
    assert page.locator(".toast").count() == 0


def test_a_table_on_a_phone_keeps_its_columns_readable(open_page):
    page = open_page(width=390, height=800)
    table = "| Protocol | Ordering | Reliability | Typical use |\n|---|---|---|---|\n"
    table += "| TCP | in the order it was sent | every byte arrives or the connection fails | web pages, mail |\n"
    answers(page, stream_of({"content": table}))
    send(page, "Compare")
    cells = page.locator(".prose td").evaluate_all("all => all.map(cell => cell.getBoundingClientRect().width)")
    assert min(cells) >= 90
    box = page.locator(".prose .table-box").evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert box[0] > box[1]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
