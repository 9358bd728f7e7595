"""Settings of other servers: read under weft's name, ignored by name, or refused with a reason; one table for all."""

from typing import Any

import httpx
import msgspec
import pytest

import weft
from weft.serve.app import all_routes
from weft.serve.fields.client_settings import TABLE
from weft.serve.models.generator import GenerateRunner

USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": USER, "max_tokens": 2},
    "/v1/completions": {"model": "tiny", "prompt": "a", "max_tokens": 2},
    "/v1/responses": {"model": "tiny", "input": "a", "max_output_tokens": 2},
    "/v1/messages": {"model": "tiny", "messages": USER, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": USER},
    "/completion": {"prompt": "a", "n_predict": 2},
    "/completions": {"prompt": "a", "n_predict": 2},
    "/api/chat": {"model": "tiny", "messages": USER, "options": {"num_predict": 2}},
    "/api/generate": {"model": "tiny", "prompt": "a", "options": {"num_predict": 2}},
    "/api/embed": {"model": "bert", "input": "a"},
    "/api/embeddings": {"model": "bert", "prompt": "a"},
    "/v1/embeddings": {"model": "bert", "input": "a"},
    "/embed": {"inputs": "a"},
    "/": {"inputs": "a"},
    "/rerank": {"query": "a", "texts": ["b"]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
}
ROWS = [(path, row) for row in TABLE for path in row.paths]


def with_setting(path: str, name: str, value: Any) -> dict[str, Any]:
    body = {**BODIES[path]}
    if name.startswith("options."):
        return {**body, "options": {**body.get("options", {}), name.removeprefix("options."): value}}
    return {**body, name: value}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[weft.Request]:
    found: list[weft.Request] = []
    submit = GenerateRunner.submit

    async def noted(self: GenerateRunner, request: weft.Request) -> Any:
        found.append(request)
        return await submit(self, request)

    monkeypatch.setattr(GenerateRunner, "submit", noted)
    return found


def test_every_row_of_the_table_does_what_it_says(client: httpx.Client) -> None:
    """Ignored: the answer names it. Refused: a 400 with the row's reason, but not where the value switches it off."""
    off = {"mirostat": 0, "tfs_z": 1, "length_penalty": 1.0, "detokenize": True, "best_of": 1, "modalities": ["text"]}
    off |= {"reasoning_format": "auto", "include_reasoning": True, "parse_tool_calls": True, "top_n_sigma": -1}
    seen = set()
    for path, row in ROWS:
        if path not in BODIES or path in ("/completions", "/v2/rerank", "/") or row.field:
            continue
        name = row.name.removeprefix("options.")
        if row.treatment == "refused" and not name.endswith("_last_n"):
            answer = client.post(path, json=with_setting(path, row.name, {"x": 1} if name == "options" else 2.5))
            assert answer.status_code == 400 and row.note in answer.text and name in answer.text, (path, row.name)
        harmless = off.get(name, 0) if row.treatment == "refused" else 1
        if row.harmless is not None and not row.harmless(harmless, {}):
            continue
        answer = client.post(path, json=with_setting(path, row.name, harmless))
        assert answer.status_code == 200, (path, row.name, answer.text)
        assert answer.headers["x-weft-ignored"] == row.name, (path, row.name)
        seen.add(row.treatment)
    assert seen == {"ignored", "refused"}


def test_no_row_is_a_field_of_its_route_and_every_target_is(server: Any) -> None:
    """A row for a field that the schema has would never be used, and one that is read as another needs it."""
    routes = {route.path: route.body for route in all_routes() if route.body is not None}
    for path, row in ROWS:
        fields = {field.encode_name: field for field in msgspec.structs.fields(routes[path])}
        name, target = row.name, row.field
        if name.startswith("options.") and "options" in fields:
            from weft.serve.ollama.schemas import Options

            fields, name = {field.encode_name: field for field in msgspec.structs.fields(Options)}, name[8:]
        assert name not in fields, (path, row.name)
        assert not target or target in fields, (path, row.name)
    assert len({(path, row.name) for path, row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    "path, given, wanted",
    [
        ("/v1/chat/completions", {"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ("/v1/completions", {"repeat_penalty": 1.3, "temperature": 0}, {"repetition_penalty": 1.3, "temperature": 0}),
        ("/completion", {"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ("/api/chat", {"options": {"repetition_penalty": 1.3}}, {"repetition_penalty": 1.3}),
    ],
)
def test_a_penalty_is_read_under_either_name(
    client: httpx.Client, submitted: list[weft.Request], path: str, given: Any, wanted: dict[str, float]
) -> None:
    assert client.post(path, json={**BODIES[path], **given}).status_code == 200
    assert {name: getattr(submitted[0].sampling, name) for name in wanted} == wanted


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens", "num_predict", "max_completion_tokens"])
def test_the_length_of_an_answer_is_read_under_every_name(
    client: httpx.Client, submitted: list[weft.Request], name: str
) -> None:
    body = {"model": "tiny", "messages": USER}
    assert client.post("/v1/chat/completions", json={**body, name: 3}).json()["usage"]["completion_tokens"] <= 3
    assert submitted[0].max_tokens == 3
    wrong = client.post("/v1/chat/completions", json={**body, name: "x"}).json()["error"]
    assert wrong["param"] == name and wrong["message"] == f"{name} must be a whole number, not a string"


def test_settings_of_the_engine_are_read(client: httpx.Client, submitted: list[weft.Request], server: Any) -> None:
    for path, more in (
        ("/v1/chat/completions", {"cache_prompt": False, "ttl": 60, "reasoning_budget_tokens": -1}),
        ("/v1/completions", {"prefix_cache": False, "keep_alive": "1m", "skip_special_tokens": False}),
        ("/completion", {"cache_prompt": False}),
    ):
        assert client.post(path, json={**BODIES[path], **more}).status_code == 200
    assert [request.prefix_cache for request in submitted] == [False] * 3
    assert submitted[1].show_special
    entry = server.app.serving.models.entries["tiny"]
    assert entry.keep_alive_s == 60
    entry.keep_alive_s = None
    wrong = client.post("/v1/completions", json={**BODIES["/v1/completions"], "keep_alive": "soon"}).json()["error"]
    assert wrong["param"] == "keep_alive" and "5m" in wrong["message"]


@pytest.mark.parametrize(
    "path, more",
    [
        ("/v1/chat/completions", {"grammar": 'root ::= "xy"'}),
        ("/v1/chat/completions", {"ebnf": 'root ::= "xy"'}),
        ("/v1/chat/completions", {"regex": "xy"}),
        ("/v1/completions", {"grammar": 'root ::= "xy"'}),
        ("/completion", {"grammar": 'root ::= "xy"'}),
    ],
)
def test_a_grammar_is_read_under_its_other_names(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    made = client.post(path, json={**BODIES[path], **more, "seed": 1}).json()
    text = made["content"] if path == "/completion" else made["choices"][0].get("text")
    assert (text or made["choices"][0]["message"]["content"]) == "xy"


def test_a_schema_is_read_under_its_other_names(client: httpx.Client) -> None:
    schema = {"const": 7}
    for more in (
        {"json_schema": schema},
        {"guided_json": schema},
        {"response_format": {"type": "json_schema", "schema": schema}},
    ):
        for path in ("/v1/chat/completions", "/v1/completions"):
            choice = client.post(path, json={**BODIES[path], **more}).json()["choices"][0]
            assert (choice["text"] if "text" in choice else choice["message"]["content"]).strip() == "7"
    assert (
        client.post("/completion", json={**BODIES["/completion"], "json_schema": schema}).json()["content"].strip()
        == "7"
    )


def test_the_older_form_of_tools_is_answered_in_the_older_form(client: httpx.Client) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}}
    body = {
        "model": "tiny",
        "messages": USER,
        "max_tokens": 150,
        "functions": [function],
        "function_call": {"name": "f"},
    }
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "function_call"
    call = choice["message"]["function_call"]
    assert call["name"] == "f" and msgspec.json.decode(call["arguments"]) == {"a": 1}
    text = client.post("/v1/chat/completions", json={**body, "stream": True}).text
    chunks = [msgspec.json.decode(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    calls = [c["choices"][0]["delta"].get("function_call", {}) for c in chunks]
    assert msgspec.json.decode("".join(call.get("arguments", "") for call in calls)) == {"a": 1}
    assert [call["name"] for call in calls if "name" in call] == ["f"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    history = [*USER, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}}]
    history.append({"role": "function", "name": "f", "content": "one"})
    prompt = client.post("/apply-template", json={"messages": history}).json()["prompt"]
    assert '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' in prompt and "tool\none" in prompt
    both = client.post("/v1/chat/completions", json={**body, "tools": []})
    assert both.status_code == 400 and both.json()["error"]["param"] == "functions"


def test_a_call_that_the_limit_cuts_off_is_not_called_complete(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    function = {"name": "f", "parameters": schema}
    tool = {"type": "function", "function": function}
    for form in (
        {"functions": [function], "function_call": {"name": "f"}},
        {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False},
    ):
        body = {"model": "tiny", "messages": USER, "max_tokens": 40, **form}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["finish_reason"] == "length", choice


def test_the_window_of_a_penalty_matters_only_with_a_penalty(client: httpx.Client) -> None:
    for path, inner in (("/v1/completions", False), ("/api/generate", True)):
        for settings, status in (
            ({"repeat_last_n": 64}, 200),
            ({"repeat_last_n": -1, "repeat_penalty": 1.2}, 200),
            ({"repeat_last_n": 64, "repeat_penalty": 1.0}, 200),
            ({"repeat_last_n": 64, "repeat_penalty": 1.2}, 400),
        ):
            more = {"options": {"num_predict": 1, **settings}} if inner else settings
            assert client.post(path, json={**BODIES[path], **more}).status_code == status, settings


def test_null_is_not_set(client: httpx.Client) -> None:
    body = {**BODIES["/v1/completions"], "mirostat": None, "user": None, "repeat_penalty": None, "n_predict": None}
    found = client.post("/v1/completions", json=body)
    assert found.status_code == 200 and "x-weft-ignored" not in found.headers


def test_one_setting_under_two_names_is_refused(client: httpx.Client) -> None:
    body = {**BODIES["/v1/completions"], "repeat_penalty": 1.1, "repetition_penalty": 1.2}
    found = client.post("/v1/completions", json=body).json()["error"]
    assert found["message"] == "repeat_penalty and repetition_penalty are the same setting; send one of them"


def test_what_is_ignored_is_named_in_streams_too(client: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/completion"):
        found = client.post(path, json={**BODIES[path], "user": "me", "store": True, "stream": True})
        assert found.headers["x-weft-ignored"] == "user, store"
    options = {"num_predict": 1, "num_ctx": 99, "num_thread": 3}
    found = client.post("/api/chat", json={**BODIES["/api/chat"], "options": options})
    assert found.headers["x-weft-ignored"] == "options.num_ctx, options.num_thread"


def test_a_strict_server_refuses_what_it_would_ignore_and_reads_other_names(serve: Any) -> None:
    running = serve(strict=True)
    with httpx.Client(base_url=running.url, timeout=60) as client:
        found = client.post("/v1/completions", json={**BODIES["/v1/completions"], "user": "me"})
        assert found.status_code == 400 and found.json()["error"]["param"] == "user"
        assert "strict" in found.json()["error"]["message"]
        assert client.post("/v1/completions", json={**BODIES["/v1/completions"], "repeat_penalty": 1.1}).is_success


def test_the_document_of_all_routes_has_the_settings_without_effect(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    chat = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert chat["properties"]["user"]["description"].startswith("has no effect here")
    assert chat["properties"]["repeat_penalty"]["description"] == "another name of repetition_penalty"
