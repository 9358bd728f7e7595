"""Pictures in the conversations of every API reach the model as the library would show them, or are refused by name."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_eyes
import tiny_sights

import weft
from weft.serve import BackgroundServer, Limits, ModelSpec, Settings

pytestmark = pytest.mark.skipif(find_spec("PIL") is None, reason="Pillow is not installed")
Ask = Any


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


FILES = [png(array) for array in tiny_eyes.pictures()] if find_spec("PIL") else []
PLAIN = [b64encode(file).decode() for file in FILES]
URLS = [f"data:image/png;base64,{text}" for text in PLAIN]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tiny_eyes.write_folder(tmp_path_factory.mktemp("eyes"))
    return path


@pytest.fixture(scope="module")
def library(folder: Path) -> weft.Model:
    return weft.load(str(folder), threads=1)


@pytest.fixture(scope="module")
def running(folder: Path, specs: tuple[ModelSpec, ...]) -> Iterator[BackgroundServer]:
    models = (ModelSpec("eyes", str(folder), {"threads": 1}), *(spec for spec in specs if spec.name == "tiny"))
    with BackgroundServer(Settings(models=models, port=0, limits=Limits(picture_pixels=9_000))) as server:
        yield server


@pytest.fixture(scope="module")
def post(running: BackgroundServer) -> Any:
    def ask(path: str, **body: Any) -> httpx.Response:
        return httpx.post(running.url + path, json={"model": "eyes", **body}, timeout=120)

    return ask


def openai_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def wanted(library: weft.Model, *content: Any) -> tuple[str, int]:
    """The answer of the library to a message of texts and pictures, and the tokens of its prompt."""
    parts = [{"type": "image", "image": one} if isinstance(one, bytes) else text(one) for one in content]
    said = [{"role": "user", "content": parts}]
    return library.chat(said, max_tokens=6, temperature=0).text, len(library.chat_ids(said))


def test_openai_s_parts(post: Ask, library: weft.Model) -> None:
    content = [openai_part(URLS[0]), text("Which?"), {"type": "image_url", "image_url": URLS[1]}]
    said = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    answer = post("/v1/chat/completions", **said, max_tokens=6).json()
    found = answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    assert found == wanted(library, FILES[0], "Which?", FILES[1])
    streamed = post("/v1/chat/completions", **said, max_tokens=6, stream=True)
    assert streamed.status_code == 200 and "[DONE]" in streamed.text
    template = post("/apply-template", messages=said["messages"]).json()
    assert template["tokens"] == found[1]


def test_openai_s_responses_keep_their_pictures(post: Ask, library: weft.Model) -> None:
    content = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": URLS[2]}]
    first = post(
        "/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=6, temperature=0
    ).json()
    count = wanted(library, "Look:", FILES[2])[1]
    assert first["usage"]["input_tokens"] == count
    next_one = post("/v1/responses", input="And?", previous_response_id=first["id"], max_output_tokens=6).json()
    assert next_one["usage"]["input_tokens"] > count


def test_anthropic_s_blocks(post: Ask, library: weft.Model) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PLAIN[0]}
    said = [{"role": "user", "content": [{"type": "image", "source": source}, text("What is it?")]}]
    answer = post("/v1/messages", messages=said, max_tokens=6, temperature=0).json()
    shown = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    usage = answer["usage"]
    tokens = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    assert (shown, tokens) == wanted(library, FILES[0], "What is it?")
    assert post("/v1/messages/count_tokens", messages=said).json()["input_tokens"] == tokens


def test_ollama_s_images(post: Ask, library: weft.Model) -> None:
    options = {"temperature": 0, "num_predict": 6}
    said = [{"role": "user", "content": "Which?", "images": PLAIN[:2]}]
    answer = post("/api/chat", messages=said, options=options, stream=False).json()
    expected = wanted(library, FILES[0], FILES[1], "Which?")
    assert (answer["message"]["content"], answer["prompt_eval_count"]) == expected
    answer = post("/api/generate", prompt="Which?", images=PLAIN[:2], options=options, stream=False).json()
    assert (answer["response"], answer["prompt_eval_count"]) == expected
    assert "vision" in post("/api/show").json()["capabilities"]


LARGE = b64encode(png(np.zeros((101, 100, 3), np.uint8))).decode() if FILES else ""


@pytest.mark.parametrize(
    "path, body, param, said",
    [
        ("chat", [openai_part("http://127.0.0.1/a.png")], "content[0].image_url.url", "fetches no pictures"),
        ("chat", [openai_part("file:///etc/passwd")], "content[0].image_url.url", "begins with https://"),
        ("chat", [openai_part("/etc/passwd.")], "content[0].image_url.url", "must be a data: URL"),
        ("chat", [openai_part("")], "content[0].image_url.url", "must not be empty"),
        ("chat", [text("a"), openai_part("data:image/png;base64,AAAA")], "content[1].image_url.url", "is not a PNG"),
        ("chat", [openai_part(LARGE)], "content[0].image_url.url", "at most 9000 are allowed"),
        ("chat", [{"type": "image_url"}], "content[0].image_url", "must not be empty"),
        ("chat", [{"type": "image"}], "content[0].type", "read in messages of the user"),
        ("messages", [{"type": "image"}], "content[0].source", 'must be {"type": "base64"'),
        ("messages", [{"type": "image", "source": {"type": "file", "file_id": "a"}}], "content[0].source", "must be"),
        ("messages", [{"type": "image", "source": {"type": "url", "url": "http://a/b"}}], "url", "fetches no"),
        ("messages", [{"type": "image", "source": {"type": "base64", "data": "http://a/b"}}], "data", "in base64"),
    ],
)
def test_hostile_pictures_are_refused_by_the_name_of_their_field(
    post: Ask, path: str, body: Any, param: str, said: str
) -> None:
    route = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[path]
    answer = post(route, messages=[{"role": "user", "content": body}], max_tokens=2)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith("messages[0].content") and param in message and said in message, message


def test_pictures_of_ollama_are_refused_by_name(post: Ask) -> None:
    answer = post("/api/chat", messages=[{"role": "user", "content": "a", "images": [PLAIN[0], "AAAA"]}], stream=False)
    assert answer.status_code == 400 and answer.json()["error"].startswith("messages[0].images[1]: the picture is not")
    answer = post("/api/generate", prompt="a", images=PLAIN[:1], raw=True, stream=False)
    assert answer.status_code == 400 and "cannot be combined with raw" in answer.text


def test_a_model_that_does_not_see_says_so(post: Ask) -> None:
    for path, content, field in (
        ("/v1/chat/completions", [openai_part(URLS[0])], "messages[0].content[0].type is an image"),
        ("/v1/messages", [{"type": "image", "source": {"type": "base64", "data": PLAIN[0]}}], "messages[0].content[0]"),
    ):
        said = [{"role": "user", "content": content}]
        answer = post(path, model="tiny", messages=said, max_tokens=2)
        assert answer.status_code == 400 and field in answer.text and "this model takes no images" in answer.text
    answer = post("/api/generate", model="tiny", prompt="a", images=PLAIN[:1])
    assert answer.status_code == 400 and answer.json()["error"] == "images: this model takes no images"


def test_other_messages_have_no_pictures_and_conversations_not_too_many(post: Ask) -> None:
    said = [{"role": "system", "content": [openai_part(URLS[0])]}, {"role": "user", "content": "a"}]
    answer = post("/v1/chat/completions", messages=said, max_tokens=2)
    assert answer.status_code == 400 and "read in messages of the user" in answer.text
    many = [{"role": "user", "content": [openai_part("x")] * 65}]
    answer = post("/v1/chat/completions", messages=many, max_tokens=2)
    assert answer.status_code == 400 and "at most 64 are allowed" in answer.text
    long = [{"role": "user", "content": [openai_part(URLS[0])] * 40}]
    answer = post("/v1/chat/completions", messages=long, max_tokens=2)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded", answer.text


@pytest.mark.parametrize("kind", tiny_sights.TYPES)
def test_every_type_that_sees_reads_the_parts_of_three_apis(tmp_path: Path, kind: str) -> None:
    folder = tiny_sights.write_folder(tmp_path, kind)
    answer, _ = wanted(weft.load(str(folder), threads=1, context=512), FILES[0], "Which?")
    options = {"threads": 1, "context": 512}
    with BackgroundServer(Settings(models=(ModelSpec("sight", str(folder), options),), port=0)) as server:

        def ask(path: str, **body: Any) -> Any:
            found = httpx.post(server.url + path, json={"model": "sight", **body}, timeout=120)
            assert found.status_code == 200, found.text
            return found.json()

        content = [openai_part(URLS[0]), text("Which?")]
        said = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 6}
        assert ask("/v1/chat/completions", **said)["choices"][0]["message"]["content"] == answer
        source = {"type": "base64", "media_type": "image/png", "data": PLAIN[0]}
        said["messages"] = [{"role": "user", "content": [{"type": "image", "source": source}, text("Which?")]}]
        assert ask("/v1/messages", **said)["content"][0]["text"] == answer
        one = {"role": "user", "content": "Which?", "images": [PLAIN[0]]}
        limits = {"temperature": 0, "num_predict": 6}
        assert ask("/api/chat", messages=[one], stream=False, options=limits)["message"]["content"] == answer
