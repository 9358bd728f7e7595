"""POST /v1/responses: answers as lists of items, whole, as events, or in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from weft.serve.http.events import event
from weft.serve.http.faults import Fault, invalid
from weft.serve.http.rejoining import Rejoined, keep
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.openai.chat import logprob_of
from weft.serve.openai.events import new_id, now
from weft.serve.openai.options import of_format
from weft.serve.openai.schemas import JsonSchema, ResponseFormat
from weft.serve.responses.items import call_item, input_items, message_item, messages_of, reasoning_item
from weft.serve.responses.schemas import NamedFunctionTool, ResponsesRequest
from weft.serve.responses.store import Stored
from weft.serve.work import chatting
from weft.serve.work.blocks import BlockWriter, Kind
from weft.serve.work.chatting import Ask, Chat, Delta, Reply
from weft.serve.work.generating import Names
from weft.text.calls.events import CallStarted

LOGPROBS = "message.output_text.logprobs"


async def respond(context: Context, body: ResponsesRequest) -> Answer:
    """Answer with a list of items: reasoning, a message, calls of functions."""
    earlier = _earlier(context, body)
    items = input_items(body.input)
    ask = ask_of(body, messages_of(body, earlier), context.serving.settings.limits.default_tokens)
    started = await chatting.start(context, ask)
    writer = _Writer(context, started, body, [*earlier, *items])
    if body.background:
        return await writer.in_background()
    if body.stream:
        return Stream(writer.events(), writer.error_event)
    return Json(await writer.whole())


def _earlier(context: Context, body: ResponsesRequest) -> list[dict[str, Any]]:
    """The items of the conversation that the request continues: what the earlier response answered, and its output."""
    id, param = body.previous_response_id, "previous_response_id"
    if body.background and body.store is False:
        raise invalid("needs store: true, since the response is fetched later", "background")
    if id is None:
        return []
    found = context.serving.responses.get(id, context.call.tenant)
    if found is None:
        what = f"is {id!r:.80}, which is not stored: deleted, made with store: false, or too long ago"
        raise invalid(what, param, code="previous_response_not_found")
    if found.response["status"] not in ("completed", "incomplete"):
        raise invalid(f"is {id!r:.80}, a response that is {found.response['status']}", param)
    return [*found.items, *found.response["output"]]


def ask_of(body: ResponsesRequest, messages: list[dict[str, Any]], default_tokens: int) -> Ask:
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
        messages=messages,
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


class _Writer(BlockWriter):
    """Writes a chat as output items, whole or as events, and stores the response. `given` are the items it answers."""

    def __init__(self, context: Context, chat: Chat, body: ResponsesRequest, given: list[dict[str, Any]]) -> None:
        super().__init__()
        self._serving, self._tenant = context.serving, context.call.tenant
        self._context = context
        self._chat = chat
        self._body = body
        self._given = given
        self._number = 0
        self._id, self._created = new_id("resp"), now()
        self._items: list[dict[str, Any]] = []  # those that are complete
        self._item: dict[str, Any] = {}  # the one that is being written, and its text so far
        self._text = ""

    async def whole(self) -> dict[str, Any]:
        (reply,) = await self._chat.replies()
        items: list[dict[str, Any]] = []
        if reply.reasoning:
            items.append(reasoning_item(new_id("rs"), reply.reasoning))
        if reply.text or not reply.calls:
            items.append(message_item(new_id("msg"), reply.text, self._logprobs(reply.logprobs)))
        for call in reply.calls:
            items.append(call_item(new_id("fc"), call.id, call.name, call.arguments))
        return self._stored(await self._response(reply, items))

    async def in_background(self) -> Answer:
        """Generate without the client, which may fetch the response or rejoin its events later."""
        begun = await self._response(None, [])
        stream = Stream(self.events(), self.error_event)
        kept = keep(self._context, stream, None, self._id)
        self._serving.responses.put(Stored(self._tenant, begun, self._given))
        return Rejoined(kept) if self._body.stream else Json(begun)

    def _stored(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response, stored unless the request says otherwise or it was deleted meanwhile."""
        responses = self._serving.responses
        deleted = self._body.background and responses.get(self._id, self._tenant) is None
        if response["store"] and not deleted:
            responses.put(Stored(self._tenant, response, self._given))
        return response

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
            "background": bool(body.background),
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store is not False,
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

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(value, kind)

    def error_event(self, fault: Fault) -> bytes:
        """The event of an error that ends the stream; a response in the background is stored as failed."""
        begun = self._serving.responses.get(self._id, self._tenant)
        if begun is not None:
            status = "cancelled" if fault.code == "cancelled" else "failed"
            error = None if status == "cancelled" else {"code": "server_error", "message": fault.message}
            self._stored({**begun.response, "status": status, "error": error, "output": self._items})
        return self._event("error", code=fault.code, message=fault.message, param=fault.param)

    async def events(self) -> AsyncIterator[bytes]:
        begun = await self._response(None, [])
        yield self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
        reply = Reply()
        async for written in self._chat.written(self.write, reply):
            yield written
        rest = self.close()
        if not self._items:
            rest += self.empty_text() + self.close()
        response = await self._response(reply, self._items)
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        yield rest + self._event(kind, response=self._stored(response))

    @property
    def _at(self) -> dict[str, Any]:
        """Where the open item stands in the output."""
        return {"item_id": self._item["id"], "output_index": len(self._items)}

    def begin(self, kind: Kind, call: CallStarted | None) -> bytes:
        if call is not None:
            item = call_item(new_id("fc"), call.id, call.name, "")
        else:
            item = reasoning_item(new_id("rs"), "") if kind == "reasoning" else message_item(new_id("msg"), "", [])
        self._item, self._text = {**item, "status": "in_progress"}, ""
        shown = {**self._item, **({"content": []} if "content" in item else {})}
        written = self._event("response.output_item.added", output_index=len(self._items), item=shown)
        if "content" in item:
            part = {**item["content"][0], "text": ""}
            written += self._event("response.content_part.added", **self._at, content_index=0, part=part)
        return written

    def add(self, kind: Kind, text: str, delta: Delta) -> bytes:
        self._text += text
        if kind == "call":
            return self._event("response.function_call_arguments.delta", **self._at, delta=text)
        if kind == "reasoning":
            return self._event("response.reasoning_text.delta", **self._at, content_index=0, delta=text)
        logprobs = self._logprobs(delta.logprobs)
        return self._event("response.output_text.delta", **self._at, content_index=0, delta=text, logprobs=logprobs)

    def end(self, kind: Kind) -> bytes:
        at, item = self._at, {**self._item, "status": "completed"}
        if kind == "call":
            item["arguments"] = self._text
            done = {"name": item["name"], "arguments": self._text}
            written = self._event("response.function_call_arguments.done", **at, **done)
        else:
            part = {**item["content"][0], "text": self._text}
            item["content"] = [part]
            name = "reasoning_text" if kind == "reasoning" else "output_text"
            more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
            written = self._event(f"response.{name}.done", **at, content_index=0, text=self._text, **more)
            written += self._event("response.content_part.done", **at, content_index=0, part=part)
        index = len(self._items)
        self._items.append(item)
        return written + self._event("response.output_item.done", output_index=index, item=item)


_PLAIN = {"type": "text"}
