"""Whatever a client sends as a body, the answer is 200 or a 400 that names the field; nothing is a 500."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from weft.errors import InputError, NotFoundError
from weft.serve.http.bodies import check_structure, decode
from weft.serve.http.faults import Fault, fault_of
from weft.serve.ollama import schemas as ollama
from weft.serve.openai.schemas import ChatRequest, EmbeddingRequest
from weft.serve.settings import Limits
from weft.serve.tei.schemas import EmbedRequest

USER = [{"role": "user", "content": "hi"}]
CHAT = {"model": "tiny", "messages": USER, "max_tokens": 1}
FIELDS = [
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "seed", "presence_penalty"),
    *("frequency_penalty", "top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "priority"),
    *("top_logprobs", "reasoning_budget", "logit_bias.65", "stop_token_ids.0", "stream", "logprobs", "ignore_eos"),
    *("parallel_tool_calls", "stop", "truncate", "cache_salt", "speculate", "user", "reasoning_effort"),
]
EMBED_FIELDS = ["dimensions", "encoding_format", "input", "prompt"]
VALUES = [
    *("-1", "-0.0", "0", "1", "2147483648", "9223372036854775808", "18446744073709551616", "1e308", "1e400"),
    *("NaN", "Infinity", '"1"', "true", "null", "[]", "{}", "-Infinity", '"x"'),
]  # fmt: skip


def with_value(body: dict, field: str, value: str) -> bytes:
    """The body's text with `value`, which may be no JSON, at the place `field`."""
    name, _, inner = field.partition(".")
    mark: object = "@@"
    if inner:
        mark = {inner: "@@"} if not inner.isdigit() or name == "logit_bias" else ["@@"]
    return json.dumps({**body, name: mark}).replace('"@@"', value).encode()


@pytest.mark.parametrize("field", FIELDS)
def test_bad_numbers_are_refused_by_the_name_of_their_field(client, field):
    base = {**CHAT, "logprobs": True} if field == "top_logprobs" else CHAT
    seen = set()
    for value in VALUES:
        headers = {"content-type": "application/json"}
        found = client.post("/v1/chat/completions", content=with_value(base, field, value), headers=headers)
        assert found.status_code in (200, 400), (value, found.status_code, found.text)
        seen.add(found.status_code)
        if found.status_code == 400:
            param = found.json()["error"]["param"]
            assert (param and field.partition(".")[0] in param) or field.partition(".")[2] == param, (value, found.text)
    assert 400 in seen


@pytest.mark.parametrize("field", EMBED_FIELDS)
def test_bad_values_of_embeddings_are_refused_by_name(client, field):
    for value in VALUES:
        body = with_value({"model": "bert", "input": "a"}, field, value)
        found = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
        assert found.status_code in (200, 400), (value, found.text)
        if found.status_code == 400:
            assert field in found.json()["error"]["param"], (value, found.text)


@pytest.mark.parametrize("value", [*VALUES, '"\\ud800"', '"' + "x" * 100_000 + '"', "[[1]]", '[{"a": 1}]'])
def test_bad_completions_prompts_never_reach_the_engine(client, value):
    body = with_value({"model": "tiny", "max_tokens": 1}, "prompt", value)
    found = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code in (200, 400), found.text
    for ids in ([-1], [258], [1 << 40], [[]], [[1], "a"], [1, [2]]):
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": ids, "max_tokens": 1}).status_code == 400


@pytest.mark.parametrize(
    "text", ["\\ud800", "a \\ud800 b", "\\udc00 and more text", "\\uD83D\\u0041", "\\\\\\ud83d\\ud83d\\ude00"]
)
def test_half_of_a_surrogate_pair_is_told_as_what_it_is(client, text):
    body = f'{{"model": "bert", "input": ["a", "{text}"]}}'.encode()
    found = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 400 and "half of a surrogate pair" in found.json()["error"]["message"]
    for whole in ("\\ud83d\\ude00", "\\\\ud800"):  # a character, and a backslash before letters
        body = f'{{"model": "bert", "input": "{whole}"}}'.encode()
        assert client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"}).is_success


def test_a_body_cut_anywhere_is_a_400(client):
    whole = json.dumps({**CHAT, "stop": ["é\u0001\\"], "seed": 12}, ensure_ascii=False).encode()
    for end in range(len(whole)):
        found = client.post("/v1/chat/completions", content=whole[:end], headers={"content-type": "application/json"})
        assert found.status_code == 400, whole[:end]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 10_000,
        b"[" * (8 << 20),
        b'{"model": "tiny", "messages": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"[" + b"1," * 1_100_000 + b"1]",
        b"[]," * 1_000_000,
        b'"' * 100_001,
        b'{"model": "\xff\xfe", "messages": []}',
        b'{"model": "\xed\xa0\x80", "messages": []}',
        b"\xef\xbb\xbf{}",
        b"null",
        b"",
        b"{}{}",
        b"\x00",
    ],
    ids=lambda body: body[:12].hex(),
)
def test_malformed_and_hostile_bodies_are_refused_quickly(client, body):
    found = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 400, found.text
    assert found.elapsed.total_seconds() < 2


def test_nesting_up_to_the_limit_is_taken_and_brackets_in_texts_do_not_count():
    limits = Limits(json_depth=8)
    check_structure(b"[" * 8 + b"]" * 8, limits)
    check_structure(b'{"a": "' + b"[{" * 50 + b'\\"]"}', limits)
    with pytest.raises(Fault):
        check_structure(b"[" * 9 + b"]" * 9, limits)
    with pytest.raises(Fault):
        check_structure(b'[{"a":' * 5 + b"1" + b"}]" * 5, limits)


def test_random_damage_is_never_more_than_a_fault():
    rng = random.Random(5)
    whole = bytearray(json.dumps({**CHAT, "logit_bias": {"1": 2}, "tools": [], "n": 2}).encode())
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.choice(b'{}[]",:0123456789.eE+-\\ntrue\x00\xff')
        with suppress(Fault):
            decode(bytes(body), ChatRequest, Limits())


def test_messages_of_errors_hold_no_path_and_no_prompt(client):
    secret = "xyzzy-secret-prompt"
    bodies = [
        {**CHAT, "messages": [{"role": "user", "content": secret}], "n": 99},
        {**CHAT, "messages": [{"role": "user", "content": secret}], "response_format": {"type": "json_schema"}},
        {**CHAT, "model": "../../etc/passwd"},
        {**CHAT, "model": "/etc/passwd"},
    ]
    for body in bodies:
        found = client.post("/v1/chat/completions", json=body)
        assert 400 <= found.status_code < 500
        assert secret not in found.text and "/tmp" not in found.text and "0x" not in found.text


@pytest.mark.parametrize(
    ("schema", "body", "field", "known"),
    [
        (
            EmbeddingRequest,
            {"model": "a", "input": "a", "encoding_format": "b64"},
            "encoding_format",
            "'base64', 'float'",
        ),
        (EmbedRequest, {"inputs": "a", "truncation_direction": "up"}, "truncation_direction", "'Left', 'Right'"),
        (ChatRequest, {"model": "a", "messages": [{"role": "me"}]}, "messages[0].role", "'assistant', 'developer'"),
    ],
)
def test_a_value_of_no_choice_is_told_with_the_choices(schema, body, field, known):
    with pytest.raises(Fault) as caught:
        decode(json.dumps(body).encode(), schema, Limits())
    assert caught.value.param == field and f"; one of {known}" in str(caught.value)


def test_a_field_that_no_model_takes_says_so():
    body = b'{"model": "m", "messages": [{"role": "user", "images": [1]}]}'
    with pytest.raises(Fault, match=r"messages\[0\]\.images\[0\] must be a string, not 1"):
        decode(body, ollama.ChatRequest, Limits())
    with pytest.raises(Fault, match="template: not supported by this server"):
        decode(b'{"model": "m", "template": "x"}', ollama.GenerateRequest, Limits())
    with pytest.raises(Fault, match=r"messages\[0\]\.audio is not supported by this server"):
        decode(b'{"model": "m", "messages": [{"role": "user", "audio": "b"}]}', ChatRequest, Limits())


def test_a_fault_names_the_field_and_no_folder_of_the_server():
    found = fault_of(InputError("request", "must be shorter", field="stop", index=3))
    assert found.param == "stop" and found.message == "[request] stop 3 must be shorter"
    missing = fault_of(NotFoundError("adapter", "does not exist", given=Path("/srv/secret/one")))
    assert missing.status == 404 and missing.message == "[adapter] does not exist: got 'one'"
    assert "srv" not in fault_of(InputError("adapter", "cannot read /srv/secret/one.json: denied")).message
