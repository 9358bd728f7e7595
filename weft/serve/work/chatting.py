"""A chat: the request in a form that all APIs share, and its answer as deltas that each API writes in its own way."""

from __future__ import annotations

import secrets
import string
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen
from weft.serve.http.faults import invalid
from weft.serve.pictures.conversations import blaming_pictures, sent_in, with_pictures
from weft.serve.work.generating import Names, Running, in_words_of, isolation, lease_generator
from weft.serve.work.toolbox import template_tools
from weft.text.calls.events import Arguments, CallEnded, CallStarted
from weft.text.prompts.generic_tools import needs_generic_tools
from weft.text.reasoning import opened_by
from weft.text.reply import ReplyReader

if TYPE_CHECKING:
    from weft.generate import Generation, Grammar, Request, TokenLogprob
    from weft.serve.http.routes import Context
    from weft.serve.models.generator import GenerateRunner
    from weft.serve.pictures.reading import Sent
    from weft.text.calls.events import Event

_LETTERS = string.ascii_letters + string.digits
GENERIC_TOOLS = (b"x-weft-tools", b"generic")  # the header of answers to tools that the template cannot write


@dataclass
class Ask:
    """A conversation to answer. `options` are fields of Request and Sampling; `grammar` builds a Grammar, in a thread
    because it takes time. `tool_choice` is "auto", "none", "required" or "named"; `names` are the API's fields."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    named_tool: str | None = None
    parallel_calls: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    grammar: Callable[[], Grammar] | None = None
    cache_salt: str | None = None
    continue_final: bool = False
    names: Names = field(default_factory=Names)
    pictures: Sequence[Sent] = ()  # those of `messages`, once `see` has read them


@frozen
class Delta:
    """What one piece adds to answer `index`; `events` are those of tool calls, `parts` all of them in their order."""

    index: int
    text: str = ""
    reasoning: str = ""
    events: tuple[Event, ...] = ()
    parts: tuple[Event, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: int = 0
    finish_reason: str | None = None  # stop, length, tool_calls


@dataclass
class CalledTool:
    """A tool call, as far as it has been generated."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class Reply:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[CalledTool] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "stop"

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.logprobs += delta.logprobs
        for event in delta.events:
            if isinstance(event, CallStarted):
                self.calls.append(CalledTool(event.id, event.name))
            elif isinstance(event, Arguments):
                self.calls[event.index].arguments += event.text
            elif isinstance(event, CallEnded):
                self.calls[event.index].complete = event.complete
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason


class Chat:
    """A chat under way: iterate over `deltas`, then `generations` has the counts."""

    def __init__(
        self,
        runner: GenerateRunner,
        running: Running,
        ask: Ask,
        readers: Callable[[], ReplyReader],
        warnings: list[str],
    ) -> None:
        self.runner = runner
        self.running = running
        self.warnings = warnings  # what the client should know about how it is answered
        self.prompt_tokens = len(running.requests[0].prompt)
        self._ask = ask
        self._readers = [readers() for _ in range(running.requests[0].n)]
        self._called = [False] * len(self._readers)
        self._ended = [False] * len(self._readers)
        self._finished: list[Generation] | None = None

    @property
    def answers(self) -> int:
        return len(self._readers)

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Deltas as they are generated; the last one of each answer has its finish reason."""
        async for pieces in self.running.pieces():
            found = [delta for _, piece in pieces if (delta := self._delta(piece)) is not None]
            if found:
                yield found
            if all(self._ended):
                break
        if not all(self._ended):  # one call was enough: the rest is not needed
            yield [Delta(i, finish_reason="tool_calls") for i, ended in enumerate(self._ended) if not ended]
        self.running.cancel()

    def _delta(self, piece: Any) -> Delta | None:
        if self._ended[piece.index]:
            return None
        reader = self._readers[piece.index]
        said = reader.add(piece.text)
        whole = any(isinstance(event, CallEnded) for event in said.events)  # and not cut off by the end of the text
        reason = piece.finish_reason
        if reason is not None:
            said += reader.finish()
        events, parts = said.events, said.parts
        if not self._ask.parallel_calls:
            events, parts = (tuple(e for e in some if getattr(e, "index", 0) == 0) for some in (events, parts))
        self._called[piece.index] |= any(isinstance(event, CallStarted) for event in events)
        if whole and not self._ask.parallel_calls:
            reason = "stop"
        if reason is not None:
            self._ended[piece.index] = True
            reason = "tool_calls" if self._called[piece.index] and reason != "length" else str(reason)
            reason = "stop" if reason == "cancelled" else reason
        return Delta(piece.index, said.text, said.reasoning, events, parts, piece.logprobs, len(piece.tokens), reason)

    async def written(self, write: Callable[[Delta], bytes], reply: Reply | None = None) -> AsyncIterator[bytes]:
        """The stream of a chat: each delta, encoded by `write`. `reply` collects the deltas of a single answer."""
        async for deltas in self.deltas():
            written = b""
            for delta in deltas:
                if reply is not None:
                    reply.add(delta)
                written += write(delta)
            if written:
                yield written

    async def replies(self) -> list[Reply]:
        """The whole answers."""
        replies = [Reply() for _ in self._readers]
        async for deltas in self.deltas():
            for delta in deltas:
                replies[delta.index].add(delta)
        return replies

    async def generations(self) -> list[Generation]:
        """Counts and times of the answers, once `deltas` has ended."""
        if self._finished is None:
            self._finished = (await self.running.generations())[0]
        return self._finished


async def start(context: Context, ask: Ask) -> Chat:
    """Render, check and submit a chat."""
    runner, adapter = await lease_generator(context, ask.model, to_ask=True)
    if adapter is not None:
        ask.options["adapter"] = adapter
    ask.options |= isolation(context, ask.cache_salt)
    await see(context, runner, ask)
    with in_words_of(ask.names):
        constrained = ask.grammar is not None or (bool(ask.tools) and ask.tool_choice != "none")
        tenant = context.call.tenant if constrained else None
        request, readers, loose = await runner.in_thread(lambda: _prepare(runner, ask), tenant)
        running = await Running.submit(context, runner, [request])
    warnings = [f"{name} has no effect here" for name in context.call.ignored]
    if needs_generic_tools(runner.template, ask.messages, _offered(ask)):
        context.call.headers += (GENERIC_TOOLS,)
        warnings.append("tools: this model's chat template has none, so they are described in its system message")
    if loose:
        warnings.append(
            f"tools: arguments of {', '.join(loose)[:200]} may not satisfy the schema, which cannot be enforced"
        )
    return Chat(runner, running, ask, readers, warnings)


async def see(context: Context, runner: GenerateRunner, ask: Ask) -> None:
    """Read the pictures of a conversation; call it before `prompt_ids`."""
    ask.pictures = sent_in(ask.messages)
    ask.messages = await with_pictures(context, runner, ask.messages)


def prompt_ids(runner: GenerateRunner, ask: Ask) -> list[int]:
    """The prompt of a chat. Blocks, so call it in a thread."""
    ours = {"continue_final_message": True} if ask.continue_final else {}
    with blaming_pictures(ask.pictures):
        return runner.chat_ids(ask.messages, tools=_offered(ask), variables=ask.variables, **ours)


def _offered(ask: Ask) -> list[dict[str, Any]] | None:
    """The tools that the model is told of, as templates read them."""
    return None if ask.tool_choice == "none" else template_tools(ask.tools) or None


def _prepare(runner: GenerateRunner, ask: Ask) -> tuple[Request, Callable[[], ReplyReader], tuple[str, ...]]:
    """The request, what reads its answers, and the tools whose schemas are not enforced."""
    from weft.generate import make_request
    from weft.generate.tools.hold import hold, hold_answer

    ids = prompt_ids(runner, ask)
    if "logprobs" in ask.options:
        runner.know_tokens()
    grammar = None if ask.grammar is None else ask.grammar()
    tools = [] if ask.tool_choice == "none" else list(ask.tools)
    if grammar is not None and ask.tool_choice not in ("auto", "none"):
        raise invalid("cannot force a tool call together with a response format; send one of them", "tool_choice")
    if grammar is not None and tools:
        raise invalid("cannot be combined with tools: the model could not call any", "response_format")
    template = runner.template
    if grammar is not None and not ask.continue_final:  # a text that goes on is in its last channel already
        grammar = hold_answer(grammar, template, runner.tokenizer)
    how = {"choice": ask.tool_choice, "named": ask.named_tool, "parallel": ask.parallel_calls}
    held = hold(tools, template, runner.tokenizer, **how)  # type: ignore[arg-type]
    inside = opened_by(runner.tokenizer.decode(ids[-8:], skip_special=False))

    def reader() -> ReplyReader:
        return ReplyReader(template, tools=tools or None, inside=inside, form=held.form, identify=_call_id)

    options = {**runner.sampling_defaults, **ask.options}
    options["stop_ids"] = (*options.get("stop_ids", ()), *runner.model.answer_ends)
    return make_request(ids, show_special=True, grammar=grammar or held.grammar, **options), reader, held.loose


def _call_id(_: int) -> str:
    """Nine letters and digits: unique in a conversation, and the form that Mistral's templates require."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
