"""POST /v1/load_lora_adapter, /v1/unload_lora_adapter; GET /v1/lora_adapters.

An adapter is a folder inside the operator's --lora-dir; clients give its name, never a path.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.errors import BusyError, MemoryPlanError, WeftError
from weft.serve.http.faults import Fault, blaming, fault_of, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.models.pool import Entry
from weft.serve.openai.schemas import Count, Name

log = logging.getLogger("weft.serve")

_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


class LoadRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`lora_path` is the name of a folder, by default `lora_name`; `model` is needed if there are several."""

    lora_name: Name
    lora_path: Name | None = None
    load_inplace: bool | None = None
    model: Name | None = None
    expected_generation: Count | None = None


class UnloadRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    lora_name: Name
    lora_int_id: Count | None = None


async def load(context: Context, body: LoadRequest) -> Answer:
    """Load an adapter, or with `load_inplace` replace it while requests run."""
    folder = _folder(context, body.lora_path or body.lora_name)
    entry = _base(context, body.model)
    models = context.serving.models
    other = next((e for e in models if body.lora_name in e.adapters), None)
    if other is not None and (not body.load_inplace or other is not entry):
        raise invalid(f"{body.lora_name!r:.80} is already loaded; load_inplace: true replaces it", "lora_name")
    if body.expected_generation is not None and _generation(entry, body.lora_name) != body.expected_generation:
        raise Fault(
            409,
            f"the loaded adapter is not of generation {body.expected_generation}; GET /v1/lora_adapters shows it",
            code="generation_mismatch",
        )
    try:
        adapter = await models.load_adapter(entry, body.lora_name, folder, replace=bool(body.load_inplace))
    except WeftError as error:
        log.warning("adapter not loaded", extra={"model": entry.name, "adapter": folder.name, "error": str(error)})
        if isinstance(error, MemoryPlanError | BusyError):
            raise fault_of(error) from None
        # The client chose the adapter, so whatever is wrong with its files is a mistake in the request.
        raise blaming("lora_path", error, code="adapter_not_loaded") from None
    return Json({"status": "success", **_shown(entry, adapter)})


async def unload(context: Context, body: UnloadRequest) -> Answer:
    """Unload an adapter; requests that use it fail."""
    _require_folder(context)
    await context.serving.models.unload_adapter(body.lora_name)
    return Json({"status": "success", "lora_name": body.lora_name})


async def adapters(context: Context, _: None) -> Answer:
    """The adapters that are loaded, and those available."""
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
    raise invalid("is missing: this server has several models", "model", code="missing_parameter")


def _require_folder(context: Context) -> Path:
    root = context.serving.settings.lora_dir
    if root is None:
        raise Fault(403, "this server does not load adapters; start it with --lora-dir DIR", code="adapters_off")
    return root


def _folder(context: Context, name: str) -> Path:
    """The folder `name` directly inside the operator's folder, after resolving links."""
    root = _require_folder(context).resolve()
    if not _FOLDER.fullmatch(name):
        raise invalid("must be the name of a folder in the server's --lora-dir, not a path", "lora_path")
    found = (root / name).resolve()
    if found.parent != root or not found.is_dir():
        raise Fault(
            404,
            f"adapter {name!r:.80} does not exist; GET /v1/lora_adapters lists those available",
            kind="not_found_error",
            code="adapter_not_found",
        )
    return found


def _is_adapter(path: Path) -> bool:
    return path.is_dir() and _FOLDER.fullmatch(path.name) is not None and (path / "adapter_config.json").is_file()
