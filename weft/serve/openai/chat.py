"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, to_builtins

from weft.serve.http.events import event
from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.openai import answers
from weft.serve.openai.events import DONE, error_event, fingerprint, new_id, now, usage_of
from weft.serve.openai.messages import template_messages
from weft.serve.openai.options import NAMES, engine_options, grammar_of
from weft.serve.openai.schemas import ChatRequest, NamedFunction, NamedTool, Tool
from weft.serve.work import chatting
from weft.serve.work.chatting import Ask, Chat, Delta, Reply
from weft.serve.work.generating import keep_loaded, timings_of
from weft.text.calls.events import Arguments, CallStarted

if TYPE_CHECKING:
    from weft.generate import TokenLogprob
    from weft.serve.models.generator import GenerateRunner


async def chat(context: Context, body: ChatRequest) -> Answer:
    """Answer a conversation, whole or as a stream."""
    ask = ask_of(body, context.serving.settings.limits.default_tokens)
    if body.keep_alive is not None:
        keep_loaded(context, body.model, body.keep_alive)
    started = await chatting.start(context, ask)
    writer = _Writer(started, body)
    if body.stream:
        return Stream(writer.chunks(), error_event)
    return Json(await writer.whole())


def ask_of(body: ChatRequest, default_tokens: int) -> Ask:
    """The request in the form that all chat APIs share."""
    options = engine_options(body, default_tokens)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise invalid("needs logprobs to be true", "top_logprobs")
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise invalid("can only be false with continue_final_message", "add_generation_prompt")
    choice, named = _tool_choice(body)
    variables: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
        variables["enable_thinking"] = body.reasoning_effort != "none"
    variables |= body.chat_template_kwargs or {}
    return Ask(
        model=body.model,
        messages=template_messages(body.messages),
        options=options,
        tools=[to_builtins(tool) for tool in _tools(body)],
        tool_choice=choice,
        named_tool=named,
        parallel_calls=body.parallel_tool_calls is not False and body.functions is None,
        variables=variables,
        grammar=grammar_of(body),
        cache_salt=body.cache_salt,
        continue_final=bool(body.continue_final_message),
        names=NAMES,
    )


def _tools(body: ChatRequest) -> list[Tool]:
    """The tools; `functions` is their older form."""
    if body.functions is not None and body.tools is not None:
        raise invalid("and tools are the same setting; send one of them", "functions")
    return body.tools or [Tool(function=function) for function in body.functions or ()]


def _tool_choice(body: ChatRequest) -> tuple[str, str | None]:
    choice = body.tool_choice
    if isinstance(body.function_call, NamedFunction):
        choice = NamedTool(function=body.function_call)
    elif body.function_call is not None:
        choice = body.function_call
    if choice is None:
        return "auto", None
    if not _tools(body) and choice not in ("none", "auto"):
        name = "tools" if body.function_call is None else "functions"
        raise invalid(f"needs {name}", "tool_choice" if body.function_call is None else "function_call")
    if isinstance(choice, NamedTool):
        return "named", choice.function.name
    return choice, None


class _Writer:
    """Writes a chat in OpenAI's form."""

    def __init__(self, chat: Chat, body: ChatRequest) -> None:
        self._chat = chat
        self._body = body
        self._same: dict[str, Any] = {
            "id": new_id("chatcmpl"),
            "created": now(),
            "model": body.model,
            "system_fingerprint": fingerprint(),
        }

    async def whole(self) -> answers.ChatCompletion:
        replies = await self._chat.replies()
        generations = await self._chat.generations()
        return answers.ChatCompletion(
            choices=[self._choice(i, reply) for i, reply in enumerate(replies)],
            usage=usage_of([generations]),
            timings=timings_of(generations[0]),
            warnings=self._chat.warnings or UNSET,
            **self._same,
        )

    def _choice(self, index: int, reply: Reply) -> answers.Choice:
        calls = [
            answers.AnswerCall(
                id=call.id,
                type="function",
                function=answers.FunctionText(name=call.name, arguments=call.arguments),
            )
            for call in reply.calls
        ]
        message = answers.AnswerMessage(
            content=reply.text if reply.text or not calls else None,
            reasoning_content=reply.reasoning or UNSET,
            **self._called(calls),
        )
        logprobs = self._logprobs(reply.logprobs) if self._body.logprobs else None
        reason = self._reason(reply.finish_reason) or reply.finish_reason
        return answers.Choice(index=index, message=message, logprobs=logprobs, finish_reason=reason)

    def _called(self, calls: list[answers.AnswerCall]) -> dict[str, Any]:
        """The calls of a message, or the one call of an answer to `functions`."""
        if not calls:
            return {}
        return {"tool_calls": calls} if self._body.functions is None else {"function_call": calls[0].function}

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if reason == "tool_calls" and self._body.functions is not None else reason

    def _logprobs(self, found: Iterable[TokenLogprob]) -> answers.ChatLogprobs:
        return answers.ChatLogprobs(content=[logprob_of(self._chat.runner, entry) for entry in found])

    async def chunks(self) -> AsyncIterator[bytes]:
        asked = self._body.stream_options
        include_usage = bool(asked is not None and asked.include_usage)
        pending = None if include_usage else UNSET  # OpenAI: null in every chunk but the last, if requested
        first = [
            answers.ChunkChoice(index=i, delta=answers.DeltaMessage(role="assistant", content=""))
            for i in range(self._chat.answers)
        ]
        warnings = self._chat.warnings or UNSET
        yield event(answers.ChatChunk(choices=first, usage=pending, warnings=warnings, **self._same))

        def write(delta: Delta) -> bytes:
            choice = self._chunk_choice(delta)
            return event(answers.ChatChunk(choices=[choice], usage=pending, **self._same)) if choice else b""

        async for written in self._chat.written(write):
            yield written
        generations = await self._chat.generations()
        if include_usage:
            usage, timings = usage_of([generations]), timings_of(generations[0])
            yield event(answers.ChatChunk(choices=[], usage=usage, timings=timings, **self._same))
        yield DONE

    def _chunk_choice(self, delta: Delta) -> answers.ChunkChoice | None:
        calls: list[answers.AnswerCall] = []
        for said in delta.events:
            if isinstance(said, CallStarted):
                function = answers.FunctionText(name=said.name)
                calls.append(answers.AnswerCall(index=said.index, id=said.id, type="function", function=function))
            elif isinstance(said, Arguments):
                calls.append(answers.AnswerCall(index=said.index, function=answers.FunctionText(arguments=said.text)))
        if not (delta.text or delta.reasoning or calls or delta.logprobs or delta.finish_reason):
            return None
        if self._body.functions is not None and len(calls) > 1:  # the name and the first arguments
            calls = [answers.AnswerCall(function=_merged(call.function for call in calls))]
        message = answers.DeltaMessage(
            content=delta.text or UNSET, reasoning_content=delta.reasoning or UNSET, **self._called(calls)
        )
        logprobs = self._logprobs(delta.logprobs) if self._body.logprobs else None
        reason = self._reason(delta.finish_reason)
        return answers.ChunkChoice(index=delta.index, delta=message, logprobs=logprobs, finish_reason=reason)


def _merged(parts: Iterable[answers.FunctionText]) -> answers.FunctionText:
    given = list(parts)
    name = next((part.name for part in given if part.name is not UNSET), UNSET)
    return answers.FunctionText(name=name, arguments="".join(part.arguments for part in given))


def logprob_of(runner: GenerateRunner, entry: TokenLogprob) -> answers.TokenLogprob:
    """A log probability, with its token as text and as bytes."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        raw = runner.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": max(logprob, -9999.0), "bytes": list(raw)}

    top = [answers.TopLogprob(**shown(token, logprob)) for token, logprob in entry.top]
    return answers.TokenLogprob(**shown(entry.token, entry.logprob), top_logprobs=top)
