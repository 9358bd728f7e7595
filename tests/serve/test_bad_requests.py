"""What a client reads when a request is wrong: the field, and what is expected or not supported, in plain words. The
table covers the body of every route."""

import random
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest

from weft.serve.app import all_routes
from weft.serve.fields.misfits import misfit

USER = [{"role": "user", "content": "hi"}]
CHAT = {"model": "tiny", "messages": USER}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}

# path, body, the field, the whole message (without the prefix of Ollama's or TEI's shape)
TABLE: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/chat/completions", {}, "model", "model is missing"),
    ("/v1/chat/completions", {"model": "tiny"}, "messages", "messages is missing"),
    ("/v1/chat/completions", {"model": "tiny", "messages": []}, "messages", "messages must not be empty"),
    ("/v1/chat/completions", {"model": 3, "messages": USER}, "model", "model must be a string, not 3"),
    (
        "/v1/chat/completions",
        {**CHAT, "temprature": 1},
        "temprature",
        "temprature is not a field of this request; did you mean temperature?",
    ),
    ("/v1/chat/completions", {**CHAT, "xyz": 1}, "xyz", "xyz is not a field of this request"),
    (
        "/v1/chat/completions",
        {**CHAT, "temperature": -1},
        "temperature",
        "temperature must be a number from 0 to 100; it is -1",
    ),
    ("/v1/chat/completions", {**CHAT, "n": 99}, "n", "n must be a whole number from 1 to 8; it is 99"),
    (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": "9"},
        "max_tokens",
        "max_tokens must be a whole number, not a string",
    ),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 1.5}, "max_tokens", "max_tokens must be a whole number, not 1.5"),
    (
        "/v1/chat/completions",
        {**CHAT, "repetition_penalty": 0},
        "repetition_penalty",
        "repetition_penalty must be a number above 0 and at most 100; it is 0",
    ),
    ("/v1/chat/completions", {**CHAT, "stop": 7}, "stop", "stop must be a string or a list, not 7"),
    ("/v1/chat/completions", {**CHAT, "stop": ["a", 7]}, "stop[1]", "stop[1] must be a string, not 7"),
    ("/v1/chat/completions", {**CHAT, "stop": ["a"] * 17}, "stop", "stop has 17 entries; at most 16 are allowed"),
    ("/v1/chat/completions", {**CHAT, "stream": "yes"}, "stream", "stream must be true or false, not a string"),
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "me", "content": "x"}]},
        "messages[0].role",
        "messages[0].role is 'me', which is not possible; one of "
        "'assistant', 'developer', 'function', 'system', 'tool', 'user'",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [IMAGE]},
        "messages[0].content[0].type",
        "messages[0].content[0].type is an image; this model takes no images",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": "a", "audio": {}}]},
        "messages[0].audio",
        "messages[0].audio is not supported by this server",
    ),
    ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs to be true"),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"5": 500}}, "logit_bias.5",
     "logit_bias.5 must be a number from -100 to 100; it is 500"),
    (
        "/v1/chat/completions",
        {**CHAT, "mirostat": 2},
        "mirostat",
        "mirostat is not supported: weft has no Mirostat sampling; 0 is off",
    ),
    ("/v1/completions", {"model": "tiny"}, "prompt", "prompt is missing"),
    (
        "/v1/completions",
        {"model": "tiny", "prompt": {"a": 1}},
        "prompt",
        "prompt must be a string or a list, not an object",
    ),
    ("/v1/completions", {"model": "tiny", "prompt": [-1]}, "prompt[0]",
     "prompt[0] must be a whole number from 0 to 2147483647; it is -1"),
    (
        "/v1/completions",
        {"model": "tiny", "prompt": "a", "suffix": "b"},
        "suffix",
        "[infill] suffix needs a model that can fill in the middle; this one's tokenizer has no prefix, suffix and "
        "middle tokens; "
        "use a code model that has them, such as Qwen2.5-Coder",
    ),
    ("/v1/completions", {"model": "tiny", "prompt": [1], "suffix": "b"}, "suffix",
     "suffix needs a prompt that is text, not token ids"),
    ("/v1/responses", {"model": "tiny"}, "input", "input is missing"),
    ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 0}, "max_output_tokens",
     "max_output_tokens must be a whole number from 1 to 16777216; it is 0"),
    ("/v1/embeddings", {"model": "bert"}, "input", "input is missing"),
    ("/v1/embeddings", {"model": "bert", "input": "a", "encoding_format": "b64"}, "encoding_format",
     "encoding_format is 'b64', which is not possible; one of 'base64', 'float'"),
    ("/v1/messages", {"model": "tiny", "messages": USER}, "max_tokens", "max_tokens is missing"),
    ("/v1/messages", {"model": "tiny", "messages": USER, "max_tokens": 1, "top_p": 2}, "top_p",
     "top_p must be a number from 0 to 1; it is 2"),
    ("/v1/messages", {"model": "tiny", "messages": USER, "max_tokens": 1, "mcp_servers": [{}]}, "mcp_servers",
     "mcp_servers is not supported: this server runs no tools"),
    ("/v1/messages/count_tokens", {"model": "tiny"}, "messages", "messages is missing"),
    ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "images": ["x"]}]}, "messages[0].images",
     "messages[0].images: this model takes no images"),
    ("/api/chat", {"model": "tiny", "messages": USER, "options": {"mirostat": 1}}, "options.mirostat",
     "options.mirostat is not supported: weft has no Mirostat sampling; 0 is off"),
    ("/api/chat", {"model": "tiny", "messages": USER, "options": {"top_k": "x"}}, "options.top_k",
     "options.top_k must be a whole number, not a string"),
    ("/api/generate", {"model": "tiny", "images": ["x"]}, "images", "images: this model takes no images"),
    ("/api/generate", {"model": "tiny", "prompt": "a", "template": "x"}, "template",
     "template: not supported by this server"),
    ("/api/generate", {"model": "tiny", "prompt": "a", "context": [1]}, "context",
     "context: not supported by this server"),
    ("/api/embed", {"model": "bert"}, "input", "input is missing"),
    ("/api/embeddings", {"model": "bert"}, "prompt", "prompt is missing"),
    ("/api/show", {"model": 1}, "model", "model must be a string, not 1"),
    ("/api/pull", {"model": []}, "model", "model must be a string, not a list"),
    ("/", {"inputs": 3}, "inputs", "inputs must be a string or a list, not 3"),
    ("/embed", {}, "inputs", "inputs is missing"),
    ("/similarity", {"inputs": {"sentences": ["a"]}}, "inputs.source_sentence", "inputs.source_sentence is missing"),
    ("/rerank", {"texts": ["a"]}, "query", "query is missing"),
    ("/v1/rerank", {"query": "a", "documents": [3]}, "documents[0]",
     "documents[0] must be a string or an object, not 3"),
    ("/v2/rerank", {"query": "a", "documents": []}, "documents", "documents must not be empty"),
    ("/embed_all", {"inputs": None}, "inputs", "inputs must be a string or a list, not null"),
    ("/predict", {"inputs": "a", "raw_scores": 1}, "raw_scores", "raw_scores must be true or false, not 1"),
    ("/classify", {}, "input", "input is missing"),
    ("/v1/classify", {"input": "a", "use_activation": "x"}, "use_activation",
     "use_activation must be true or false, not a string"),
    ("/score", {"text_1": 5}, "text_1", "text_1 must be a string or a list, not 5"),
    ("/v1/score", {"text1": "a"}, "text1", "text1 is not a field of this request; did you mean text_1?"),
    ("/models/load", {}, "model", "model is missing"),
    ("/models/unload", {"model": ""}, "model", "model must not be empty"),
    ("/tokenize", {"content": 1}, "content", "content must be a string, not 1"),
    ("/detokenize", {}, "tokens", "tokens is missing"),
    ("/apply-template", {"messages": {}}, "messages", "messages must be a list, not an object"),
    ("/completion", {}, "prompt", "prompt is missing"),
    ("/completion", {"prompt": "a", "n_probs": 50}, "n_probs", "n_probs must be a whole number from 0 to 20; it is 50"),
    ("/completion", {"prompt": "a", "logit_bias": [[1, "x"]]}, "logit_bias",
     "logit_bias must be a list of pairs: a token id or a text, and a number or false"),
    ("/completions", {"prompt": []}, "prompt", "prompt must not be empty"),
    ("/infill", {"input_prefix": "a"}, "input_suffix", "input_suffix is missing"),
    (
        "/infill",
        {"input_prefix": "a", "input_suffix": "b"},
        "input_suffix",
        "[infill] input_suffix needs a model that can fill in the middle; this one's tokenizer has no prefix, suffix "
        "and middle tokens; use a code model that has them, such as Qwen2.5-Coder",
    ),
    ("/v1/load_lora_adapter", {"lora_name": 1}, "lora_name", "lora_name must be a string, not 1"),
    ("/v1/unload_lora_adapter", {}, "lora_name", "lora_name is missing"),
    ("/v1/training/runs", {}, "name", "name is missing"),
    ("/v1/training/runs/{name}/register", {}, "version", "version is missing"),
    ("/v1/registry/{name}/promote", {}, "version", "version is missing"),
    ("/v1/registry/{name}/promote", {"version": "1.0.0", "force": 1}, "force", "force must be true or false, not 1"),
    ("/v1/registry/{name}/rollback", {"alias": 3}, "alias", "alias must be a string, not 3"),
    ("/v1/registry/{name}/evaluate", {"version": "1.0.0"}, "metrics", "metrics is missing"),
    ("/v1/registry/{name}/shadow", {"share": 2}, "share", "share must be a number from 0 to 1; it is 2"),
]  # fmt: skip


@pytest.mark.parametrize("path, body, field, message", TABLE, ids=lambda value: None)
def test_the_message_of_a_bad_request(
    client: httpx.Client, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    found = client.post(path, json=body)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert (error["message"] if isinstance(error, dict) else error) == message
    if isinstance(error, dict) and "param" in error:
        assert error["param"] == field


def test_the_table_has_every_route_with_a_body() -> None:
    wanted = {route.path for route in all_routes() if route.body is not None}
    assert wanted <= {path for path, *_ in TABLE}, wanted - {path for path, *_ in TABLE}


def damaged(value: Any, rng: random.Random) -> Any:
    """The value with one place changed to something else, which may still fit."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {**value, key: damaged(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], damaged(value[place], rng), *value[place + 1 :]]
    return rng.choice([None, True, 0, -1, 1.5, 10**30, "", "x", [], [1], ["a"], {}, {"type": "x"}, {"a": [1]}])


def test_whatever_msgspec_refuses_has_a_message_of_ours() -> None:
    """The comparison in misfits.py finds an error exactly where msgspec does."""
    rng = random.Random(4)
    bodies = {route.path: route.body for route in all_routes() if route.body is not None}
    for path, body, _, _ in TABLE * 40:
        changed, schema = damaged(body, rng), bodies[path]
        fits = False
        with suppress(msgspec.ValidationError):
            msgspec.convert(changed, schema)
            fits = True
        assert fits == (misfit(changed, schema) is None), (path, changed)
