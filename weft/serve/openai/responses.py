"""POST /v1/responses: OpenAI's newer API, without features that keep state between requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from weft.serve.http.faults import Fault, invalid
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.openai.chat import logprob_of
from weft.serve.openai.events import new_id, now
from weft.serve.openai.messages import arguments_of, text_of
from weft.serve.openai.options import of_format
from weft.serve.openai.response_schemas import Item, NamedFunctionTool, ResponsesRequest
from weft.serve.openai.schemas import JsonSchema, ResponseFormat
from weft.serve.work import chatting
from weft.serve.work.chatting import Ask, Chat, Delta, Reply
from weft.serve.work.generating import Names
from weft.text.tool_calls import Arguments, CallEnded, CallStarted

LOGPROBS = "message.output_text.logprobs"


async def respond(context: Context, body: ResponsesRequest) -> Answer:
    """Answer with a list of items: reasoning, a message, calls of functions."""
    ask = ask_of(body, context.serving.settings.limits.default_tokens)
    started = await chatting.start(context, ask)
    writer = _Writer(started, body)
    if body.stream:
        return Stream(writer.events(), writer.error_event)
    return Json(await writer.whole())


def ask_of(body: ResponsesRequest, default_tokens: int) -> Ask:
    if body.background:
        raise invalid("is not supported", "background")
    options: dict[str, Any] = {"max_tokens": body.max_output_tokens or default_tokens}
    for name in ("temperature", "top_p", "min_p"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)
    if body.seed is not None:
        options["seed"] = body.seed % 2**64
    if body.truncation == "auto":
        options["truncate"] = "middle"
    if body.top_logprobs is not None or LOGPROBS in (body.include or ()):
        options["logprobs"] = body.top_logprobs or 0
    variables: dict[str, Any] = {}
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables = {"reasoning_effort": body.reasoning.effort, "enable_thinking": body.reasoning.effort != "none"}
    choice = body.tool_choice or "auto"
    wanted = body.text.format if body.text is not None else None
    return Ask(
        model=body.model,
        messages=_messages(body),
        options=options,
        tools=_tools(body),
        tool_choice="named" if isinstance(choice, NamedFunctionTool) else choice,
        named_tool=choice.name if isinstance(choice, NamedFunctionTool) else None,
        parallel_calls=body.parallel_tool_calls is not False,
        variables={**variables, **(body.chat_template_kwargs or {})},
        grammar=None if wanted is None or wanted.type == "text" else lambda: of_format(_format(wanted)),
        names=Names({"prompt": "input", "max_tokens": "max_output_tokens"}, 'truncation: "auto"'),
    )


def _format(wanted: Any) -> ResponseFormat:
    schema = None if wanted.schema is None else JsonSchema(schema=wanted.schema)
    return ResponseFormat(type=wanted.type, json_schema=schema)


def _tools(body: ResponsesRequest) -> list[dict[str, Any]]:
    tools = []
    for number, tool in enumerate(body.tools or ()):
        if tool.type != "function" or tool.name is None:
            raise invalid("must be a function with a name", f"tools[{number}].type")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        tools.append({"type": "function", "function": function})
    return tools


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for number, item in enumerate(body.input):
        _add(messages, item, f"input[{number}]")
    if not any(message["role"] != "system" for message in messages):
        raise invalid("has no message to answer", "input")
    return messages


def _add(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    """Append an item; calls belong to the preceding message of the assistant."""
    if item.type == "message":
        if item.role is None or item.content is None:
            raise invalid("needs a role and content", where)
        role = "system" if item.role == "developer" else item.role
        messages.append({"role": role, "content": text_of(item.content, f"{where}.content")})
    elif item.type == "function_call":
        if item.name is None:
            raise invalid("is missing", f"{where}.name")
        function = {"name": item.name, "arguments": arguments_of(item.arguments or "{}", where)}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"id": item.call_id or "", "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output":
        if item.output is None:
            raise invalid("is missing", f"{where}.output")
        content = text_of(item.output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": content})
    elif item.type != "reasoning":  # which templates leave out of earlier turns anyway
        raise invalid(f"is {item.type!r:.60}, which is not supported", f"{where}.type")


class _Open:
    """The item that is being written, and its place."""

    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.text = ""


class _Writer:
    """A chat as items, whole or as events."""

    def __init__(self, chat: Chat, body: ResponsesRequest) -> None:
        self._chat = chat
        self._body = body
        self._number = 0
        self._id, self._created = new_id("resp"), now()
        self._items: list[dict[str, Any]] = []
        self._open: _Open | None = None

    async def whole(self) -> dict[str, Any]:
        (reply,) = await self._chat.replies()
        items: list[dict[str, Any]] = []
        if reply.reasoning:
            items.append(_reasoning(new_id("rs"), reply.reasoning))
        if reply.text or not reply.calls:
            items.append(_message(new_id("msg"), reply.text, self._logprobs(reply.logprobs)))
        for call in reply.calls:
            items.append(_call(new_id("fc"), call.id, call.name, call.arguments))
        return await self._response(reply, items)

    def _logprobs(self, found: Any) -> list[Any]:
        return [msgspec.to_builtins(logprob_of(self._chat.runner, entry)) for entry in found]

    async def _response(self, reply: Reply | None, items: list[dict[str, Any]]) -> dict[str, Any]:
        """The response; without a reply, as it stands at the beginning."""
        body = self._body
        status = "in_progress" if reply is None else "incomplete" if reply.finish_reason == "length" else "completed"
        made: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": msgspec.to_builtins(body.text.format) if body.text and body.text.format else _PLAIN},
            "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
            "tools": [msgspec.to_builtins(tool) for tool in body.tools or ()],
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        }
        if reply is not None:
            usage = (await self._chat.generations())[0].usage
            made["usage"] = {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            }
            if usage.truncated_tokens:
                made["usage"]["truncated_tokens"] = usage.truncated_tokens
        return made

    # As events

    def _event(self, kind: str, **said: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **said}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"

    def error_event(self, fault: Fault) -> bytes:
        return self._event("error", code=fault.code, message=fault.message, param=fault.param)

    async def events(self) -> AsyncIterator[bytes]:
        begun = await self._response(None, [])
        yield self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
        reply = Reply()
        async for said in self._chat.written(self._delta, reply):
            yield said
        rest = self._close()
        if not self._items:
            rest += self._begin(_message(new_id("msg"), "", [])) + self._close()
        response = await self._response(reply, self._items)
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        yield rest + self._event(kind, response=response)

    def _delta(self, delta: Delta) -> bytes:
        said = b""
        if delta.reasoning:
            said += self._turn_to("reasoning", lambda: _reasoning(new_id("rs"), ""))
            said += self._text("response.reasoning_text.delta", delta.reasoning)
        if delta.text:
            said += self._turn_to("message", lambda: _message(new_id("msg"), "", []))
            said += self._text("response.output_text.delta", delta.text, logprobs=self._logprobs(delta.logprobs))
        for event in delta.events:
            if isinstance(event, CallStarted):
                said += self._close() + self._begin(_call(new_id("fc"), event.id, event.name, ""))
            elif isinstance(event, Arguments) and self._open is not None:
                self._open.text += event.text
                said += self._event(
                    "response.function_call_arguments.delta",
                    item_id=self._open.item["id"],
                    output_index=self._open.index,
                    delta=event.text,
                )
            elif isinstance(event, CallEnded):
                said += self._close()
        return said

    def _text(self, kind: str, text: str, **more: Any) -> bytes:
        assert self._open is not None
        self._open.text += text
        at = {"item_id": self._open.item["id"], "output_index": self._open.index, "content_index": 0}
        return self._event(kind, **at, delta=text, **more)

    def _turn_to(self, kind: str, make: Any) -> bytes:
        if self._open is not None and self._open.item["type"] == kind:
            return b""
        return self._close() + self._begin(make())

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._open = _Open(len(self._items), {**item, "status": "in_progress"})
        shown = {**self._open.item, **({"content": []} if "content" in item else {})}
        said = self._event("response.output_item.added", output_index=self._open.index, item=shown)
        if "content" in item:
            at = {"item_id": item["id"], "output_index": self._open.index, "content_index": 0}
            said += self._event("response.content_part.added", **at, part={**item["content"][0], "text": ""})
        return said

    def _close(self) -> bytes:
        """End the item that is open, if one is."""
        if self._open is None:
            return b""
        opened, self._open = self._open, None
        item = {**opened.item, "status": "completed"}
        at = {"item_id": item["id"], "output_index": opened.index}
        if item["type"] == "function_call":
            item["arguments"] = opened.text
            said = self._event("response.function_call_arguments.done", **at, name=item["name"], arguments=opened.text)
        else:
            part = {**item["content"][0], "text": opened.text}
            item["content"] = [part]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            said = self._event(f"response.{kind}.done", **at, content_index=0, text=opened.text, **more)
            said += self._event("response.content_part.done", **at, content_index=0, part=part)
        self._items.append(item)
        return said + self._event("response.output_item.done", output_index=opened.index, item=item)


_PLAIN = {"type": "text"}


def _message(id: str, text: str, logprobs: list[Any]) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _reasoning(id: str, text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"id": id, "type": "reasoning", "summary": [], "content": [part], "status": "completed"}


def _call(id: str, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
