"""POST /api/chat and /api/generate: answers as lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from weft.frozen import frozen
from weft.serve.http.events import line
from weft.serve.http.faults import Fault, invalid, no_model, ollama_shape
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.ollama.schemas import ChatRequest, GenerateRequest, Generating, Message
from weft.serve.openai.chat import logprob_of
from weft.serve.pictures.conversations import image_part
from weft.serve.pictures.reading import Sent
from weft.serve.work import chatting
from weft.serve.work.chatting import Ask, Chat, Delta, Reply
from weft.serve.work.generating import Names, Running, in_words_of, isolation, keep_loaded, lease, lease_generator

if TYPE_CHECKING:
    from weft.generate import Generation, Grammar
    from weft.serve.models.generator import GenerateRunner
    from weft.serve.models.pool import Entry

LINES = "application/x-ndjson"
_OPTIONS = ("stop", "seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty")
NAMES = Names(
    {
        **{name: f"options.{name}" for name in (*_OPTIONS, "frequency_penalty")},
        "prompt": "messages",
        "max_tokens": "options.num_predict",
        "repetition_penalty": "options.repeat_penalty",
    },
    "truncate: true",
)


def stamp() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def named(context: Context, model: str) -> str:
    """The name of a model on this server: Ollama's clients append a tag."""
    models = context.serving.models
    for name in (model, model.removesuffix(":latest")):
        try:
            models.find(name)
            return name
        except Fault:
            continue
    raise no_model(model)


async def chat(context: Context, body: ChatRequest) -> Answer:
    """Answer a conversation; without messages, load or unload the model."""
    model = named(context, body.model)
    entry = keep_loaded(context, model, body.keep_alive)
    if not body.messages:
        return await _load(context, body.model, entry, {"message": {"role": "assistant", "content": ""}})
    ask = _ask(model, body, context.serving.settings.limits.default_tokens)
    ask.messages = [_message(message, f"messages[{i}].images") for i, message in enumerate(body.messages)]
    ask.tools = [msgspec.to_builtins(tool) for tool in body.tools or ()]
    return await _answer(context, body, ask, _in_message)


async def generate(context: Context, body: GenerateRequest) -> Answer:
    """Answer a prompt through the model's chat template; with `raw` continue it, with a `suffix` fill in the middle."""
    model = named(context, body.model)
    entry = keep_loaded(context, model, body.keep_alive)
    if not body.prompt and not body.suffix and not body.images:
        return await _load(context, body.model, entry, {"response": ""})
    ask = _ask(model, body, context.serving.settings.limits.default_tokens)
    if body.raw or body.suffix:
        if body.images:
            raise invalid("cannot be combined with raw or suffix: pictures are read in conversations", "images")
        return await _raw(context, body, ask)
    system = [{"role": "system", "content": body.system}] if body.system else []
    ask.messages = [*system, {"role": "user", "content": _content(body.prompt, body.images, "images")}]
    return await _answer(context, body, ask, _in_response)


def _ask(model: str, body: Generating, default_tokens: int) -> Ask:
    given = body.options
    options: dict[str, Any] = {"max_tokens": default_tokens}
    if given is not None:
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty")
        options |= {name: getattr(given, name) for name in names if getattr(given, name) is not None}
        if given.repeat_penalty is not None:
            options["repetition_penalty"] = given.repeat_penalty
        if given.seed is not None:
            options["seed"] = given.seed % 2**64
        if given.num_predict is not None and given.num_predict >= 0:
            options["max_tokens"] = given.num_predict
        if given.stop:
            options["stop"] = given.stop
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    if body.truncate:
        options["truncate"] = "left"
    variables: dict[str, Any] = {}
    if body.think is not None:
        variables["enable_thinking"] = body.think is not False
        if isinstance(body.think, str):
            variables["reasoning_effort"] = body.think
    shape = body.format
    grammar = (lambda: _grammar(shape)) if shape else None
    return Ask(model=model, messages=(), options=options, variables=variables, grammar=grammar, names=NAMES)


def _grammar(shape: Any) -> Grammar:
    from weft.generate import Grammar

    return Grammar.json_object() if shape == "json" else Grammar.json_schema(shape)


def _content(text: str, images: list[str] | None, where: str) -> str | list[dict[str, Any]]:
    """A text, or pictures and then the text."""
    if not images:
        return text
    parts = [image_part(Sent(image, f"{where}[{i}]", where)) for i, image in enumerate(images)]
    return [*parts, {"type": "text", "text": text}]


def _message(message: Message, where: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": _content(message.content or "", message.images, where)}
    if message.thinking:
        shown["reasoning_content"] = message.thinking
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id or "", "type": "function", "function": msgspec.to_builtins(call.function)}
            for call in message.tool_calls
        ]
    if message.tool_name:
        shown["name"] = message.tool_name
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


async def _load(context: Context, shown: str, entry: Entry, empty: dict[str, Any]) -> Answer:
    """A request without a text loads the model; with keep_alive 0 it unloads it."""
    gone = entry.keep_alive_s == 0
    if gone:
        await context.serving.models.unload(entry)
    else:
        await lease(context, entry.name)
    reason = "unload" if gone else "load"
    return Json({"model": shown, "created_at": stamp(), **empty, "done": True, "done_reason": reason})


@frozen
class _Said:
    """The content of a line."""

    text: str = ""
    thinking: str = ""
    calls: tuple[dict[str, Any], ...] = ()


def _in_message(said: _Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.thinking:
        message["thinking"] = said.thinking
    if said.calls:
        message["tool_calls"] = list(said.calls)
    return {"message": message}


def _in_response(said: _Said) -> dict[str, Any]:
    return {"response": said.text, **({"thinking": said.thinking} if said.thinking else {})}


Wrap = Callable[[_Said], dict[str, Any]]


async def _answer(context: Context, body: Generating, ask: Ask, wrap: Wrap) -> Answer:
    began = time.monotonic()
    started = await chatting.start(context, ask)
    loading = time.monotonic() - began
    if body.stream is not False:
        return Stream(_lines(context, body, started, wrap, loading), error_line, LINES)
    (reply,) = await started.replies()
    said = _Said(reply.text, reply.reasoning, _calls(reply))
    fields = {**_head(body.model), **wrap(said)}
    if body.logprobs:
        fields["logprobs"] = [_logprob(started.runner, entry) for entry in reply.logprobs]
    return Json({**fields, **_ending(context, (await started.generations())[0], reply.finish_reason, loading)})


async def _lines(context: Context, body: Generating, started: Chat, wrap: Wrap, loading: float) -> AsyncIterator[bytes]:
    """One line for each piece; a call is sent when it is complete, as Ollama does."""
    reply, sent = Reply(), 0

    def write(delta: Delta) -> bytes:
        nonlocal sent
        calls = _calls(reply, sent)
        sent += len(calls)
        return _line(body, started.runner, delta, wrap, calls)

    async for written in started.written(write, reply):
        yield written
    ending = _ending(context, (await started.generations())[0], reply.finish_reason, loading)
    yield line({**_head(body.model), **wrap(_Said()), **ending})


def _line(
    body: Generating, runner: GenerateRunner, delta: Delta, wrap: Wrap, calls: tuple[dict[str, Any], ...]
) -> bytes:
    if not (delta.text or delta.reasoning or calls or (body.logprobs and delta.logprobs)):
        return b""
    fields = {**_head(body.model), **wrap(_Said(delta.text, delta.reasoning, calls)), "done": False}
    if body.logprobs:
        fields["logprobs"] = [_logprob(runner, entry) for entry in delta.logprobs]
    return line(fields)


def _calls(reply: Reply, start: int = 0) -> tuple[dict[str, Any], ...]:
    """The complete calls, without the first `start` of them."""
    whole = [call for call in reply.calls if call.complete]
    return tuple(
        {"id": call.id, "function": {"index": start + i, "name": call.name, "arguments": _object(call.arguments)}}
        for i, call in enumerate(whole[start:])
    )


def _object(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}


def _logprob(runner: GenerateRunner, entry: Any) -> Any:
    return msgspec.to_builtins(logprob_of(runner, entry))


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": stamp()}


def _ending(context: Context, one: Generation, reason: str, loading: float) -> dict[str, Any]:
    """Counts, and times in nanoseconds."""
    usage, times = one.usage, one.timings
    ending: dict[str, Any] = {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": int(context.call.age_s * 1e9),
        "load_duration": int(loading * 1e9),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": int(times.prompt_ms * 1e6),
        "eval_count": usage.completion_tokens,
        "eval_duration": int(times.predicted_ms * 1e6),
    }
    if usage.truncated_tokens:
        ending["truncated_tokens"] = usage.truncated_tokens
    return ending


async def _raw(context: Context, body: GenerateRequest, ask: Ask) -> Answer:
    """Continue a prompt without the chat template, or fill in the text before a suffix."""
    began = time.monotonic()
    runner, adapter = await lease_generator(context, ask.model, to_ask=True)
    loading = time.monotonic() - began
    options = {**runner.sampling_defaults, **ask.options, **isolation(context)}
    suffix = body.suffix or None  # clients send "" for none

    def prepare() -> Any:
        from weft.generate import make_request

        made = None if ask.grammar is None else ask.grammar()
        ids = runner.text_ids(body.prompt, suffix=suffix)
        return make_request(ids, grammar=made, adapter=adapter, **runner.model.with_ends(suffix, options))

    with in_words_of(replace(NAMES, fields={**NAMES.fields, "prompt": "prompt"})):
        tenant = None if ask.grammar is None else context.call.tenant
        running = await Running.submit(context, runner, [await runner.in_thread(prepare, tenant)])

    async def lines() -> AsyncIterator[bytes]:
        async for pieces in running.pieces():
            texts = (piece.text for _, piece in pieces if piece.text)
            yield b"".join(line({**_head(body.model), "response": text, "done": False}) for text in texts)
        ((one,),) = await running.generations()
        ending = _ending(context, one, one.finish_reason, loading)
        yield line({**_head(body.model), "response": "", **ending})

    if body.stream is not False:
        return Stream(lines(), error_line, LINES)
    ((one,),) = await running.generations()
    return Json({**_head(body.model), "response": one.text, **_ending(context, one, one.finish_reason, loading)})


def error_line(fault: Fault) -> bytes:
    return line(ollama_shape(fault))
