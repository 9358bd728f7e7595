"""GET /api/tags, /api/ps, /api/version; POST /api/show."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from weft.errors import UnsupportedError
from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.pool import Entry, Runner
from weft.serve.ollama.chat import named
from weft.serve.ollama.schemas import ShowRequest


async def version(context: Context, _: None) -> Answer:
    from weft import __version__

    return Json({"version": __version__})


async def tags(context: Context, _: None) -> Answer:
    """The models and their adapters; an adapter names its model in `details.parent_model`."""
    found = [_described(entry, name) for entry in context.serving.models for name in (entry.name, *entry.adapters)]
    return Json({"models": found})


async def running(context: Context, _: None) -> Answer:
    """The loaded models, and when each will be unloaded."""
    models = context.serving.models
    loaded = []
    for entry in models:
        if entry.runner is None:
            continue
        keep = models.keep_alive_of(entry)
        left = timedelta(days=36500) if keep is None else timedelta(seconds=max(0.0, keep - entry.idle_s))
        expires = (datetime.now(timezone.utc) + left).isoformat().replace("+00:00", "Z")
        own = {"size": entry.memory_bytes, "size_vram": 0, "context_length": entry.outline.max_tokens}
        loaded.append({**_described(entry, entry.name), **own, "expires_at": expires})
    return Json({"models": loaded})


def _described(entry: Entry, name: str) -> dict[str, Any]:
    """A model, or the adapter `name` of it, as lists show it."""
    changed = datetime.fromtimestamp(entry.created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "name": name,
        "model": name,
        "modified_at": changed,
        "size": entry.facts.file_bytes,
        "digest": entry.outline.digest,
        "details": _details(entry, name),
    }


def _details(entry: Entry, name: str) -> dict[str, Any]:
    facts = entry.facts
    return {
        "parent_model": "" if name == entry.name else entry.name,
        "format": facts.format,
        "family": facts.model_type,
        "families": [facts.model_type],
        "parameter_size": short_number(facts.parameters),
        "quantization_level": facts.quantisation,
    }


def short_number(count: int) -> str:
    """A number of parameters in at most three significant digits and a letter: 135M, 1.24B."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            share = count / size
            return f"{share:.{0 if share >= 99.95 else 1 if share >= 9.995 else 2}f}{letter}"
    return str(count)


async def show(context: Context, body: ShowRequest) -> Answer:
    """A model's properties and capabilities; loads it, because its chat template is among them."""
    given = body.model or body.name
    if given is None:
        raise invalid("is missing", "model", code="missing_parameter")
    name = named(context, given)
    entry, _ = context.serving.models.find(name)
    runner = await context.call.stack.enter_async_context(context.serving.models.lease(entry))
    template, capabilities = "", ["embedding" if entry.kind == "embed" else entry.kind]
    if isinstance(runner, GenerateRunner):
        from weft.text.calls.formats import formats_of

        capabilities = ["completion"]
        try:
            found = runner.template
        except UnsupportedError:
            found = ""
        template = found if isinstance(found, str) else found.get("default", "")
        forms = formats_of(found)
        capabilities += ["vision"] if runner.sees else []
        capabilities += ["tools"] if forms.tools else []
        capabilities += ["thinking"] if forms.reasons else []
    return Json(
        {
            "modelfile": _modelfile(entry, name),
            "parameters": "\n".join(_parameters(runner)),
            "template": template,
            "license": entry.facts.licence,
            "details": _details(entry, name),
            "model_info": _model_info(entry, runner),
            "capabilities": capabilities,
            "modified_at": _described(entry, name)["modified_at"],
            "adapters": list(entry.adapters),
        }
    )


def _modelfile(entry: Entry, name: str) -> str:
    """The lines of a Modelfile that would make this model, with names only: a path is not the client's to know."""
    return f"FROM {entry.name}\n" + (f"ADAPTER {name}\n" if name != entry.name else "")


def _parameters(runner: Runner) -> list[str]:
    """The sampling settings of a request that sets none, in a Modelfile's form."""
    stated = runner.sampling_defaults if isinstance(runner, GenerateRunner) else {}
    names = {"repetition_penalty": "repeat_penalty"}
    return [f"{names.get(name, name):<30} {value}" for name, value in stated.items()]


def _model_info(entry: Entry, runner: Runner) -> dict[str, Any]:
    """GGUF's keys of the model, whatever its format."""
    facts = entry.facts
    family = facts.model_type
    info: dict[str, Any] = {"general.architecture": family, "general.parameter_count": facts.parameters}
    if facts.licence:
        info["general.license"] = facts.licence
    sizes = {**facts.sizes, "context_length": entry.outline.max_tokens}
    if entry.kind == "embed":
        sizes["embedding_length"] = runner.info["dimension"]
    return {**info, **{f"{family}.{name}": value for name, value in sizes.items()}}
