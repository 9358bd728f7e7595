"""What a model thinks is kept apart from what it says, in the shape of each API, whole and streamed."""

import httpx
import pytest
from tiny_chat import write_chat_model

from weft.serve import ModelSpec

# The prompt opens the reasoning, and the tiny model never closes it: all of its answer is reasoning.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n</think>\n{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("thinker") / "thinker.gguf", template=TEMPLATE)


@pytest.fixture
def server(serve, thinker):
    return serve(models=(ModelSpec("thinker", str(thinker), {"threads": 1}),))


def test_openai_has_reasoning_content_and_effort_none_turns_it_off(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as ai:
        same = {"model": "thinker", "messages": USER, "max_tokens": 20, "temperature": 0}
        message = ai.chat.completions.create(**same).choices[0].message
        assert message.content == "" and message.reasoning_content
        parts = [c.choices[0].delta for c in ai.chat.completions.create(**same, stream=True) if c.choices]
        assert "".join(getattr(p, "reasoning_content", "") or "" for p in parts) == message.reasoning_content
        assert not "".join(p.content or "" for p in parts)
        plain = ai.chat.completions.create(**same, reasoning_effort="none").choices[0].message
        assert plain.content and not getattr(plain, "reasoning_content", None)
        made = ai.responses.create(model="thinker", input="hi", max_output_tokens=20, temperature=0)
        assert made.output[0].type == "reasoning" and made.output[0].content[0].text
        events = list(
            ai.responses.create(model="thinker", input="hi", max_output_tokens=20, temperature=0, stream=True)
        )
        streamed = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
        assert streamed == made.output[0].content[0].text


def test_anthropic_has_blocks_of_thinking(server):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=server.url, api_key="none") as claude:
        same = {"model": "thinker", "messages": USER, "max_tokens": 20, "extra_body": {"temperature": 0}}
        made = claude.messages.create(**same)
        assert made.content[0].type == "thinking" and made.content[0].thinking
        with claude.messages.stream(**same) as stream:
            final = stream.get_final_message()
        assert final.content[0].thinking == made.content[0].thinking
        off = claude.messages.create(**same, thinking={"type": "disabled"})
        assert off.content[0].type == "text" and off.content[0].text


def test_ollama_has_thinking(server):
    body = {"model": "thinker", "messages": USER, "options": {"temperature": 0, "num_predict": 20}, "stream": False}
    made = httpx.post(f"{server.url}/api/chat", json=body, timeout=30).json()["message"]
    assert made["thinking"] and made["content"] == ""
    off = httpx.post(f"{server.url}/api/chat", json={**body, "think": False}, timeout=30).json()["message"]
    assert off["content"] and "thinking" not in off
