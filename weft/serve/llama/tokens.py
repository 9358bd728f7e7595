"""POST /tokenize, /detokenize, /apply-template; GET /props."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import to_builtins

from weft.errors import UnsupportedError
from weft.serve.http.faults import Fault, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.llama.schemas import DetokenizeRequest, TemplateRequest, TokenizeRequest
from weft.serve.models.embedder import EmbedRunner
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.pool import Runner
from weft.serve.openai.messages import template_messages
from weft.serve.work.chatting import Ask, prompt_ids, see
from weft.serve.work.generating import lease, lease_generator


def named(context: Context, given: str | None, kind: str) -> str:
    """The given model, else the first of a kind, else the first of all."""
    if given is not None:
        return given
    entries = list(context.serving.models)
    return next((entry.name for entry in entries if entry.kind == kind), entries[0].name)


async def _leased(context: Context, model: str | None, kind: str) -> Runner:
    _, _, runner = await lease(context, named(context, model, kind))
    return runner


async def tokenize(context: Context, body: TokenizeRequest) -> Answer:
    """The tokens of texts."""
    if (body.content is None) == (body.inputs is None):
        raise invalid("or inputs is needed, and not both", "content")
    if body.inputs is not None:
        return await _tokenize_tei(context, body)
    runner = await _leased(context, body.model, "generate")
    text, special, parse = body.content or "", bool(body.add_special), body.parse_special is not False
    ids = await asyncio.to_thread(runner.tokenizer.encode, text, add_special=special, parse_special=parse)
    if not body.with_pieces or not isinstance(runner, GenerateRunner):
        return Json({"tokens": ids})
    return Json({"tokens": [{"id": id, "piece": _piece(runner.token_bytes(id))} for id in ids]})


def _piece(raw: bytes) -> str | list[int]:
    """Text, or a list of bytes where they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def _tokenize_tei(context: Context, body: TokenizeRequest) -> Answer:
    runner = await _leased(context, body.model, "embed")
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs or []
    if body.prompt_name is not None and isinstance(runner, EmbedRunner):
        before = runner.embedder.recipe.prompt(body.prompt_name)
        texts = [before + text for text in texts]
    return Json(await asyncio.to_thread(_located, runner, texts, body.add_special_tokens is not False))


def _located(runner: Runner, texts: list[str], special: bool) -> list[list[dict[str, Any]]]:
    tokenizer, specials = runner.tokenizer, runner.tokenizer.special_ids
    found = []
    for text in texts:
        made = tokenizer.encode_offsets(text, add_special=special)
        row = []
        for id, (start, stop) in zip(made.ids, made.offsets.tolist()):
            own = id in specials
            shown = tokenizer.token(id) or "" if own else text[start:stop]
            place = {"start": None, "stop": None} if own else {"start": start, "stop": stop}
            row.append({"id": id, "text": shown, "special": own, **place})
        found.append(row)
    return found


async def detokenize(context: Context, body: DetokenizeRequest) -> Answer:
    """The text of tokens."""
    runner = await _leased(context, body.model, "generate")
    if body.tokens and max(body.tokens) >= runner.tokenizer.vocab_size:
        raise invalid(f"must be ids from 0 to {runner.tokenizer.vocab_size - 1}", "tokens")
    return Json({"content": await asyncio.to_thread(runner.tokenizer.decode, body.tokens, skip_special=False)})


async def apply_template(context: Context, body: TemplateRequest) -> Answer:
    """A conversation as the model's template writes it, and how many tokens that is."""
    runner, _ = await lease_generator(context, named(context, body.model, "generate"))
    ask = Ask(
        model=context.call.model,
        messages=template_messages(body.messages),
        tools=[to_builtins(tool) for tool in body.tools or ()],
        variables=body.chat_template_kwargs or {},
    )
    await see(context, runner, ask)
    ids = await runner.in_thread(lambda: prompt_ids(runner, ask))
    return Json({"prompt": runner.tokenizer.decode(ids, skip_special=False), "tokens": len(ids)})


async def props(context: Context, _: None) -> Answer:
    """The first generator: its template and context."""
    name = named(context, context.query.get("model"), "generate")
    entry, _adapter = context.serving.models.find(name)
    if entry.kind != "generate":
        raise Fault(404, "this server has no model that generates text", kind="not_found_error", code="model_not_found")
    runner, _adapter = await lease_generator(context, name)
    try:
        template = runner.template
    except UnsupportedError:
        template = ""
    return Json(
        {
            "default_generation_settings": {"n_ctx": runner.context, "params": runner.sampling_defaults},
            "total_slots": context.serving.settings.limits.running,
            "model_alias": name,
            "chat_template": template if isinstance(template, str) else template.get("default", ""),
            "build_info": "weft",
        }
    )
