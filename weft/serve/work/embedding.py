"""Embedding for a call: vectors of texts or token ids, within the limits, with metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.serve.http.faults import Fault, blaming, fault_of, invalid
from weft.serve.work.generating import lease_embedder, offer

if TYPE_CHECKING:
    import numpy as np

    from weft.embed import Embedder
    from weft.embed.cutting import TokenIds
    from weft.embed.fingerprint import Fingerprint
    from weft.serve.http.routes import Context
    from weft.serve.models.embedder import EmbedRunner
    from weft.serve.work.tracking import Call

    # Vectors, the seconds that they waited, and tokens.
    Compute = Callable[[], Awaitable[tuple[np.ndarray, float, int]]]

FINGERPRINT = b"weft-fingerprint"  # a header


MOST_NUMBERS = 1 << 22  # in the vectors of all tokens of a request: some 50 MB of JSON


@frozen
class Asked:
    """What a request asks for; `param` is the field of its inputs, `remedy` the field that truncates a long input."""

    param: str = "input"
    dimensions: int | None = None
    adapter: str | None = None
    truncate: str | None = None  # which part of a long text is kept
    prompt: str | None = None
    prompt_name: str | None = None
    remedy: str = ""


@frozen
class Vectors:
    """Vectors float32 [inputs, dimension]; `tokens` were computed, and `dropped[i]` tokens of input i were cut off.

    `fingerprint` identifies the model and its settings; the answer carries it in the header `weft-fingerprint`.
    """

    vectors: np.ndarray
    tokens: int
    dropped: list[int]
    runner: EmbedRunner
    call: Call
    fingerprint: Fingerprint

    def with_header(self) -> Vectors:
        """These vectors; the answer gets the header with their fingerprint."""
        others = (header for header in self.call.headers if header[0] != FINGERPRINT)
        self.call.headers = (*others, (FINGERPRINT, str(self.fingerprint).encode()))
        return self

    def normalised(self) -> Vectors:
        """These vectors, normalised."""
        fingerprint = self.fingerprint.changed(normalise=True)
        return replace(self, vectors=_unit(self.vectors), fingerprint=fingerprint).with_header()


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))


async def embed_inputs(context: Context, model: str, inputs: list[str] | list[list[int]], asked: Asked) -> Vectors:
    """Vectors of texts, or of token ids, which are used unchanged."""
    runner, found, adapter = await _tokens_of(context, model, inputs, asked)
    cut = cut_to(runner, asked.dimensions)
    named = asked.adapter or adapter
    count = sum(map(len, found.ids))
    check_tokens(context, count, asked.param)
    context.call.prompt_tokens = count

    async def compute() -> tuple[np.ndarray, float, int]:
        return (*await runner.vectors(found.ids, named), count)

    vectors, tokens = await timed(context, model, compute)
    if context.serving.drift is not None and named is None:
        context.serving.drift.offer(model, vectors)
    vectors = shortened(vectors, cut)
    fingerprint = cut.fingerprint.changed(adapter=None if named is None else cut.adapters.get(named).digest.hex())
    made = Vectors(vectors, tokens, found.dropped, runner, context.call, fingerprint).with_header()
    if named is None:
        _offer(context, model, inputs, asked)
    return made


def _offer(context: Context, model: str, inputs: list[str] | list[list[int]], asked: Asked) -> None:
    """Let a shadow run compare vectors of the same inputs; another version may split texts into other tokens."""
    import numpy as np

    async def compute(runner: EmbedRunner) -> tuple[np.ndarray, np.ndarray]:
        if inputs and isinstance(inputs[0], str):
            texts, how = cast("list[str]", inputs), {"prompt": asked.prompt, "prompt_name": asked.prompt_name}
            ids = (await runner.token_ids(texts, truncate=asked.truncate, **how)).ids
        else:
            ids = runner.given_ids(cast("list[list[int]]", inputs)).ids
        vectors, _ = await runner.vectors(ids)
        return np.empty(0), vectors

    offer(context, model, compute, by_angle=True)


async def embed_texts(context: Context, model: str, texts: Sequence[str], asked: Asked) -> Vectors:
    """Vectors of texts; a text that is too long is an error unless the request says which part is kept."""
    return await embed_inputs(context, model, list(texts), asked)


async def _tokens_of(
    context: Context, model: str, inputs: list[str] | list[list[int]], asked: Asked
) -> tuple[EmbedRunner, TokenIds, str | None]:
    """The model, the token ids of the inputs, and the adapter if `model` names one."""
    check_count(context, len(inputs), asked.param)
    runner, adapter = await lease_embedder(context, model)
    if inputs and isinstance(inputs[0], str):
        return runner, await text_ids(context, runner, model, cast("list[str]", inputs), asked), adapter
    for name in ("prompt", "prompt_name", "truncate"):
        if getattr(asked, name) is not None:
            raise invalid("is only for texts; leave it out with token ids", name)
    try:
        return runner, runner.given_ids(cast("list[list[int]]", inputs)), adapter
    except TooLongError as error:
        raise too_long(error, f"{asked.param}: sequence", asked.param) from None
    except InputError as error:
        raise fault_of(error.but(field=asked.param)) from None


async def text_ids(context: Context, runner: EmbedRunner, model: str, texts: Sequence[str], asked: Asked) -> TokenIds:
    name = asked.prompt_name
    if name is not None and asked.prompt is not None:
        raise invalid("cannot be combined with prompt", "prompt_name")
    if name is not None and name not in runner.embedder.recipe.prompts:
        known = ", ".join(runner.embedder.recipe.prompts) or "none"
        raise invalid(f"is {name!r:.80}; the model's prompts are: {known}", "prompt_name")
    started = time.monotonic()
    try:
        found = await runner.token_ids(texts, truncate=asked.truncate, prompt=asked.prompt, prompt_name=name)
    except TooLongError as error:
        if asked.truncate is not None:  # the prompt alone leaves no room
            raise
        raise too_long(error, f"{asked.param}: text", asked.param, asked.remedy) from None
    took = time.monotonic() - started
    context.serving.metrics.observe("te_request_tokenization_duration", took, model=model)
    return found


def cut_to(runner: EmbedRunner, dimensions: int | None) -> Embedder:
    """The embedder with vectors of `dimensions` numbers; an error unless the model was trained for shorter vectors."""
    try:
        return runner.at(dimensions)
    except InputError as error:
        raise blaming("dimensions", error) from None
    except UnsupportedError:
        message = f"is {dimensions}, but this model was not trained for shorter vectors; leave it out"
        raise invalid(message, "dimensions") from None


async def timed(context: Context, model: str, compute: Compute) -> tuple[np.ndarray, int]:
    """The vectors that `compute` makes and their count of tokens, with metrics."""
    call, metrics = context.call, context.serving.metrics
    metrics.count("te_request_count", model=model)
    started = time.monotonic()
    try:
        call.began = started
        vectors, waited, tokens = await compute()
    except Exception as error:
        fault = fault_of(error)
        metrics.count("te_request_failure", model=model, err=fault.code or str(fault.status))
        raise
    call.prompt_tokens = tokens
    took = time.monotonic() - started
    metrics.count("te_request_success", model=model)
    metrics.observe("te_request_queue_duration", waited, model=model)
    metrics.observe("te_request_inference_duration", took - waited, model=model)
    metrics.observe("te_request_duration", call.age_s, model=model)
    metrics.observe("te_request_input_length", tokens, model=model)
    call.finish_reason = "stop"
    return vectors, tokens


def shortened(vectors: np.ndarray, cut: Embedder) -> np.ndarray:
    """Full vectors at the length of `cut`."""
    if cut.dimension == vectors.shape[1]:
        return vectors
    vectors = vectors[:, : cut.dimension]
    return _unit(vectors) if cut.fingerprint.normalise else vectors


@frozen
class TokenVectors:
    """The last hidden state of every token of each input, float32 [tokens, channels]."""

    states: list[np.ndarray]
    tokens: int
    dropped: int


async def embed_tokens(context: Context, model: str, inputs: list[str] | list[list[int]], asked: Asked) -> TokenVectors:
    """The hidden states of texts, or of token ids."""
    runner, found, adapter = await _tokens_of(context, model, inputs, asked)
    if adapter is not None:
        raise invalid("names an adapter; vectors of tokens are computed without one", "model")
    tokens = sum(map(len, found.ids))
    check_tokens(context, tokens, asked.param)
    width = runner.channels
    if tokens * width > MOST_NUMBERS:
        most = MOST_NUMBERS // width
        raise invalid(f"has {tokens} tokens of {width} numbers; at most {most} are allowed: send less", asked.param)
    call, metrics = context.call, context.serving.metrics
    call.prompt_tokens, call.began = tokens, time.monotonic()
    metrics.count("te_request_count", model=model)
    states = await runner.hidden_states(found.ids)
    metrics.count("te_request_success", model=model)
    metrics.observe("te_request_duration", call.age_s, model=model)
    call.finish_reason = "stop"
    return TokenVectors(states, tokens, sum(found.dropped))


def check_tokens(context: Context, tokens: int, param: str) -> None:
    limit = context.serving.settings.limits.embed_tokens
    if tokens > limit:
        raise invalid(f"has {tokens} tokens in total; at most {limit} are allowed: send several requests", param)


def check_count(context: Context, count: int, param: str) -> None:
    limit = context.serving.settings.limits.embed_inputs
    if count > limit:
        raise invalid(f"has {count} entries; at most {limit} are allowed", param)


def too_long(error: TooLongError, what: str, param: str, remedy: str = "") -> Fault:
    """The fault of an input that is too long. The library's advice names arguments that HTTP clients do not have, so it
    is rewritten here; `RemoteEmbedder` reads the details."""
    advice = f"shorten it or give {remedy}" if remedy else "shorten it"
    message = f"{what} {error.index} has {error.length} tokens, the model takes {error.limit}; {advice}"
    details = {"index": error.index, "length": error.length, "limit": error.limit}
    return Fault(400, message, param=param, code="context_length_exceeded", details=details)
