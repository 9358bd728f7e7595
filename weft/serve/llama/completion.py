"""POST /completion and /infill: prompts continued, and texts filled in, in llama-server's own form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.serve.http.events import event
from weft.serve.http.faults import Fault, invalid, openai_shape
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.llama.schemas import CompletionRequest, InfillRequest, SampledRequest
from weft.serve.llama.tokens import named
from weft.serve.openai.options import grammar_text
from weft.serve.openai.schemas import MAX_PROMPTS
from weft.serve.work.generating import Names, Running, in_words_of, isolation, lease_generator, timings_of
from weft.text.prompts.infill import Snippet, infill_ids, infill_tokens

if TYPE_CHECKING:
    from weft.generate import Generation, Grammar, Piece, Request, TokenLogprob
    from weft.serve.models.generator import GenerateRunner

BANNED = -100.0  # the bias of a token that must not come
NAMES = Names(
    {
        "max_tokens": "n_predict",
        "repetition_penalty": "repeat_penalty",
        "logprobs": "n_probs",
        "n": "n_cmpl",
        "suffix": "input_suffix",
    },
    'truncate: "left", "middle" or "right"',
)
_AS_THEY_ARE = ("top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "ignore_eos", "truncate")

Prompt = str | list[int] | list[int | str]


async def complete(context: Context, body: CompletionRequest) -> Answer:
    """Continue one or several prompts."""
    prompts = split_prompts(body.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise invalid(f"has {len(prompts)} entries; at most {MAX_PROMPTS} are allowed", "prompt")
    parse = body.parse_special is not False

    def ids(runner: GenerateRunner) -> list[list[int]]:
        return [_ids(runner, prompt, parse) for prompt in prompts]

    return await _answer(context, body, ids, len(prompts))


async def infill(context: Context, body: InfillRequest) -> Answer:
    """Fill in the text between `input_prefix`, after which `prompt` is already written, and `input_suffix`."""
    extra = [Snippet(given.text, given.filename) for given in body.input_extra or ()]

    def ids(runner: GenerateRunner) -> list[list[int]]:
        prefix = body.input_prefix + (body.prompt or "")
        return [infill_ids(runner.tokenizer, prefix, body.input_suffix, extra=extra)]

    return await _answer(context, body, ids, 1)


def split_prompts(given: str | Sequence[Any]) -> list[Prompt]:
    """One prompt: a text, or a list with token ids; or several: a list of texts and of such lists."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid("must not be empty", "prompt")
    return [list(given)] if any(isinstance(item, int) for item in given) else list(given)


def _ids(runner: GenerateRunner, prompt: Prompt, parse: bool) -> list[int]:
    """The ids of a prompt; its texts are read one by one, and only one at the beginning gets the first token."""
    if isinstance(prompt, str):
        return runner.text_ids(prompt, parse_special=parse)
    ids: list[int] = []
    for number, part in enumerate(prompt):
        if isinstance(part, int):
            ids.append(part)
        elif isinstance(part, str):
            ids += runner.tokenizer.encode_prompt(part, add_special=number == 0, parse_special=parse)
        else:
            raise invalid("is nested too deeply: a prompt is a text, or a list of token ids and texts", "prompt")
    return ids


async def _answer(
    context: Context, body: SampledRequest, ids: Callable[[GenerateRunner], list[list[int]]], prompts: int
) -> Answer:
    name = named(context, body.model, "generate")
    runner, adapter = await lease_generator(context, name, to_ask=True, answers=prompts * (body.n_cmpl or 1))
    options = {**runner.sampling_defaults, **_options(body, context.serving.settings.limits.default_tokens)}
    options |= isolation(context)
    if adapter is not None:
        options["adapter"] = adapter

    def prepare() -> list[Request]:
        from weft.generate import make_request

        if body.n_probs:
            runner.know_tokens()
        asked = {**options, "logit_bias": _biases(runner, body.logit_bias)}
        if isinstance(body, InfillRequest):
            asked["stop_ids"] = infill_tokens(runner.tokenizer).ends
        return [make_request(one, grammar=_grammar(body), **asked) for one in ids(runner)]

    constrained = bool(body.grammar) or body.json_schema is not None
    with in_words_of(NAMES):
        requests = await runner.in_thread(prepare, context.call.tenant if constrained else None)
        running = await Running.submit(context, runner, requests)
    writer = _Writer(runner, running, body, name)
    if body.stream:
        return Stream(writer.chunks(), _error_event)
    return Json(await writer.whole())


def _error_event(fault: Fault) -> bytes:
    return event(openai_shape(fault))


def _options(body: SampledRequest, default_tokens: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(body, name) for name in _AS_THEY_ARE if getattr(body, name) is not None}
    if body.temperature is not None:
        found["temperature"] = max(0.0, body.temperature)  # below 0 is greedy there
    if body.top_k is not None:
        found["top_k"] = max(0, body.top_k)
    if body.repeat_penalty is not None:
        found["repetition_penalty"] = body.repeat_penalty
    if body.seed is not None and body.seed >= 0:  # -1 takes a new one
        found["seed"] = body.seed
    if body.stop is not None:
        found["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.n_probs:
        found["logprobs"] = body.n_probs
    if body.cache_prompt is not None:
        found["prefix_cache"] = body.cache_prompt
    found["n"] = body.n_cmpl or 1
    found["max_tokens"] = default_tokens if body.n_predict is None or body.n_predict < 0 else body.n_predict
    return found


def _biases(runner: GenerateRunner, given: Any) -> dict[int, float]:
    """The bias of each token; a text stands for all its tokens, and `false` for never."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    found: dict[int, float] = {}
    for pair in pairs:
        if len(pair) != 2 or isinstance(pair[0], bool | float) or pair[1] is True or isinstance(pair[1], str):
            raise invalid("must be a list of pairs: a token id or a text, and a number or false", "logit_bias")
        key, value = pair
        text = isinstance(key, str) and not (isinstance(given, dict) and key.isdigit())
        ids = runner.tokenizer.encode(key, add_special=False) if text else [int(key)]
        found |= dict.fromkeys(ids, BANNED if value is False else float(value))
    return found


def _grammar(body: SampledRequest) -> Grammar | None:
    from weft.generate import Grammar

    if body.grammar and body.json_schema is not None:
        raise invalid("cannot be combined with json_schema", "grammar")
    if body.grammar:
        return grammar_text(body.grammar)
    return None if body.json_schema is None else Grammar.json_schema(body.json_schema)


class _Writer:
    """Writes completions in llama-server's form."""

    def __init__(self, runner: GenerateRunner, running: Running, body: SampledRequest, model: str) -> None:
        self._runner = runner
        self._running = running
        self._body = body
        self._model = model
        self._answers = body.n_cmpl or 1

    async def whole(self) -> Any:
        """One object, or a list of them where there are several."""
        async for _ in self._running.pieces():
            pass
        found = await self._running.generations()
        made = []
        for number, several in enumerate(found):
            for one in several:
                tokens = list(one.tokens) if self._body.return_tokens else []
                shown = {**self._ending(number, one), "content": one.text, "tokens": tokens}
                if self._body.n_probs:
                    shown["completion_probabilities"] = self._probabilities(one.logprobs or ())
                made.append(self._chosen(shown))
        return made[0] if len(made) == 1 else made

    async def chunks(self) -> AsyncIterator[bytes]:
        """An event for each piece; the last one of each answer has everything but the text."""
        made: dict[int, int] = {}
        async for pieces in self._running.pieces():
            written = b""
            for number, piece in pieces:
                index = number * self._answers + piece.index
                made[index] = made.get(index, 0) + len(piece.tokens)
                if piece.text or piece.tokens:
                    written += event(self._chunk(number, index, piece, made[index]))
            if written:
                yield written
        for number, several in enumerate(await self._running.generations()):
            for one in several:
                yield event(self._chosen({**self._ending(number, one), "content": "", "tokens": []}))

    def _chunk(self, number: int, index: int, piece: Piece, made: int) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "index": index,
            "content": piece.text,
            "tokens": list(piece.tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": made,
            "tokens_evaluated": len(self._running.requests[number].prompt),
        }
        if self._body.n_probs:
            shown["completion_probabilities"] = self._probabilities(piece.logprobs)
        return shown

    def _ending(self, number: int, one: Generation) -> dict[str, Any]:
        usage, request = one.usage, self._running.requests[number]
        stopped = "limit" if one.finish_reason == "length" else "word" if one.stop is not None else "eos"
        return {
            "index": number * self._answers + one.index,
            "content": "",
            "tokens": [],
            "id_slot": -1,  # sequences have no fixed slots here
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": self._settings(request, one.seed),
            "prompt": self._runner.tokenizer.decode(request.prompt, skip_special=False),
            "has_new_line": "\n" in one.text,
            "truncated": usage.truncated_tokens > 0,
            "stop_type": stopped,
            "stopping_word": one.stop or "",
            "tokens_cached": usage.cached_tokens,
            "timings": timings_of(one),
        }

    def _settings(self, request: Request, seed: int) -> dict[str, Any]:
        """The settings in force, under llama-server's names."""
        sampling = request.sampling
        same = ("temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty")
        return {
            **{name: getattr(sampling, name) for name in same},
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": -1,
            "seed": seed,
            "n_ctx": self._runner.context,
            "n_predict": request.max_tokens,
            "max_tokens": request.max_tokens,
            "stop": list(request.stop),
            "ignore_eos": request.ignore_eos,
            "stream": bool(self._body.stream),
            "n_probs": self._body.n_probs or 0,
            "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias.items()],
            "grammar": self._body.grammar or "",
            "mirostat": 0,
            "model": self._model,
        }

    def _probabilities(self, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            {
                **self._shown(entry.token, entry.logprob),
                "top_logprobs": [self._shown(token, logprob) for token, logprob in entry.top],
            }
            for entry in found
        ]

    def _shown(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._runner.token_bytes(token)
        return {
            "id": token,
            "token": raw.decode(errors="replace"),
            "bytes": list(raw),
            "logprob": max(logprob, -9999.0),
        }

    def _chosen(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The fields that `response_fields` names; a/b is field b of field a."""
        if not self._body.response_fields:
            return shown
        found = {}
        for path in self._body.response_fields:
            value: Any = shown
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found
