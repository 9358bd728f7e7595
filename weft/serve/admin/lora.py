"""POST /v1/load_lora_adapter, /v1/unload_lora_adapter; GET /v1/lora_adapters.

An adapter is a folder below the one that the operator gave; a client names it and never gives a path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.errors import WeftError
from weft.serve.http.faults import Fault, fault_of, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.models.pool import Entry
from weft.serve.openai.schemas import Count, Name

_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


class LoadRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`lora_path` is the name of a folder, by default `lora_name`; `model` is needed where there are several."""

    lora_name: Name
    lora_path: Name | None = None
    load_inplace: bool | None = None
    model: Name | None = None
    expected_generation: Count | None = None


class UnloadRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    lora_name: Name
    lora_int_id: Count | None = None


async def load(context: Context, body: LoadRequest) -> Answer:
    """Load an adapter, or with `load_inplace` put another in its place while requests run."""
    folder = _folder(context, body.lora_path or body.lora_name)
    entry = _base(context, body.model)
    models = context.serving.models
    if body.lora_name in models.entries:
        raise invalid(f"{body.lora_name!r:.80} is the name of a model", "lora_name")
    other = next((e for e in models if body.lora_name in e.adapters), None)
    if other is not None and (not body.load_inplace or other is not entry):
        raise invalid(f"{body.lora_name!r:.80} is loaded already; load_inplace replaces it", "lora_name")
    if body.expected_generation is not None and _generation(entry, body.lora_name) != body.expected_generation:
        raise Fault(409, "another version is loaded than expected_generation says", code="generation_mismatch")
    try:
        adapter = await models.load_adapter(entry, body.lora_name, folder, replace=bool(body.load_inplace))
    except WeftError as error:
        fault = fault_of(error)
        raise Fault(min(fault.status, 499), fault.message, param="lora_path", code="adapter_not_loaded") from None
    return Json({"status": "success", **_shown(entry, adapter)})


async def unload(context: Context, body: UnloadRequest) -> Answer:
    """Let an adapter go; requests that use it end with it."""
    _require_folder(context)
    await context.serving.models.unload_adapter(body.lora_name)
    return Json({"status": "success", "lora_name": body.lora_name})


async def adapters(context: Context, _: None) -> Answer:
    """The adapters that are loaded, and those that may be."""
    loaded = [
        _shown(entry, adapter)
        for entry in context.serving.models
        if entry.runner is not None and entry.adapters
        for adapter in entry.runner.adapters
    ]
    root = context.serving.settings.lora_dir
    found = sorted(path.name for path in root.iterdir() if _is_adapter(path)) if root and root.is_dir() else []
    return Json({"adapters": loaded, "available": found})


def _shown(entry: Entry, adapter: Any) -> dict[str, Any]:
    return {
        "lora_name": adapter.name,
        "model": entry.name,
        "adapter_generation": adapter.generation,
        "rank": adapter.rank,
        "bytes": adapter.nbytes,
    }


def _generation(entry: Entry, name: str) -> int | None:
    if entry.runner is None or name not in entry.adapters:
        return None
    return entry.runner.adapters.get(name).generation


def _base(context: Context, model: str | None) -> Entry:
    models = context.serving.models
    if model is not None:
        return models.find(model)[0]
    entries = list(models)
    generators = [entry for entry in entries if entry.kind == "generate"]
    if len(entries) == 1 or len(generators) == 1:
        return (generators or entries)[0]
    raise invalid("there are several models; say which with model", "model")


def _require_folder(context: Context) -> Path:
    root = context.serving.settings.lora_dir
    if root is None:
        raise Fault(403, "this server loads no adapters; start it with --lora-dir", code="adapters_off")
    return root


def _folder(context: Context, name: str) -> Path:
    """The folder of that name, inside the operator's and nowhere else, links followed."""
    root = _require_folder(context).resolve()
    if not _FOLDER.fullmatch(name):
        raise invalid("lora_path is the name of a folder in the server's --lora-dir, never a path", "lora_path")
    found = (root / name).resolve()
    if found.parent != root or not found.is_dir():
        raise Fault(404, f"there is no adapter {name!r:.80} here", kind="not_found_error", code="adapter_not_found")
    return found


def _is_adapter(path: Path) -> bool:
    return path.is_dir() and _FOLDER.fullmatch(path.name) is not None and (path / "adapter_config.json").is_file()
