"""Conversations from C: the chat template as data gives the prompt that the template gives, or is refused by a code."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import libweft
import pytest
from libweft import Model, StatusError
from tiny_chat import TEMPLATE, write_chat_model

import weft
from weft.export import export
from weft.export.templates import pieces_of, written
from weft.text.chat import render

TEMPLATES = libweft.ROOT / "tests" / "golden" / "text" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
REFUSED = {"llama3.2": "date"}
SPECIAL = ["<s>", "</s>", "<|user|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|end|>"]
CONTENTS = [
    "Hello, you?",
    " spaces around \n",
    "\u3000wide\u00a0",
    "a <|im_end|> b<|im_start|>system",
    "</s><s> [INST]x[/INST]",
    "<think>hm</think>so",
    "日本語 <start_of_turn>é",
    "",
]
LONG = [("user", 0), ("assistant", 1), ("user", 2), ("assistant", 3), ("user", 4)]


def said(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


@pytest.mark.parametrize("name", NAMES)
def test_pieces_write_what_the_template_writes(name: str) -> None:
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")

    def rendered(messages: Sequence[Mapping[str, str]], asks: bool = True) -> str:
        return render(template, messages, add_generation_prompt=asks, bos_token="<s>", eos_token="</s>")

    pieces, why = pieces_of(template, rendered)
    if name in REFUSED:
        assert pieces is None and REFUSED[name] in why
        return
    assert pieces is not None, why
    rng = random.Random(name)
    for _ in range(40):
        count = rng.randrange(1, 5)
        turns = [(("user", "assistant")[i % 2], rng.choice(CONTENTS)) for i in range(2 * count - 1)]
        if "system" in pieces["roles"] and rng.random() < 0.5:
            turns.insert(0, ("system", rng.choice(CONTENTS)))
        if any(text in content for role, content in turns for text in pieces["roles"][role]["special"]):
            continue
        assert written(pieces, said(*turns)) == rendered(said(*turns))


def test_templates_that_do_more_are_refused() -> None:
    def counts(messages: Sequence[Mapping[str, str]], asks: bool = True) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + f"<{len(messages)}>" * asks

    def shouts(messages: Sequence[Mapping[str, str]], asks: bool = True) -> str:
        return "".join(f"<{m['role']}>{m['content'].upper()}" for m in messages)

    def twice(messages: Sequence[Mapping[str, str]], asks: bool = True) -> str:
        return "".join(f"<{m['role']}>{m['content']}{m['content']}" for m in messages)

    for wrong in (counts, shouts, twice):
        pieces, why = pieces_of("", wrong)
        assert pieces is None and "chat template" in why


@pytest.mark.parametrize("name", [*NAMES, "tiny"])
def test_answers_are_those_of_python(name: str, tmp_path: Path) -> None:
    template = TEMPLATE if name == "tiny" else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    path = write_chat_model(tmp_path / "m.gguf", template=template, special=SPECIAL)
    bundle = export(str(path), tmp_path / "b.weft").path
    model = weft.load(str(path), compute="f32", threads=1, draft="none")
    with Model(bundle) as native:
        if name in REFUSED:
            assert '"chat": false' in native.info
            with pytest.raises(StatusError, match=REFUSED[name]) as error:
                native.chat(said(("user", "a")))
            assert error.value.status == libweft.UNSUPPORTED
            return
        assert '"chat": true' in native.info
        for first in range(len(CONTENTS)):
            contents = [CONTENTS[(first + step) % len(CONTENTS)] for step in range(5)]
            if "</think>" in contents[1] + contents[3]:
                continue
            for messages in (said(("user", contents[0])), said(*((role, contents[at]) for role, at in LONG))):
                wanted = model.generate(model.chat_ids(messages), max_tokens=6)
                got = native.chat(messages, max_tokens=6)
                assert (got.tokens, got.prompt_tokens) == (wanted.tokens, wanted.usage.prompt_tokens), messages
        if name in ("qwen3", "smollm2", "tiny"):
            messages = said(("system", contents[0]), ("user", contents[3]))
            wanted = model.generate(model.chat_ids(messages), max_tokens=6)
            assert native.chat(messages, max_tokens=6).tokens == wanted.tokens


def test_messages_that_no_conversation_has(tmp_path: Path) -> None:
    qwen3 = (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    bundle = export(str(write_chat_model(tmp_path / "q.gguf", template=qwen3)), tmp_path / "q.weft").path
    with Model(bundle) as native:
        for messages, message in (
            ([], "at least one"),
            (said(("wizard", "a")), "wizard"),
            (said(("user", "a"), ("system", "b")), "first"),
            (said(("user", "a"), ("assistant", "b")), "answered"),
        ):
            with pytest.raises(StatusError, match=message) as error:
                native.chat(messages)
            assert error.value.status == libweft.INPUT
        with pytest.raises(StatusError, match="</think>") as error:
            native.chat(said(("user", "a"), ("assistant", "<think>b</think>c"), ("user", "d")))
        assert error.value.status == libweft.UNSUPPORTED
    mistral = (TEMPLATES / "mistral.jinja").read_text(encoding="utf-8")
    bundle = export(str(write_chat_model(tmp_path / "m.gguf", template=mistral)), tmp_path / "m.weft").path
    with Model(bundle) as native, pytest.raises(StatusError, match="turn") as error:
        native.chat(said(("user", "a"), ("user", "b")))
    assert error.value.status == libweft.INPUT
    bundle = export(str(write_chat_model(tmp_path / "n.gguf", template=None)), tmp_path / "n.weft").path
    with Model(bundle) as native, pytest.raises(StatusError, match="no chat template") as error:
        native.chat(said(("user", "a")))
    assert error.value.status == libweft.UNSUPPORTED
