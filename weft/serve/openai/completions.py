"""POST /v1/completions: continue prompts, given as texts or token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.serve.http.events import event
from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.openai import answers
from weft.serve.openai.events import DONE, error_event, fingerprint, new_id, now, usage_of
from weft.serve.openai.options import NAMES, engine_options, grammar_of
from weft.serve.openai.schemas import MAX_PROMPTS, CompletionRequest
from weft.serve.work.generating import (
    Running,
    in_words_of,
    isolation,
    keep_loaded,
    lease_generator,
    timings_of,
)

if TYPE_CHECKING:
    from weft.generate import Piece, Request, TokenLogprob
    from weft.serve.models.generator import GenerateRunner

DEFAULT_TOKENS = 16  # OpenAI's


async def complete(context: Context, body: CompletionRequest) -> Answer:
    """Continue one or several prompts."""
    prompts = split_inputs(body.prompt, "prompt")
    if len(prompts) > MAX_PROMPTS:
        raise invalid(f"has {len(prompts)} entries; at most {MAX_PROMPTS} are allowed", "prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid("must equal n", "best_of")
    suffix = body.suffix or None  # clients send "" for none
    if suffix is not None and not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid("needs a prompt that is text, not token ids", "suffix")
    if suffix is not None and body.echo:
        raise invalid("cannot be combined with suffix", "echo")
    options = engine_options(body, DEFAULT_TOKENS)
    if body.skip_special_tokens is False:
        options["show_special"] = True
    if body.keep_alive is not None:
        keep_loaded(context, body.model, body.keep_alive)
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
        options["prompt_logprobs"] = body.prompt_logprobs if body.prompt_logprobs is not None else body.logprobs
    grammar = grammar_of(body)
    asked = len(prompts) * (body.n or 1)
    runner, adapter = await lease_generator(context, body.model, to_ask=True, answers=asked)
    options |= isolation(context, body.cache_salt)
    if adapter is not None:
        options["adapter"] = adapter

    def prepare() -> list[Request]:
        from weft.generate import make_request

        if "logprobs" in options or "prompt_logprobs" in options:
            runner.know_tokens()
        made = None if grammar is None else grammar()
        special = {
            "add_special": body.add_special_tokens is not False,
            "parse_special": body.parse_special is not False,
        }
        ids = [runner.text_ids(p, suffix=suffix, **special) if isinstance(p, str) else p for p in prompts]
        asked = runner.model.with_ends(suffix, {**runner.sampling_defaults, **options})
        return [make_request(one, grammar=made, **asked) for one in ids]

    with in_words_of(replace(NAMES, fields={**NAMES.fields, "prompt": "prompt"})):
        running = await Running.submit(
            context, runner, await runner.in_thread(prepare, None if grammar is None else context.call.tenant)
        )
    writer = _Writer(runner, running, body, prompts)
    if body.stream:
        return Stream(writer.chunks(), error_event)
    return Json(await writer.whole())


def split_inputs(given: str | Sequence[Any], name: str) -> list[str] | list[list[int]]:
    """The four forms of an input as a list of texts, or a list of lists of token ids."""
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return [list(given)]
    if kinds == {str} or kinds == {list}:
        return list(given)
    raise invalid("mixes texts, token ids and lists of token ids; send one kind", name, code="invalid_value")


@dataclass
class _Text:
    """An answer as it grows; `offset` counts the characters that the client has."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    offset: int = 0


class _Writer:
    def __init__(
        self,
        runner: GenerateRunner,
        running: Running,
        body: CompletionRequest,
        prompts: list[str] | list[list[int]],
    ) -> None:
        self._runner = runner
        self._running = running
        self._body = body
        self._prompts = prompts
        self._per_prompt = body.n or 1
        self._same: dict[str, Any] = {
            "id": new_id("cmpl"),
            "created": now(),
            "model": body.model,
            "system_fingerprint": fingerprint(),
        }

    def _echoed(self, number: int) -> str:
        if not self._body.echo:
            return ""
        prompt = self._prompts[number]
        return prompt if isinstance(prompt, str) else self._runner.tokenizer.decode(prompt, skip_special=False)

    async def whole(self) -> answers.TextCompletion:
        texts = [_Text() for _ in range(len(self._prompts) * self._per_prompt)]
        async for pieces in self._running.pieces():
            for number, piece in pieces:
                one = texts[number * self._per_prompt + piece.index]
                one.text += piece.text
                one.logprobs += piece.logprobs
                one.finish_reason = piece.finish_reason or one.finish_reason
        generations = await self._running.generations()
        choices = []
        for index, one in enumerate(texts):
            number = index // self._per_prompt
            before = self._echoed(number)
            prompt = generations[number][index % self._per_prompt].prompt_logprobs
            wanted = [*(prompt or ()), *one.logprobs] if self._body.echo else one.logprobs
            choice = answers.TextChoice(
                index=index, text=before + one.text, finish_reason=one.finish_reason, logprobs=None
            )
            if self._body.logprobs is not None:
                first = self._running.requests[number].prompt[0] if self._body.echo else None
                choice.logprobs = self._logprobs(wanted, 0, first)
            if self._body.prompt_logprobs is not None:
                choice.prompt_logprobs = [None, *map(self._ranked, prompt or ())]
            choices.append(choice)
        usage, timings = usage_of(generations), timings_of(generations[0][0])
        return answers.TextCompletion(choices=choices, usage=usage, timings=timings, **self._same)

    async def chunks(self) -> AsyncIterator[bytes]:
        asked = self._body.stream_options
        include_usage = bool(asked is not None and asked.include_usage)
        pending = None if include_usage else UNSET
        texts = [_Text() for _ in range(len(self._prompts) * self._per_prompt)]
        if self._body.echo:
            for index, one in enumerate(texts):
                before = self._echoed(index // self._per_prompt)
                one.offset = len(before)
                choice = answers.TextChoice(index=index, text=before)
                yield event(answers.TextCompletion(choices=[choice], usage=pending, **self._same))
        async for pieces in self._running.pieces():
            made = [self._chunk(texts, number, piece) for number, piece in pieces]
            yield b"".join(event(answers.TextCompletion(choices=[c], usage=pending, **self._same)) for c in made if c)
        generations = await self._running.generations()
        if include_usage:
            usage, timings = usage_of(generations), timings_of(generations[0][0])
            yield event(answers.TextCompletion(choices=[], usage=usage, timings=timings, **self._same))
        yield DONE

    def _chunk(self, texts: list[_Text], number: int, piece: Piece) -> answers.TextChoice | None:
        index = number * self._per_prompt + piece.index
        if not piece.text and not piece.logprobs and piece.finish_reason is None:
            return None
        choice = answers.TextChoice(index=index, text=piece.text, finish_reason=piece.finish_reason)
        if self._body.logprobs is not None:
            choice.logprobs = self._logprobs(piece.logprobs, texts[index].offset, None)
            texts[index].offset += sum(map(len, choice.logprobs.tokens))
        return choice

    def _text(self, token: int) -> str:
        return self._runner.token_bytes(token).decode(errors="replace")

    def _logprobs(self, found: Sequence[TokenLogprob], offset: int, first: int | None) -> answers.TextLogprobs:
        """The legacy form; `first` is the first token of an echoed prompt, which has no log probability."""
        tokens = [self._text(entry.token) for entry in found]
        values: list[float | None] = [max(entry.logprob, -9999.0) for entry in found]
        top: list[dict[str, float] | None] = [
            {self._text(token): max(value, -9999.0) for token, value in entry.top} for entry in found
        ]
        if first is not None:
            tokens, values, top = [self._text(first), *tokens], [None, *values], [None, *top]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        shown = top if self._body.logprobs else None
        return answers.TextLogprobs(tokens=tokens, token_logprobs=values, top_logprobs=shown, text_offset=offsets)

    def _ranked(self, entry: TokenLogprob) -> dict[str, Any]:
        """An entry of prompt_logprobs as vLLM writes it: by id."""
        found: dict[str, Any] = {
            str(token): {"logprob": max(value, -9999.0), "rank": rank, "decoded_token": self._text(token)}
            for rank, (token, value) in enumerate(entry.top, 1)
        }
        own = {"logprob": max(entry.logprob, -9999.0), "rank": None, "decoded_token": self._text(entry.token)}
        found.setdefault(str(entry.token), own)
        return found
