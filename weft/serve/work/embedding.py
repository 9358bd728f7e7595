"""Embedding for a call: texts or ids to vectors, within the limits, counted and measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.serve.http.faults import Fault, fault_of, invalid
from weft.serve.work.generating import lease_embedder

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.fingerprint import Fingerprint
    from weft.serve.http.routes import Context
    from weft.serve.models.embedder import EmbedRunner
    from weft.serve.work.tracking import Call


@frozen
class Vectors:
    """Vectors float32 [inputs, dimension]; `tokens` were computed, of input i `dropped[i]` more were cut off.

    `fingerprint` says what made them, and so does the header `weft-fingerprint` of the answer.
    """

    vectors: np.ndarray
    tokens: int
    dropped: list[int]
    runner: EmbedRunner
    call: Call
    fingerprint: Fingerprint

    def told(self) -> Vectors:
        """The same; the answer says what made them."""
        self.call.headers = ((b"weft-fingerprint", str(self.fingerprint).encode()),)
        return self

    def normalised(self) -> Vectors:
        """The same of length one."""
        fingerprint = self.fingerprint.changed(normalise=True)
        return replace(self, vectors=_unit(self.vectors), fingerprint=fingerprint).told()

    def shortened(self, dimensions: int, param: str = "dimensions") -> Vectors:
        """The first numbers of each vector, of length one again, as OpenAI does; only of models trained to be cut."""
        try:
            self.runner.embedder.at(dimensions)
        except (InputError, UnsupportedError) as error:
            raise invalid(str(error), param) from None
        if dimensions == self.vectors.shape[1]:
            return self
        fingerprint = self.fingerprint.changed(dimension=dimensions, normalise=True)
        return replace(self, vectors=_unit(self.vectors[:, :dimensions]), fingerprint=fingerprint).told()


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))


async def embed_texts(
    context: Context,
    model: str,
    texts: Sequence[str],
    *,
    adapter: str | None = None,
    truncate: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    param: str = "input",
) -> Vectors:
    """Vectors of texts; one that is too long is an error unless `truncate` says which part is kept."""
    check_count(context, len(texts), param)
    runner, named = await lease_embedder(context, model)
    if prompt_name is not None and prompt_name not in runner.embedder.recipe.prompts:
        known = ", ".join(runner.embedder.recipe.prompts) or "none"
        raise invalid(f"the model has no prompt {prompt_name!r:.80}; it has {known}", "prompt_name")
    started = time.monotonic()
    try:
        found = await runner.token_ids(texts, truncate=truncate, prompt=prompt, prompt_name=prompt_name)
    except TooLongError as error:
        raise too_long(error, param) from None
    took = time.monotonic() - started
    context.serving.metrics.observe("te_request_tokenization_duration", took, model=model)
    return await _embed(context, runner, model, found.ids, found.dropped, adapter or named, param)


async def embed_token_ids(
    context: Context, model: str, inputs: Sequence[Sequence[int]], *, adapter: str | None = None, param: str = "input"
) -> Vectors:
    """Vectors of ids, taken as they are."""
    check_count(context, len(inputs), param)
    runner, named = await lease_embedder(context, model)
    try:
        ids = runner.given_ids(inputs)
    except TooLongError as error:
        raise too_long(error, param) from None
    except ValueError as error:
        raise invalid(str(error), param) from None
    return await _embed(context, runner, model, ids, [0] * len(ids), adapter or named, param)


async def _embed(
    context: Context,
    runner: EmbedRunner,
    model: str,
    ids: Sequence[np.ndarray],
    dropped: list[int],
    adapter: str | None,
    param: str,
) -> Vectors:
    tokens = sum(map(len, ids))
    check_tokens(context, tokens, param)
    call, metrics = context.call, context.serving.metrics
    call.prompt_tokens = tokens
    metrics.count("te_request_count", model=model)
    started = time.monotonic()
    try:
        call.began = started
        vectors, waited = await runner.vectors(ids, adapter)
    except Exception as error:
        fault = fault_of(error)
        metrics.count("te_request_failure", model=model, err=fault.code or str(fault.status))
        raise
    took = time.monotonic() - started
    metrics.count("te_request_success", model=model)
    metrics.observe("te_request_queue_duration", waited, model=model)
    metrics.observe("te_request_inference_duration", took - waited, model=model)
    metrics.observe("te_request_duration", call.age_s, model=model)
    metrics.observe("te_request_input_length", tokens, model=model)
    call.finish_reason = "stop"
    embedder = runner.embedder
    with_adapter = None if adapter is None else embedder.adapters.get(adapter).digest.hex()
    return Vectors(vectors, tokens, dropped, runner, call, embedder.fingerprint.changed(adapter=with_adapter)).told()


def check_tokens(context: Context, tokens: int, param: str) -> None:
    limit = context.serving.settings.limits.embed_tokens
    if tokens > limit:
        raise invalid(f"{param} has {tokens} tokens in all, the most is {limit}; send several requests", param)


def check_count(context: Context, count: int, param: str) -> None:
    limit = context.serving.settings.limits.embed_inputs
    if count > limit:
        raise invalid(f"{param} has {count} entries, the most is {limit}", param)


def too_long(error: TooLongError, param: str) -> Fault:
    return Fault(400, str(error), param=param, code="context_length_exceeded")
