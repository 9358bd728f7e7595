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
from weft.serve.models.pool import Entry, outline_of
from weft.serve.ollama.chat import LINES, error_line, named
from weft.serve.ollama.schemas import PullRequest, ShowRequest
from weft.serve.settings import ModelSpec

# What may be downloaded: a catalogue name, or org/name[:tag][@revision] of the hub; never a path.
_FETCHABLE = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?::[\w.-]+)?(?:@[\w.-]+)?", re.ASCII)


async def version(context: Context, _: None) -> Answer:
    from weft import __version__

    return Json({"version": __version__})


async def tags(context: Context, _: None) -> Answer:
    return Json({"models": [_described(entry) for entry in context.serving.models]})


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
        context_length = entry.outline.max_tokens
        loaded.append({**_described(entry), "expires_at": expires, "size_vram": 0, "context_length": context_length})
    return Json({"models": loaded})


def _described(entry: Entry) -> dict[str, Any]:
    """A model as lists show it."""
    changed = datetime.fromtimestamp(entry.created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": changed,
        "size": entry.outline.bytes.get("weights", 0),
        "digest": entry.outline.digest,
        "details": _details(entry),
    }


def _details(entry: Entry) -> dict[str, Any]:
    found = entry.runner.info if entry.runner is not None else {}
    family = str(found.get("model_type", entry.kind))
    return {
        "parent_model": "",
        "format": str(found.get("format", "")),
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": str(found.get("compute", "")),
    }


async def show(context: Context, body: ShowRequest) -> Answer:
    """A model's properties and capabilities; loads it, because its chat template is among them."""
    given = body.model or body.name
    if given is None:
        raise invalid("is missing", "model", code="missing_parameter")
    entry, _ = context.serving.models.find(named(context, given))
    runner = await context.call.stack.enter_async_context(context.serving.models.lease(entry))
    template, capabilities = "", ["embedding" if entry.kind == "embed" else "rerank"]
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
    family = str(runner.info.get("model_type", entry.kind))
    info = {"general.architecture": family, f"{family}.context_length": entry.outline.max_tokens}
    if entry.kind == "embed":
        info[f"{family}.embedding_length"] = runner.info["dimension"]
    return Json(
        {
            "modelfile": "",
            "parameters": "",
            "template": template,
            "license": "",
            "details": _details(entry),
            "model_info": info,
            "capabilities": capabilities,
            "modified_at": _described(entry)["modified_at"],
        }
    )


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
        models.entries.setdefault(name, entry)
    yield line({"status": "success"})
