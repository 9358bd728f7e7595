"""The models of a server: loaded on first use within a memory budget, unloaded when another model needs the memory.

A model is leased while it is used, and a leased model is not unloaded. All of this runs in one event loop, so the only
lock is the one that makes models load one after another.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weft.errors import NotFoundError, WeftError
from weft.registry.reference import PREFIX, parse, using
from weft.runtime.memory import SHARE, UNKNOWN, free_memory
from weft.serve.http.faults import Fault, no_model, unavailable
from weft.serve.models.classifier import ClassifyRunner
from weft.serve.models.embedder import EmbedRunner
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.outline import Facts, Outline, options_for
from weft.serve.models.reranker import RerankRunner
from weft.serve.settings import Limits, ModelSpec

Runner = GenerateRunner | EmbedRunner | RerankRunner | ClassifyRunner
_MADE: dict[str, Any] = {"embed": EmbedRunner, "rerank": RerankRunner, "classify": ClassifyRunner}

LATEST = ":latest"  # the tag that Ollama's clients append to a name

log = logging.getLogger("weft.serve")


@dataclass(eq=False)
class Entry:
    """One model that may be served."""

    spec: ModelSpec
    outline: Outline
    runner: Runner | None = None
    loading: asyncio.Task[Runner] | None = None
    leases: int = 0
    last_used: float = 0.0
    keep_alive_s: float | None = None
    adapters: dict[str, Path] = field(default_factory=dict)  # loaded again with the model
    failed: str = ""  # why loading failed
    loaded_once: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    version: str = ""  # of a model of the registry: what its alias meant when this entry was made
    registry: Path | None = None  # the folder of that registry
    retired: bool = False  # another version is served; unloaded when its last request has ended

    @property
    def source(self) -> str:
        """What is loaded: of a model of the registry, always the same version."""
        return f"{PREFIX}{self.reference}" if self.version else self.spec.source

    @property
    def reference(self) -> str:
        """The version of the registry, as `support@1.2.0`; "" for other models."""
        return f"{parse(self.spec.source).name}@{self.version}" if self.version else ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> str:
        return self.outline.kind

    @property
    def facts(self) -> Facts:
        return self.outline.facts

    @property
    def memory_bytes(self) -> int:
        """Memory that the model takes now, as planned."""
        return 0 if self.runner is None else self.outline.total_bytes

    @property
    def state(self) -> str:
        if self.runner is not None:
            return "ready" if self.runner.failure is None else "failed"
        return "loading" if self.loading is not None else "failed" if self.failed else "unloaded"

    @property
    def idle_s(self) -> float:
        return 0.0 if self.leases else time.monotonic() - self.last_used


def load_model(entry: Entry, limits: Limits) -> Any:
    """Load a Model, an Embedder, a Reranker or a TextClassifier. Blocks."""
    with using(entry.registry):
        return _loaded_from(entry.source, entry)


def _loaded_from(source: str, entry: Entry) -> Any:
    options = {**options_for(entry.spec, entry.kind), "offline": True, "progress": False}
    if entry.kind == "generate":
        from weft.generate import load

        return load(source, **options)
    if entry.kind == "rerank":
        from weft.rerank import Reranker

        return Reranker(source, **options)
    if entry.kind == "classify":
        from weft.classify.classifier import Classifier, is_classifier
        from weft.rerank import TextClassifier

        if is_classifier(source):
            options.pop("compute", None)  # the head was trained with one
            return Classifier(source, **options)
        return TextClassifier(source, **options)
    from weft.embed import Embedder

    embedder = Embedder(source, **options)
    _ = embedder.fingerprint  # every answer carries it: computed here, where no request waits
    if embedder.sees:
        _ = embedder.sight.tower
    return embedder


class Models:
    """All models by name."""

    def __init__(
        self,
        entries: list[Entry],
        limits: Limits,
        *,
        budget_bytes: int | None,
        keep_alive_s: float | None,
        prefixes: Mapping[str, Any] | None = None,
    ) -> None:
        """`prefixes` are the options of engines for a prefix cache on disk."""
        self._prefixes = prefixes
        self.entries = {entry.name: entry for entry in entries}
        self.hidden: set[Entry] = set()  # loaded without a name: versions that are replaced, or come, or are compared
        self.limits = limits
        free = free_memory().available_bytes
        self.budget_bytes = budget_bytes or (int(SHARE * free) if free < UNKNOWN else UNKNOWN)
        self._keep_alive_s = keep_alive_s
        self._turn = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._naming: set[str] = set()  # adapters that are being loaded
        self.load: Callable[[Entry, Limits], Any] = load_model
        self.loads = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    @property
    def loaded_bytes(self) -> int:
        return sum(entry.memory_bytes for entry in (*self, *self.hidden))

    def find(self, name: str) -> tuple[Entry, str | None]:
        """The model that a request's `model` refers to, and the adapter if it names one."""
        if name in self.entries:
            return self.entries[name], None
        for entry in self:
            if name in entry.adapters:
                return entry, name
        raise no_model(name)

    def add(self, entry: Entry) -> None:
        """Serve another model; a fault if an adapter has its name. A model of that name is kept."""
        owner = next((one.name for one in self for name in one.adapters if _same_name(name, entry.name)), None)
        if owner is not None:
            raise name_taken(entry.name, f"an adapter of {owner}", "model")
        self.entries.setdefault(entry.name, entry)

    def hide(self, entry: Entry) -> None:
        """Count a model that no request can name."""
        self.hidden.add(entry)

    def swap(self, old: Entry, new: Entry) -> None:
        """Let new requests go to `new`; those that hold a lease on `old` finish with it."""
        self.entries[old.name] = new
        self.hidden.discard(new)
        self.retire(old)

    def retire(self, entry: Entry) -> None:
        """Unload a model as soon as no request holds it."""
        entry.retired = True
        self.hidden.add(entry)
        if not entry.leases:
            self._retiring.add(task := asyncio.ensure_future(self._retired(entry)))
            task.add_done_callback(self._retiring.discard)

    async def _retired(self, entry: Entry) -> None:
        try:
            if entry.loading is not None:
                await asyncio.wait({entry.loading})
            await self._unload(entry)
        finally:
            self.hidden.discard(entry)

    @asynccontextmanager
    async def lease(self, entry: Entry) -> AsyncIterator[Runner]:
        """The model, kept loaded while it is used."""
        entry.leases += 1
        try:
            yield await self._ready(entry)
        finally:
            entry.leases -= 1
            entry.last_used = time.monotonic()
            if entry.retired and not entry.leases:
                self.retire(entry)

    async def _ready(self, entry: Entry) -> Runner:
        failure = None if entry.runner is None else entry.runner.failure or entry.runner.info.get("lost")  # its GPU
        if failure is not None:
            log.error("engine lost", extra={"model": entry.name, "error": str(failure)})
            await self._unload(entry)
        if entry.runner is not None:
            return entry.runner
        if entry.loading is None:
            entry.loading = asyncio.ensure_future(self._load(entry))
            entry.loading.add_done_callback(partial(_loaded, entry))
        return await asyncio.shield(entry.loading)  # a client that disconnects does not cancel the loading

    async def _load(self, entry: Entry) -> Runner:
        async with self._turn:
            await self._make_room(entry)
            started = time.monotonic()
            try:
                loaded = await asyncio.to_thread(self.load, entry, self.limits)
                runner = await self._runner(entry, loaded)
                del loaded
            except (WeftError, OSError, MemoryError) as error:
                log.error("model not loaded", extra={"model": entry.name, "error": str(error)})
                entry.failed = str(error)
                raise unavailable(
                    f"model {entry.name} cannot be loaded; the server's log says why", "model_not_loaded"
                ) from error
            entry.runner, entry.last_used = runner, time.monotonic()
            entry.failed, entry.loaded_once = "", True
            self.loads += 1
            took = round(time.monotonic() - started, 3)
            said: dict[str, Any] = {"model": entry.name, "seconds": took, "bytes": entry.outline.total_bytes}
            said |= {name: value for name, value in runner.info.items() if name in ("context", "context_reason")}
            log.info("model loaded", extra=said)
            return runner

    async def _runner(self, entry: Entry, loaded: Any) -> Runner:
        runner: Runner
        if entry.kind == "generate":
            limits = self.limits
            made: GenerateRunner = await asyncio.to_thread(
                GenerateRunner,
                loaded,
                running=limits.running,
                waiting=limits.waiting,
                kept=self._prefixes,
                pictures=limits.of_pictures,
            )
            runner = await made.start()
        else:
            runner = _MADE[entry.kind](loaded, waiting=self.limits.running + self.limits.waiting)
        try:
            for name, path in entry.adapters.items():
                await asyncio.to_thread(runner.adapters.load, name, path)
        except BaseException:
            await runner.close()
            raise
        return runner

    async def _make_room(self, entry: Entry) -> None:
        """Unload idle models, least recently used first, until this one fits the budget."""
        wanted = entry.outline.total_bytes
        if wanted > self.budget_bytes:
            raise unavailable(
                f"model {entry.name} needs {wanted} bytes, more than the server's --budget of {self.budget_bytes}",
                "model_too_large",
                retry_after_s=None,
            )
        while self.loaded_bytes + wanted > self.budget_bytes:
            idle = [
                e for e in self if e.runner is not None and not e.leases
            ]  # again each time: one may be in use by now
            if not idle:
                raise unavailable(
                    f"no memory for {entry.name}: all loaded models are in use; try again later", "no_room"
                )
            await self._unload(min(idle, key=lambda e: e.last_used))

    async def _unload(self, entry: Entry) -> None:
        runner, entry.runner = entry.runner, None
        if runner is not None:
            await runner.close()
            del runner
            gc.collect()  # an engine and its model refer to each other
            log.info("model unloaded", extra={"model": entry.name})

    async def unload(self, entry: Entry) -> bool:
        """Unload a model unless it is in use; whether it was unloaded."""
        async with self._turn:
            if entry.leases or entry.runner is None:
                return False
            await self._unload(entry)
            return True

    def keep_alive_of(self, entry: Entry) -> float | None:
        """Idle seconds before a model is unloaded, None for never: from a request, else the model, else the server."""
        for given in (entry.keep_alive_s, entry.spec.keep_alive_s, self._keep_alive_s):
            if given is not None:
                return None if given < 0 else given
        return None

    async def unload_idle(self) -> None:
        """Unload models that have been idle for longer than their keep_alive."""
        for entry in self:
            keep = self.keep_alive_of(entry)
            if keep is not None and entry.runner is not None and not entry.leases and entry.idle_s >= keep:
                await self.unload(entry)

    async def load_adapter(self, entry: Entry, name: str, path: Path, *, replace: bool = False) -> Any:
        """Load an adapter into a model; it is loaded again whenever the model is. No two models or adapters answer to
        one name, also while several are being loaded."""
        if any(_same_name(name, model) for model in self.entries):
            raise name_taken(name, "a model")
        if name in self._naming or any(name in other.adapters for other in self if other is not entry or not replace):
            raise name_taken(name, "an adapter that is loaded")
        self._naming.add(name)
        try:
            async with self.lease(entry) as runner:
                change = runner.adapters.replace if replace and name in entry.adapters else runner.adapters.load
                adapter = await asyncio.to_thread(change, name, path)
                entry.adapters[name] = path
                return adapter
        finally:
            self._naming.discard(name)

    async def unload_adapter(self, name: str) -> None:
        entry = next((e for e in self if name in e.adapters), None)
        if entry is None:
            raise Fault(
                404,
                f"adapter {name!r:.200} is not loaded; GET /v1/lora_adapters lists the loaded ones",
                kind="not_found_error",
                code="adapter_not_found",
            )
        del entry.adapters[name]
        if entry.runner is not None:
            with suppress(NotFoundError):
                entry.runner.adapters.unload(name)

    async def close(self) -> None:
        if self._retiring:
            await asyncio.wait(self._retiring)
        for entry in (*self, *self.hidden):
            if entry.loading is not None:
                await asyncio.wait({entry.loading})
            await self._unload(entry)


def _same_name(one: str, other: str) -> bool:
    """Whether a request could mean either: Ollama's clients append :latest."""
    return one.removesuffix(LATEST) == other.removesuffix(LATEST)


def name_taken(name: str, what: str, param: str = "lora_name") -> Fault:
    return Fault(409, f"{name!r:.80} is the name of {what}; choose another", code="name_taken", param=param)


def _loaded(entry: Entry, loading: asyncio.Task[Runner]) -> None:
    entry.loading = None
    if not loading.cancelled():
        loading.exception()  # mark it as retrieved: waiting requests have raised it
