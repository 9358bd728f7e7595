"""GET /health, /ready, /metrics and /weft/live: the state of the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.serve.http.faults import unavailable
from weft.serve.http.routes import Answer, Context, Json, Plain
from weft.serve.models.generator import GenerateRunner
from weft.serve.work.metrics import Labels, labels

if TYPE_CHECKING:
    from weft.serve.models.pool import Entry
    from weft.serve.serving import Serving

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(context: Context, _: None) -> Answer:
    """200 if requests are answered; 503 while the first models load and while the server shuts down."""
    _check(context.serving)
    return Json({"status": "ok"})


async def ready(context: Context, _: None) -> Answer:
    """As `health`, and 503 if a model or its engine has failed."""
    _check(context.serving)
    states = {entry.name: entry.state for entry in context.serving.models}
    if "failed" in states.values():
        raise unavailable(
            "a model could not be loaded, or its engine has failed; GET /v1/models shows which", "model_failed"
        )
    return Json({"status": "ready", "models": states})


def _check(serving: Serving) -> None:
    if serving.tracking.draining:
        raise unavailable("the server is shutting down", "shutting_down")
    if not serving.preloaded:
        raise unavailable("the models are being loaded", "loading", retry_after_s=1)


async def metrics(context: Context, _: None) -> Answer:
    """All metrics, for Prometheus."""
    serving = context.serving
    serving.forget_unloaded()
    gauges: dict[tuple[str, Labels], float] = {
        ("process_resident_memory_bytes", ()): resident_bytes(),
        ("open_requests", ()): len(serving.tracking.calls),
    }
    counters: dict[tuple[str, Labels], float] = {}
    for entry in serving.models:
        own = labels(model=entry.name)
        gauges["model_loaded", own] = entry.runner is not None
        gauges["model_bytes", own] = entry.memory_bytes
        _engine_series(entry, gauges, counters, own)
    if serving.drift is not None:
        gauges |= serving.drift.gauges()
    return Plain(serving.metrics.text(gauges, counters).encode(), METRICS_TYPE)


def _engine_series(entry: Entry, gauges: dict[Any, float], counters: dict[Any, float], own: Labels) -> None:
    runner = entry.runner
    if runner is None:
        return
    for adapter in runner.adapters if entry.adapters else ():
        gauges["lora_requests_info", labels(model=entry.name, adapter=adapter.name)] = 1
    if not isinstance(runner, GenerateRunner):
        gauges["te_queue_size", own] = runner.waiting
        return
    stats = runner.stats
    gauges["num_requests_running", own] = stats.running
    gauges["num_requests_waiting", own] = stats.waiting
    gauges["kv_cache_usage_perc", own] = (stats.pages - stats.free_pages) / max(1, stats.pages)
    counters["prompt_tokens_total", own] = stats.prompt_tokens
    counters["generation_tokens_total", own] = stats.generated_tokens
    counters["prefix_cache_queries", own] = stats.prompt_tokens
    counters["prefix_cache_hits", own] = stats.cached_tokens
    counters["num_preemptions", own] = stats.preemptions
    counters["spec_decode_num_draft_tokens_total", own] = stats.drafted_tokens
    counters["spec_decode_num_accepted_tokens_total", own] = stats.accepted_tokens
    counters["expert_hits_total", own] = stats.expert_hits
    counters["expert_misses_total", own] = stats.expert_misses
    gauges["expert_bytes", own] = stats.expert_bytes


async def live(context: Context, _: None) -> Answer:
    """What the page's live view shows: models, requests, speed, cache, memory."""
    serving = context.serving
    cache = dict.fromkeys(("pages", "used", "shared", "hits", "misses"), 0)
    waiting = 0
    for entry in serving.models:
        if isinstance(entry.runner, GenerateRunner):
            stats = entry.runner.stats
            cache["pages"] += stats.pages
            cache["used"] += stats.pages - stats.free_pages
            cache["shared"] += stats.kept_pages
            cache["hits"] += stats.cached_tokens
            cache["misses"] += stats.prompt_tokens - stats.cached_tokens
        if entry.runner is not None:
            waiting += entry.runner.waiting
    return Json(
        {
            "models": [described(entry) for entry in serving.models],
            "requests": serving.tracking.live(),
            "tokens_per_second": round(serving.tracking.tokens_per_second, 2),
            "cache": cache,
            "queue": waiting,
            "rss": resident_bytes(),
            "downloads": serving.settings.allow_pull,
            "default_tokens": serving.settings.limits.default_tokens,
        }
    )


def described(entry: Entry) -> dict[str, Any]:
    """A model as the page and `weft ps` show it. `bytes` is the memory it takes when loaded, `memory_bytes` now, and
    `file_bytes` its size on disk. `sampling` are the settings of a chat that leaves them unset."""
    facts, defaults = entry.facts, entry.outline.defaults
    return {
        "name": entry.name,
        "state": entry.state,
        "loaded": entry.runner is not None,
        "kind": entry.kind,
        "model_type": facts.model_type,
        "format": facts.format,
        "parameters": facts.parameters,
        "quantisation": facts.quantisation,
        "licence": facts.licence,
        "sees": facts.sees,
        "context": entry.outline.max_tokens,
        "file_bytes": facts.file_bytes,
        "bytes": entry.outline.total_bytes,
        "memory_bytes": entry.memory_bytes,
        "adapters": list(entry.adapters),
        "sampling": {} if defaults is None else dict(defaults.options),
        "sampling_source": "" if defaults is None else defaults.source,
    }


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
