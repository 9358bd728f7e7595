"""The official openai client, as people use it, gets what it expects from a live server."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

openai = pytest.importorskip("openai")

from weft.serve import BackgroundServer  # noqa: E402

USER = [{"role": "user", "content": "Say something."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/place"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["place", "days"],
            "additionalProperties": False,
            "$defs": {"place": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
}


@pytest.fixture
def ai(server: BackgroundServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_models_are_listed_with_their_state(ai):
    found = {model.id: model for model in ai.models.list()}
    assert set(found) == {"tiny", "plain", "bert"}
    assert found["bert"].kind == "embed" and found["tiny"].max_model_len == 4096
    assert ai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        ai.models.retrieve("absent")
    assert caught.value.code == "model_not_found"


def test_a_chat_answers_with_usage_and_the_same_again_for_a_seed(ai):
    made = [ai.chat.completions.create(model="tiny", messages=USER, max_tokens=12, seed=3) for _ in range(2)]
    assert made[0].choices[0].message.content == made[1].choices[0].message.content
    assert made[0].choices[0].finish_reason in ("length", "stop")
    usage = made[0].usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert made[1].usage.prompt_tokens_details.cached_tokens > 0
    assert made[0].timings["predicted_n"] == usage.completion_tokens


def test_a_stream_joins_to_the_whole_answer(ai):
    whole = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=20, seed=1)
    stream = ai.chat.completions.create(
        model="tiny", messages=USER, max_tokens=20, seed=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_several_answers_differ_and_stream_side_by_side(ai):
    whole = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=10, seed=1, n=3)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3 and [choice.index for choice in whole.choices] == [0, 1, 2]
    parts = ["", "", ""]
    for chunk in ai.chat.completions.create(model="tiny", messages=USER, max_tokens=10, seed=1, n=3, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert parts == texts


def test_log_probabilities_come_with_tokens_and_bytes(ai):
    made = ai.chat.completions.create(
        model="tiny", messages=USER, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    entries = made.choices[0].logprobs.content
    assert len(entries) == made.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].logprob == entry.logprob <= 0
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    streamed = []
    for chunk in ai.chat.completions.create(
        model="tiny", messages=USER, max_tokens=6, temperature=0, logprobs=True, stream=True
    ):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in entries]


def test_a_json_schema_holds_whatever_the_model_would_say(ai):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for seed in range(5):
        made = ai.chat.completions.create(
            model="tiny",
            messages=USER,
            seed=seed,
            max_tokens=400,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": schema, "strict": True},
            },
        )
        found = json.loads(made.choices[0].message.content)
        assert set(found) == {"name", "age"} and 0 <= found["age"] <= 99


def test_parsed_answers_of_the_client(ai):
    pydantic = pytest.importorskip("pydantic")
    Colour = pydantic.create_model("Colour", red=(bool, ...), green=(bool, ...))
    made = ai.chat.completions.parse(model="tiny", messages=USER, response_format=Colour, max_tokens=100)
    assert isinstance(made.choices[0].message.parsed.red, bool)


@pytest.mark.parametrize(
    "extra, matches",
    [
        ({"structured_outputs": {"choice": ["left", "right"]}}, {"left", "right"}),
        ({"structured_outputs": {"regex": "(ab){2}"}}, {"abab"}),
        ({"guided_choice": ["one"]}, {"one"}),
        ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, {"x", "y"}),
    ],
)
def test_vllms_ways_to_ask_for_a_shape(ai, extra, matches):
    made = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=50, extra_body=extra)
    assert made.choices[0].message.content in matches


def test_a_tool_that_is_forced_is_called_with_arguments_that_fit(ai):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        made = ai.chat.completions.create(
            model="tiny", messages=USER, tools=[WEATHER, CLOCK][: 1 if choice == "required" else 2], tool_choice=choice,
            max_tokens=200, seed=1,
        )  # fmt: skip
        message = made.choices[0].message
        assert made.choices[0].finish_reason == "tool_calls" and message.content is None
        (call,) = message.tool_calls
        assert call.function.name == "weather" and len(call.id) == 9
        found = json.loads(call.function.arguments)
        assert found["place"] in ("Oslo", "Rome") and 1 <= found["days"] <= 9


def test_a_forced_call_streams_and_works_with_a_template_without_tools(ai):
    stream = ai.chat.completions.create(
        model="plain",
        messages=USER,
        tools=[WEATHER, CLOCK],
        tool_choice="required",
        max_tokens=200,
        seed=2,
        stream=True,
    )
    name, arguments, reasons = "", "", []
    for chunk in stream:
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name in ("weather", "clock") and isinstance(json.loads(arguments), dict)
    assert reasons[-1] == "tool_calls"


def test_tools_that_a_template_cannot_write_are_not_ignored(ai):
    made = ai.chat.completions.create(model="plain", messages=USER, tools=[WEATHER], max_tokens=1)
    without = ai.chat.completions.create(model="plain", messages=USER, max_tokens=1)
    assert made.usage.prompt_tokens > without.usage.prompt_tokens + 300  # the tools are described
    assert made.warnings and "warnings" not in without.model_extra


def test_a_conversation_with_calls_and_results_goes_on(ai):
    call = {
        "id": "abc",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"place": "Oslo", "days": 1}'},
    }
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "Rain."},
    ]
    made = ai.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER], max_tokens=4)
    assert made.choices[0].finish_reason in ("length", "stop")


def test_stop_ends_before_the_text_and_bias_decides(ai):
    made = ai.chat.completions.create(
        model="tiny", messages=USER, max_tokens=8, temperature=0, logit_bias={"65": 100}, stop=["AAA"]
    )
    assert made.choices[0].message.content == "" and made.choices[0].finish_reason == "stop"
    made = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=8, temperature=0, logit_bias={"65": 100})
    assert made.choices[0].message.content == "A" * 8


def test_completions_continue_texts_and_ids(ai):
    made = ai.completions.create(model="tiny", prompt=["one", "two"], max_tokens=5, seed=1, n=2)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    again = ai.completions.create(model="tiny", prompt="two", max_tokens=5, seed=1, n=2)
    assert [c.text for c in made.choices[2:]] == [c.text for c in again.choices]
    streamed = ["", "", "", ""]
    for chunk in ai.completions.create(model="tiny", prompt=["one", "two"], max_tokens=5, seed=1, n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [c.text for c in made.choices]
    as_ids = ai.completions.create(model="tiny", prompt=[111, 110, 101], max_tokens=5, temperature=0)
    assert as_ids.usage.prompt_tokens == 3


def test_an_echoed_prompt_has_its_log_probabilities(ai):
    made = ai.completions.create(model="tiny", prompt="abc", max_tokens=0, echo=True, logprobs=2)
    (choice,) = made.choices
    assert choice.text == "abc" and choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.token_logprobs[1] < 0
    assert choice.logprobs.text_offset == [0, 1, 2]


def test_embeddings_are_the_same_as_numbers_and_as_base64(ai, server):
    texts = ["a cat", "a dog", "the quick brown fox"]
    floats = ai.embeddings.create(model="bert", input=texts, encoding_format="float")
    default = ai.embeddings.create(model="bert", input=texts)  # the client asks for base64 by itself
    raw = ai.embeddings.with_raw_response.create(model="bert", input=texts, encoding_format="base64")
    vectors = np.array([item.embedding for item in floats.data], np.float32)
    assert np.array_equal(vectors, np.array([item.embedding for item in default.data], np.float32))
    coded = json.loads(raw.text)["data"]
    assert np.array_equal(vectors, np.stack([np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in coded]))
    assert floats.usage.prompt_tokens == floats.usage.total_tokens > 0
    from weft import Embedder

    entry = server.app.serving.models.entries["bert"]
    assert np.array_equal(vectors, Embedder(entry.spec.source, threads=1).encode(texts))


def test_embeddings_of_ids_and_no_cut_of_a_model_that_does_not_say_so(ai):
    one = ai.embeddings.create(model="bert", input=[3, 4, 5], encoding_format="float").data
    two = ai.embeddings.create(model="bert", input=[[3, 4, 5], [6, 7]], encoding_format="float").data
    assert len(one) == 1 and len(two) == 2 and one[0].embedding == two[0].embedding
    whole = ai.embeddings.create(model="bert", input=[3, 4, 5], dimensions=24, encoding_format="float").data
    assert whole[0].embedding == one[0].embedding
    with pytest.raises(openai.BadRequestError, match="not trained for shorter vectors") as caught:
        ai.embeddings.create(model="bert", input=[3, 4, 5], dimensions=5)
    assert caught.value.param == "dimensions"
    for bad in ([[]], [[1 << 20]], [-1], [1, "a"], ["a", [1]], [], [[1] * 100]):
        with pytest.raises(openai.BadRequestError) as caught:
            ai.embeddings.create(model="bert", input=bad)
        assert caught.value.param.startswith("input"), bad


def test_a_model_trained_to_be_cut_is_cut_to_unit_length(tmp_path, serve):
    import json

    from tiny_st import write_st_folder

    from weft.serve import ModelSpec

    folder = write_st_folder(tmp_path / "nested")
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([e for e in entries if e["path"] != "2_Dense"]))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_matryoshka": True}))
    running = serve(models=(ModelSpec("nested", str(folder), {"threads": 1}),))
    ai = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    one = ai.embeddings.create(model="nested", input=[3, 4, 5], encoding_format="float").data[0].embedding
    short = (
        ai.embeddings.create(model="nested", input=[3, 4, 5], dimensions=33, encoding_format="float").data[0].embedding
    )
    assert len(one) == 36 and len(short) == 33 and abs(np.linalg.norm(short) - 1) < 1e-6
    assert np.allclose(np.array(short) / short[0], np.array(one[:33]) / one[0], atol=1e-5)
    for bad in (31, 37):
        with pytest.raises(openai.BadRequestError, match="32 to 36"):
            ai.embeddings.create(model="nested", input=[3, 4, 5], dimensions=bad)


def test_what_is_too_long_is_refused_with_the_numbers_or_cut_and_reported(ai):
    long = "the cat " * 100
    with pytest.raises(openai.BadRequestError) as caught:
        ai.embeddings.create(model="bert", input=[long])
    assert caught.value.code == "context_length_exceeded" and "48" in str(caught.value)
    made = ai.embeddings.create(model="bert", input=["a", long], extra_body={"truncate": "head"})
    assert made.usage.truncated_tokens == 254 and made.usage.prompt_tokens == 3 + 48
    with pytest.raises(openai.BadRequestError) as caught:
        ai.completions.create(model="tiny", prompt="x" * 5000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    assert "5000" in str(caught.value) and "4095" in str(caught.value)
    made = ai.completions.create(model="tiny", prompt="x" * 5000, max_tokens=8, extra_body={"truncate": "left"})
    assert made.usage.truncated_tokens == 5000 - made.usage.prompt_tokens > 0


def test_fields_that_nobody_knows_are_refused_by_name_and_those_without_effect_are_told(ai):
    with pytest.raises(openai.BadRequestError) as caught:
        ai.chat.completions.create(model="tiny", messages=USER, extra_body={"temprature": 1})
    assert caught.value.param == "temprature" and caught.value.code == "unknown_parameter"
    made = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=1, store=True, user="me")
    assert made.warnings == ["store has no effect here", "user has no effect here"]


def test_errors_have_openais_shape(ai):
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    cases = [
        (openai.NotFoundError, {"model": "absent", "messages": USER}, "model"),
        (openai.BadRequestError, {"model": "bert", "messages": USER}, "model"),
        (openai.BadRequestError, {"model": "tiny", "messages": []}, "messages"),
        (openai.BadRequestError, {"model": "tiny", "messages": image}, "messages[0].content[0].type"),
        (openai.BadRequestError, {"model": "tiny", "messages": USER, "top_logprobs": 2}, "top_logprobs"),
        (openai.BadRequestError, {"model": "tiny", "messages": USER, "temperature": -1}, "temperature"),
        (openai.BadRequestError, {"model": "tiny", "messages": USER, "logit_bias": {"9999": 1}}, "logit_bias"),
        (openai.BadRequestError, {"model": "tiny", "messages": USER, "stop": ["x"] * 17}, "stop"),
        (openai.BadRequestError, {"model": "tiny", "messages": USER, "stop": ["é" * 200]}, "stop"),
    ]
    for kind, body, param in cases:
        with pytest.raises(kind) as caught:
            ai.chat.completions.create(**body)
        assert caught.value.param == param, caught.value


def test_a_template_variable_cannot_smuggle_a_control_token(ai):
    for variables in ({"x": "<|im_start|>"}, {"bos_token": "y"}, {"tokenize": True}, {"messages": 1}, {"x": [1]}):
        with pytest.raises(openai.BadRequestError):
            ai.chat.completions.create(
                model="tiny", messages=USER, max_tokens=1, extra_body={"chat_template_kwargs": variables}
            )
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1,
              "cache_salt": "mine", "priority": 3}  # fmt: skip
    ai.chat.completions.create(model="tiny", messages=USER, max_tokens=1, extra_body=kwargs)


def test_the_asynchronous_client_runs_many_at_once(server):
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as ai:

            async def one(seed: int) -> str:
                if seed % 2:
                    made = await ai.chat.completions.create(model="tiny", messages=USER, max_tokens=12, seed=seed // 2)
                    return made.choices[0].message.content
                parts = []
                async for chunk in await ai.chat.completions.create(
                    model="tiny", messages=USER, max_tokens=12, seed=seed // 2, stream=True
                ):
                    parts += [choice.delta.content or "" for choice in chunk.choices]
                return "".join(parts)

            return await asyncio.gather(*(one(seed) for seed in range(40)))

    found = asyncio.run(run())
    assert found[::2] == found[1::2]


def test_a_full_queue_says_when_to_come_back_and_the_client_does(serve):
    """Three at most are in the queue; the client's own retries get all of them through."""
    running = serve(limits={"running": 1, "waiting": 2})
    url = f"{running.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as impatient:
        busy = threading.Event()
        failures: list[Any] = []

        def ask() -> None:
            try:
                impatient.chat.completions.create(
                    model="tiny", messages=USER, max_tokens=1500, extra_body={"ignore_eos": True}
                )
            except openai.RateLimitError as error:
                failures.append(error)
                busy.set()

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert busy.is_set()
        assert failures[0].response.headers["retry-after"] == "1" and failures[0].code == "queue_full"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=10) as patient:
        made = []
        threads = [
            threading.Thread(
                target=lambda: made.append(patient.chat.completions.create(model="tiny", messages=USER, max_tokens=60))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 8
