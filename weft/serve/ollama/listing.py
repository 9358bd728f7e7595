"""GET /api/tags, /api/ps, /api/version; POST /api/show, /api/pull."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from weft.errors import UnsupportedError
from weft.serve.http.events import line
from weft.serve.http.faults import Fault, fault_of, invalid
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.outline import outline_of
from weft.serve.models.pool import Entry, Runner
from weft.serve.ollama.chat import LINES, error_line, named
from weft.serve.ollama.schemas import PullRequest, ShowRequest
from weft.serve.settings import ModelSpec

# What may be downloaded: a catalogue name, or org/name[:tag][@revision] of the hub; never a path.
_FETCHABLE = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?::[\w.-]+)?(?:@[\w.-]+)?", re.ASCII)


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
        from weft.text.tool_calls import formats_of

        capabilities = ["completion"]
        try:
            found = runner.template
        except UnsupportedError:
            found = ""
        template = found if isinstance(found, str) else found.get("default", "")
        forms = formats_of(found)
        capabilities += ["tools"] if forms.tools else []
        capabilities += ["thinking"] if forms.reasoning else []
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


async def pull(context: Context, body: PullRequest) -> Answer:
    """Succeed at once for a model that is served; download others in a separate process, if the operator allows it."""
    given = (body.model or body.name or "").removesuffix(":latest")
    if given not in context.serving.models.entries:
        if not context.serving.settings.allow_pull:
            raise Fault(403, "this server does not download models: run `weft pull`, or start it with --allow-pull")
        if not _FETCHABLE.fullmatch(given) or ".." in given:
            raise invalid("is not a model name: give a catalogue name, or org/name of the hub", "model")
    if body.stream is False:
        async for _ in _fetch(context, given):
            pass
        return Json({"status": "success"})
    return Stream(_fetch(context, given), error_line, LINES)


async def _fetch(context: Context, name: str) -> AsyncIterator[bytes]:
    models = context.serving.models
    if name not in models.entries:
        yield line({"status": f"pulling {name}"})
        command = (sys.executable, "-m", "weft", "pull", name)
        quiet = asyncio.subprocess.DEVNULL
        child = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                child.terminate()
        if code != 0:
            raise Fault(404 if code == 2 else 502, f"{name} could not be downloaded", kind="not_found_error")
        try:
            entry = Entry(ModelSpec(name, name), await asyncio.to_thread(outline_of, ModelSpec(name, name)))
        except Exception as error:
            raise fault_of(error) from error
        models.add(entry)
    yield line({"status": "success"})
