"""The chat takes pictures: chosen, dropped or pasted, shown, removed, sent as the API takes them, kept, refused."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import tiny_eyes
from driving import finished, kept, send, settings, until

if TYPE_CHECKING:
    from weft.serve import BackgroundServer, ModelSpec

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
# Gives a file to the page as a drop or a paste does.
GIVE = """([selector, event, name, type, base64]) => {
  const data = new DataTransfer();
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  data.items.add(new File([bytes], name, { type }));
  const place = document.querySelector(selector);
  const given = { bubbles: true, cancelable: true };
  if (event === "paste") place.dispatchEvent(new ClipboardEvent("paste", { ...given, clipboardData: data }));
  else place.dispatchEvent(new DragEvent(event, { ...given, dataTransfer: data }));
}"""


def picture(rows: int, cols: int, kind: str = "PNG", seed: int = 1) -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(seed).integers(0, 256, (rows, cols, 3), np.uint8)
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def seeing(specs: tuple[ModelSpec, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    from weft.serve import BackgroundServer, ModelSpec, Settings

    folder = tiny_eyes.write_folder(tmp_path_factory.mktemp("eyes"))
    models = (ModelSpec("eyes", str(folder), {"threads": 1}), *(spec for spec in specs if spec.name == "tiny"))
    with BackgroundServer(Settings(models=models, port=0)) as running:
        yield running


@pytest.fixture
def page(open_page: Any, seeing: BackgroundServer) -> Any:
    found = open_page(url=seeing.url)
    found.locator(".model-choice").select_option("eyes")
    settings(found, max_tokens=4, temperature=0)
    return found


def attach(page: Any, *files: tuple[str, str, bytes]) -> None:
    given = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    page.locator("input[type=file][aria-label=Files]").first.set_input_files(given)


def shown(page: Any) -> int:
    return int(page.locator(".composer .chip.picture img").count())


def give(page: Any, event: str, data: bytes, name: str = "given.png") -> None:
    from base64 import b64encode

    page.evaluate(GIVE, [".chat .composer", event, name, "image/png", b64encode(data).decode()])


def test_a_picture_is_sent_as_the_api_takes_it_and_answered_as_the_api_answers(page, seeing):
    data = picture(40, 61)
    attach(page, ("loom.png", "image/png", data))
    until(page, lambda: shown(page) == 1, "the picture is shown")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "What is this?")
    (message,) = request.value.post_data_json["messages"]
    first, second = message["content"]
    assert second == {"type": "text", "text": "What is this?"}
    head, _, body = first["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64" and b64decode(body) == data
    asked = {"model": "eyes", "messages": [message], "temperature": 0, "max_tokens": 4}
    answer = httpx.post(f"{seeing.url}/v1/chat/completions", json=asked, timeout=60).json()
    reply = kept(page)["messages"][-1]["replies"][0]
    assert reply["error"] == "" and reply["content"] == answer["choices"][0]["message"]["content"]
    assert "a picture" in page.locator(".meter").get_attribute("aria-valuetext")


def test_pictures_are_dropped_pasted_and_removed(page):
    give(page, "drop", picture(20, 30, seed=2))
    until(page, lambda: shown(page) == 1, "the dropped picture is shown")
    give(page, "paste", picture(30, 20, seed=3))
    until(page, lambda: shown(page) == 2, "the pasted picture is shown")
    attach(page, ("a.jpg", "image/jpeg", picture(9, 9, "JPEG")), ("b.webp", "image/webp", picture(9, 9, "WEBP")))
    until(page, lambda: shown(page) == 4, "the chosen pictures are shown")
    page.get_by_label("Remove given.png").first.click()
    assert shown(page) == 3
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_label("Send", exact=True).click()  # pictures without words are a message
        finished(page)
    (message,) = request.value.post_data_json["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url"] * 3 and shown(page) == 0


def test_large_pictures_are_made_smaller_and_the_page_says_so(page):
    attach(page, ("wide.png", "image/png", picture(200, 2400)))
    until(page, lambda: shown(page) == 1, "the picture is shown")
    page.get_by_label("Show wide.png, 2400 × 200, sent as 1536 × 128").click()
    dialog = page.get_by_role("dialog", name="wide.png")
    dialog.get_by_text("2400 × 200, sent as 1536 × 128").wait_for()
    assert dialog.get_by_role("img", name="wide.png").is_visible()
    page.keyboard.press("Escape")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "Wide")
    url = request.value.post_data_json["messages"][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(b64decode(url.partition(",")[2]))).size == (1536, 128)


def test_a_conversation_keeps_its_pictures(page):
    attach(page, ("loom.png", "image/png", picture(12, 12)))
    until(page, lambda: shown(page) == 1, "the picture is shown")
    send(page, "First")
    page.reload()
    page.wait_for_selector(".message.user .chip.picture img")
    until(page, lambda: page.locator(".model-choice").is_enabled(), "the models are known")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "Second")
    messages = request.value.post_data_json["messages"]
    assert messages[0]["content"][0]["type"] == "image_url" and messages[-1]["content"] == "Second"
    page.locator(".message.user .chip-picture").first.click()
    page.get_by_role("dialog", name="loom.png").wait_for()


@pytest.mark.parametrize(
    ("name", "kind", "data", "words"),
    [
        ("broken.png", "image/png", b"\x89PNG\r\n", "broken.png cannot be read as a picture"),
        ("scan.tiff", "image/tiff", b"II*\0", "scan.tiff is a picture of another kind; save it as PNG"),
        ("drawing.svg", "image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a picture of another kind"),
    ],
)
def test_a_picture_that_cannot_be_read_is_refused_by_name(page, name, kind, data, words):
    attach(page, (name, kind, data))
    page.locator(".toast", has_text=words).wait_for()
    assert shown(page) == 0 and page.get_by_label("Send", exact=True).is_disabled()


def test_limits_of_pixels_are_said(page):
    file = io.BytesIO()
    Image.new("1", (8_000, 5_001)).save(file, "PNG")
    attach(page, ("huge.png", "image/png", file.getvalue()))
    words = "huge.png has 8000 × 5001 pixels; a picture can have at most 40 million"
    page.locator(".toast", has_text=words).wait_for()
    assert shown(page) == 0


def test_a_model_that_does_not_see_gets_none_and_the_page_names_one_that_does(page):
    attach(page, ("loom.png", "image/png", picture(12, 12)))
    until(page, lambda: shown(page) == 1, "the picture is shown")
    page.locator(".model-choice").select_option("tiny")
    page.fill("#composer", "What is this?")
    page.get_by_label("Send", exact=True).click()
    words = "The conversation has pictures, and tiny reads text only. Choose a model that sees: eyes."
    page.locator(".toast", has_text=words).wait_for()
    assert page.locator(".message").count() == 0 and shown(page) == 1  # nothing is lost
    attach(page, ("other.png", "image/png", picture(12, 12)))
    page.locator(".toast", has_text="other.png is a picture, and tiny reads text only.").wait_for()
    page.locator(".model-choice").select_option("eyes")
    send(page, "What is this?")
    assert kept(page)["messages"][-1]["replies"][0]["error"] == ""


def test_pictures_work_with_the_keyboard_and_fit_a_telephone(open_page, seeing):
    page = open_page(url=seeing.url, width=320, height=640)
    page.locator(".model-choice").select_option("eyes")
    attach(page, *((f"{i}.png", "image/png", picture(40, 90, seed=i)) for i in range(4)))
    until(page, lambda: shown(page) == 4, "the pictures are shown")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_label("Show 0.png, 90 × 40").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="0.png").wait_for()
    page.keyboard.press("Escape")
    page.get_by_label("Remove 0.png").focus()
    page.keyboard.press("Enter")
    assert shown(page) == 3


def test_pictures_of_an_imported_conversation_are_checked(page):
    read = """async (messages) => {
      const { readConversation } = await import("/page/chat/conversation.js");
      return readConversation({ messages }).messages;
    }"""
    good = "data:image/png;base64,iVBORw0KGgo="
    parts = [
        {"type": "image_url", "image_url": {"url": url}} for url in (good, "https://a.example/b.png", "javascript:1")
    ]
    found = page.evaluate(read, [{"role": "user", "content": [*parts, {"type": "text", "text": "Hi"}]}])
    assert [file["picture"] for file in found[0]["files"]] == [good] and found[0]["content"] == "Hi"
    files = [{"name": "a", "picture": "data:text/html;base64,PGI+"}, {"name": "b", "picture": good}]
    found = page.evaluate(read, [{"role": "user", "content": "Hi", "files": files}])
    assert [file.get("picture") for file in found[0]["files"]] == [None, good]
