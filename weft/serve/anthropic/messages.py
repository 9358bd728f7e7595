"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from weft.serve.anthropic.schemas import Block, CountRequest, Message, MessagesRequest
from weft.serve.http.events import event
from weft.serve.http.faults import Fault, anthropic_shape, invalid
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.openai.messages import unsupported
from weft.serve.pictures.conversations import image_part
from weft.serve.pictures.reading import Sent
from weft.serve.work import chatting
from weft.serve.work.blocks import BlockWriter, Kind
from weft.serve.work.chatting import Ask, Chat, Delta, Reply
from weft.serve.work.generating import Names, lease_generator
from weft.text.calls.events import CallStarted

NAMES = Names({"prompt": "messages", "stop": "stop_sequences", "reasoning_budget": "thinking.budget_tokens"})
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def create(context: Context, body: MessagesRequest) -> Answer:
    """Answer a conversation with content blocks."""
    ask = ask_of(body)
    ask.options["max_tokens"] = body.max_tokens
    for name in ("temperature", "top_p", "top_k"):
        if getattr(body, name) is not None:
            ask.options[name] = getattr(body, name)
    if body.stop_sequences:
        ask.options["stop"] = tuple(body.stop_sequences)
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        ask.options["reasoning_budget"] = body.thinking.budget_tokens
    writer = _Writer(await chatting.start(context, ask), body)
    if body.stream:
        return Stream(writer.events(), error_event)
    return Json(await writer.whole())


async def count_tokens(context: Context, body: CountRequest) -> Answer:
    """The number of tokens of a conversation, as `create` would compute it."""
    ask = ask_of(body)
    runner, _ = await lease_generator(context, body.model)
    await chatting.see(context, runner, ask)
    return Json({"input_tokens": len(await runner.in_thread(lambda: chatting.prompt_ids(runner, ask)))})


def ask_of(body: CountRequest) -> Ask:
    """The request in the form that all chat APIs share."""
    choice, tools = body.tool_choice, []
    for number, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            raise invalid(f"is {tool.type!r:.60}; this server has no tools of its own", f"tools[{number}].type")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools.append({"type": "function", "function": function})
    kinds = {"auto": "auto", "none": "none", "any": "required", "tool": "named"}
    if choice is not None and choice.type == "tool" and choice.name is None:
        raise invalid("is missing", "tool_choice.name", code="missing_parameter")
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    wanted = body.output_format or (body.output_config.format if body.output_config is not None else None)
    return Ask(
        model=body.model,
        messages=_messages(body),
        tools=tools,
        tool_choice=kinds[choice.type] if choice is not None else "auto",
        named_tool=choice.name if choice is not None and choice.type == "tool" else None,
        parallel_calls=not (choice is not None and choice.disable_parallel_tool_use),
        variables=variables,
        grammar=None if wanted is None else lambda: _grammar(wanted.schema),
        continue_final=body.messages[-1].role == "assistant",
        names=NAMES,
    )


def _grammar(schema: dict[str, Any]) -> Any:
    from weft.generate import Grammar

    return Grammar.json_schema(schema)


def _messages(body: CountRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        text = body.system if isinstance(body.system, str) else _text(body.system, "system")
        messages.append({"role": "system", "content": text})
    for number, message in enumerate(body.messages):
        messages += _translated(message, f"messages[{number}]")
    return messages


def _translated(message: Message, where: str) -> list[dict[str, Any]]:
    """A message in the form that chat templates read; tool results come before the text of the same message."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    parts: list[dict[str, Any]] = []  # texts and pictures in their order
    thoughts: list[str] = []
    for number, block in enumerate(message.content):
        place = f"{where}.content[{number}]"
        if block.type == "text":
            texts.append(_required(block.text, f"{place}.text"))
            parts.append({"type": "text", "text": texts[-1]})
        elif block.type == "image" and message.role == "user":
            parts.append(image_part(_picture(block.source, place)))
        elif block.type == "tool_use":
            function = {"name": _required(block.name, f"{place}.name"), "arguments": block.input or {}}
            calls.append({"id": block.id or "", "type": "function", "function": function})
        elif block.type == "tool_result":
            content = block.content or ""
            text = content if isinstance(content, str) else _text(content, f"{place}.content")
            shown = f"Error: {text}" if block.is_error else text
            results.append({"role": "tool", "tool_call_id": block.tool_use_id or "", "content": shown})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            raise invalid(unsupported(block.type), f"{place}.type")
    if not parts and not calls and not thoughts and results:
        return results
    only_texts = len(parts) == len(texts)
    said: dict[str, Any] = {"role": message.role, "content": "\n".join(texts) if only_texts else parts}
    if calls:
        said["tool_calls"] = calls
    if any(thoughts):
        said["reasoning_content"] = "\n".join(thoughts)
    return [*results, said]


def _picture(source: dict[str, Any] | None, place: str) -> Sent:
    """{"type": "base64", "media_type": …, "data": …} or {"type": "url", "url": …}"""
    kinds = {"base64": "data", "url": "url"}
    field = kinds.get(str(source.get("type"))) if source is not None else None
    given = source.get(field) if source is not None and field is not None else None
    if not isinstance(given, str):
        raise invalid('must be {"type": "base64", "data": …} or {"type": "url", "url": …}', f"{place}.source")
    if (field == "url") != ("://" in given[:16]):
        what = "must be an address" if field == "url" else "must be the bytes of an image in base64"
        raise invalid(what, f"{place}.source.{field}")
    return Sent(given, f"{place}.source.{field}", f"{place}.type")


def _text(blocks: Sequence[Block], where: str) -> str:
    for number, block in enumerate(blocks):
        if block.type != "text":
            raise invalid(unsupported(block.type), f"{where}[{number}].type")
    return "\n".join(_required(block.text, f"{where}[{i}].text") for i, block in enumerate(blocks))


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise invalid("is missing", where, code="missing_parameter")
    return value


def error_event(fault: Fault) -> bytes:
    return event(anthropic_shape(fault), "error")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


class _Writer(BlockWriter):
    """Writes a chat in Anthropic's form, whole or as events."""

    def __init__(self, chat: Chat, body: MessagesRequest) -> None:
        super().__init__()
        self._chat = chat
        self._id, self._model = f"msg_{uuid4().hex}", body.model
        self._index = -1

    async def whole(self) -> dict[str, Any]:
        (reply,) = await self._chat.replies()
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
        if reply.text or not reply.calls:
            content.append({"type": "text", "text": reply.text})
        for call in reply.calls:
            content.append(
                {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": _object(call.arguments)}
            )
        message = self._message(content)
        return {**message, **await self._ending(reply), "usage": await self._usage()}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    async def _ending(self, reply: Reply) -> dict[str, Any]:
        stop = (await self._chat.generations())[0].stop
        reason = _REASONS.get(reply.finish_reason, "end_turn")
        if stop is not None and reason == "end_turn":
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": reason, "stop_sequence": None}

    async def _usage(self) -> dict[str, Any]:
        usage = (await self._chat.generations())[0].usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }

    async def events(self) -> AsyncIterator[bytes]:
        usage = {"input_tokens": self._chat.prompt_tokens, "output_tokens": 0}
        yield _event("message_start", message={**self._message([]), "usage": usage})
        reply = Reply()
        async for written in self._chat.written(self.write, reply):
            yield written
        if self._index < 0:
            yield self.empty_text()
        ending, usage = await self._ending(reply), await self._usage()
        yield self.close() + _event("message_delta", delta=ending, usage=usage) + _event("message_stop")

    def begin(self, kind: Kind, call: CallStarted | None) -> bytes:
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif call is not None:
            block = {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": {}}
        return _event("content_block_start", index=self._index, content_block=block)

    def add(self, kind: Kind, text: str, delta: Delta) -> bytes:
        name, field = _DELTAS[kind]
        return _event("content_block_delta", index=self._index, delta={"type": name, field: text})

    def end(self, kind: Kind) -> bytes:
        return _event("content_block_stop", index=self._index)


_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def _object(arguments: str) -> Any:
    """The arguments of a call; an empty object if they were cut off."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
