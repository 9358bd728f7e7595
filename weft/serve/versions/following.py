"""Models that follow an alias of the registry: swapped when it moves, without dropping a request.

The new version is loaded beside the old one, then new requests go to it. Requests under way hold a lease on the old
one, which is unloaded when the last of them has ended. A version that cannot be loaded changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.registry import Registry
from weft.registry.reference import PREFIX, default_folder, parse, using
from weft.registry.semver import is_version
from weft.serve.http.faults import Fault
from weft.serve.models.outline import outline_of
from weft.serve.models.pool import Entry, Models
from weft.serve.settings import ModelSpec, Settings

POLL_S = 0.5  # between two looks at the registry, which other processes change, too

log = logging.getLogger("weft.serve")


def registry_folder(settings: Settings) -> Path | None:
    """The registry of a server, None if none of its models is of one."""
    if settings.registry is not None:
        return settings.registry.expanduser().absolute()
    return default_folder() if any(spec.source.startswith(PREFIX) for spec in settings.models) else None


def entry_for(spec: ModelSpec, folder: Path | None) -> Entry:
    """The entry of a model; of one of the registry, at the version that is meant now. Reads the model's files."""
    if not spec.source.startswith(PREFIX):
        return Entry(spec, outline_of(spec))
    with Registry(folder, create=False) as registry:
        version = registry.get(spec.source).version
    return entry_at(spec, version, folder)


def entry_at(spec: ModelSpec, version: str, folder: Path | None) -> Entry:
    """The entry of a model of the registry at one version."""
    pinned = replace(spec, source=f"{PREFIX}{parse(spec.source).name}@{version}")
    with using(folder):
        return Entry(spec, outline_of(pinned), version=version, registry=folder)


class Following:
    """The models of a server that are of the registry in `folder`."""

    def __init__(self, folder: Path, models: Models) -> None:
        self.registry = Registry(folder)
        self.folder = folder
        self._models = models
        self._turn = asyncio.Lock()
        self._failed: dict[str, tuple[str, str]] = {}  # by model: the version that could not be loaded, and why

    def entries(self, name: str | None = None) -> list[Entry]:
        """The models that are versions of `name`, or of any name."""
        ours = [entry for entry in self._models if entry.version]
        return [entry for entry in ours if name in (None, parse(entry.spec.source).name)]

    async def watch(self) -> None:
        """Look at the registry from time to time, for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.update()
            except Exception as error:  # a registry that cannot be read now must not end the watch
                log.error("registry not read", extra={"error": str(error)})

    async def update(self, name: str | None = None, *, retry: bool = False) -> None:
        """Swap the models whose alias means another version now; `retry` also those that could not be loaded before."""
        async with self._turn:
            for entry in self.entries(name):
                asked = parse(entry.spec.source)
                if is_version(asked.which):
                    continue
                wanted = (await asyncio.to_thread(self.registry.get, str(asked))).version
                if wanted == entry.version:
                    self._failed.pop(entry.name, None)
                elif retry or self._failed.get(entry.name, ("", ""))[0] != wanted:
                    await self._swap(entry, wanted)

    async def _swap(self, old: Entry, version: str) -> None:
        try:
            new = await asyncio.to_thread(entry_at, old.spec, version, self.folder)
            new.keep_alive_s, new.adapters = old.keep_alive_s, dict(old.adapters)
            self._models.hide(new)
            try:
                if old.runner is not None or old.loading is not None:
                    async with self._models.lease(new):
                        pass
                self._models.swap(old, new)
            finally:
                self._models.hidden.discard(new)
        except (Fault, WeftError, OSError) as error:
            reason = error.message if isinstance(error, Fault) else str(error)
            self._failed[old.name] = (version, reason)
            said = {"model": old.name, "version": version, "served": old.version, "error": reason}
            log.error("version not served", extra=said)
            return
        self._failed.pop(old.name, None)
        log.info("version served", extra={"model": old.name, "version": version, "previous": old.version})

    def served(self, name: str) -> list[dict[str, Any]]:
        """How versions of `name` are served here."""
        return [
            {
                "model": entry.name,
                "version": entry.version,
                "state": entry.state,
                "error": self._failed.get(entry.name, ("", ""))[1],
            }
            for entry in self.entries(name)
        ]

    def failed(self, name: str) -> str:
        """Why the version that is meant is not served; "" if it is."""
        return next((self._failed[e.name][1] for e in self.entries(name) if e.name in self._failed), "")

    def close(self) -> None:
        self.registry.close()
