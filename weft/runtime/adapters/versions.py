"""Adapters in memory: checked against the model, packed for the kernels, and swapped while steps run.

A version of an adapter never changes. It is freed when no name refers to it and no request holds it, so a request that
runs while its adapter is replaced finishes with the version it started with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.backends.base import AdapterWeights, Backend, PartPlace
from weft.errors import BusyError, InputError, NotFoundError, UnsupportedError
from weft.frozen import frozen
from weft.runtime.adapters.targets import Targets
from weft.runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime.prepared import Prepared

LIMIT = 16  # adapters that are loaded at a time
INDICES = 256  # of versions, 0 is none: csrc/core/state.h: kAdapters
MAX_BLEND_RANK = 4096


@frozen(eq=False)
class Adapter:
    """One version of an adapter. `index` is its value in Step.adapters; `generation` is never used twice.

    `digest` says what it computes: two versions with one digest give the same logits, in any process.
    """

    name: str
    generation: int
    index: int
    rank: int  # the largest of its modules
    digest: bytes
    parts: Mapping[PartPlace, AdapterWeights] = field(repr=False)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


@dataclass
class _Version:
    adapter: Adapter
    holders: int = 0
    named: bool = True


class Adapters:
    """The adapters of one decoder or encoder. Every method may be called from any thread, while steps run too.

    `load`, `replace` and `blend` check and pack first: if they fail, nothing has changed.
    """

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, prepared: Callable[[], Prepared], *, limit: int = LIMIT
    ) -> None:
        self.limit = limit
        self._checkpoint = checkpoint
        self._backend = backend
        self._prepare = prepared
        self._turn = threading.RLock()
        self._begin = threading.Lock()
        self._found: Targets | None = None
        self._names: dict[str, Adapter] = {}
        self._live: dict[int, _Version] = {}
        self._generation = 0

    @property
    def tables(self) -> Mapping[str, Any]:
        """The tables that the program with adapters is bound to."""
        return self._targets.tables

    @property
    def _targets(self) -> Targets:
        with self._begin:  # once, in the first thread that asks
            if self._found is None:
                self._found = Targets(self._checkpoint, self._backend, self._prepare())
            return self._found

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Adapter]:
        """The adapters that are loaded, oldest first."""
        with self._turn:
            return iter(list(self._names.values()))

    def get(self, name: str) -> Adapter:
        """The version that `name` refers to now."""
        with self._turn:
            if name not in self._names:
                known = ", ".join(self._names) or "none"
                raise NotFoundError(
                    "adapter",
                    "no adapter of this name is loaded",
                    given=name,
                    advice=f"load it first; loaded are: {known}",
                )
            return self._names[name]

    def load(self, name: str, path: str | Path) -> Adapter:
        """Read the adapter in the folder `path` under a new name."""
        self._check_new(name)
        return self._install(name, *self._read(path), new=True)

    def replace(self, name: str, path: str | Path) -> Adapter:
        """Let `name` refer to the adapter in the folder `path`; requests that hold the old version keep it."""
        self.get(name)
        return self._install(name, *self._read(path), new=False)

    def blend(self, name: str, weights: Mapping[str, float]) -> Adapter:
        """A new adapter, the weighted sum of loaded ones: exact, its rank is the sum of theirs."""
        self._check_new(name)
        if not weights or not all(isinstance(w, int | float) and abs(w) < 1e9 for w in weights.values()):
            what = f"blend {name!r:.80} needs names of loaded adapters with finite weights"
            raise InputError("adapter", what, given=weights)
        with ExitStack() as held:
            sources = [(held.enter_context(self._holding(source)), float(w)) for source, w in weights.items()]
            parts, rank = _blended(sources, self._backend)
            digests = b"".join(source.digest + repr(weight).encode() for source, weight in sources)
            return self._install(name, parts, rank, sha256(b"blend" + digests).digest(), new=True)

    def unload(self, name: str) -> None:
        """Remove the name; the memory is freed when no request holds the version any more."""
        with self._turn:
            self._retire(self.get(name))
            del self._names[name]

    def hold(self, adapter: Adapter | str) -> Adapter:
        """Keep a version, or the one that a name refers to now, until `release`; running requests do this."""
        with self._turn:
            adapter = self.get(adapter) if isinstance(adapter, str) else adapter
            self._version(adapter).holders += 1
            return adapter

    def release(self, adapter: Adapter) -> None:
        """Undo one `hold`."""
        with self._turn:
            version = self._version(adapter)
            if version.holders < 1:
                raise InputError("adapter", f"{adapter.name} was released more often than it was held")
            version.holders -= 1
            self._free(version)

    @contextmanager
    def _holding(self, name: str) -> Iterator[Adapter]:
        adapter = self.hold(name)
        try:
            yield adapter
        finally:
            self.release(adapter)

    @contextmanager
    def using(self, indices: np.ndarray) -> Iterator[None]:
        """Keep the versions of these indices for a step."""
        wanted = sorted({int(index) for index in indices} - {0})
        with self._turn:
            unknown = [index for index in wanted if index not in self._live]
            if unknown:
                raise InputError(
                    "adapter", f"no adapter has the index {unknown[0]}", advice="hold an adapter as long as it is used"
                )
            held = [self._live[index] for index in wanted]
            for version in held:
                version.holders += 1
        try:
            yield
        finally:
            with self._turn:
                for version in held:
                    version.holders -= 1
                    self._free(version)

    def _check_new(self, name: str) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise InputError("adapter", "must be 1 to 200 printable characters", field="name", given=name)
        if name in self._names:
            raise InputError("adapter", f"{name} is already loaded", advice="replace it, or unload it first")
        if len(self._names) >= self.limit:
            what = f"{self.limit} adapters are already loaded, the limit"
            raise InputError("adapter", what, advice="unload one, or raise the limit")

    def values(self, path: str | Path) -> Iterator[tuple[PartPlace, Mapping[str, Any]]]:
        """The parts of the adapter in the folder `path`, checked and not loaded, for those who write them elsewhere."""
        from weft.weights.adapters import open_adapter

        return self._targets.values(open_adapter(Path(path)))

    def _read(self, path: str | Path) -> tuple[Mapping[PartPlace, AdapterWeights], int, bytes]:
        from weft.weights.adapters import open_adapter

        file = open_adapter(Path(path))
        return self._targets.parts(file), file.rank, file.digest()

    def _install(
        self, name: str, parts: Mapping[PartPlace, AdapterWeights], rank: int, digest: bytes, *, new: bool
    ) -> Adapter:
        with self._turn:
            before = None if new else self.get(name)
            if new:
                self._check_new(name)
            index = next((i for i in range(1, INDICES) if i not in self._live), None)
            if index is None:
                raise BusyError("adapter", f"all {INDICES - 1} versions are still held; let requests finish first")
            self._generation += 1
            adapter = Adapter(name, self._generation, index, rank, digest, parts)
            for (table, matrix), part in parts.items():
                self.tables[table].put(index, *part, matrix)
            self._live[index] = _Version(adapter)
            if before is not None:
                self._retire(before)
            self._names[name] = adapter
            return adapter

    def _version(self, adapter: Adapter) -> _Version:
        version = self._live.get(adapter.index)
        if version is None or version.adapter is not adapter:
            raise InputError(
                "adapter", f"generation {adapter.generation} of {adapter.name} is gone; get it by name again"
            )
        return version

    def _retire(self, adapter: Adapter) -> None:
        version = self._version(adapter)
        version.named = False
        self._free(version)

    def _free(self, version: _Version) -> None:
        adapter = version.adapter
        if version.named or version.holders or self._live.get(adapter.index) is not version:
            return
        for table in {place.table for place in adapter.parts}:
            self.tables[table].clear(adapter.index)
        del self._live[adapter.index]


def _blended(sources: list[tuple[Adapter, float]], backend: Backend) -> tuple[Mapping[PartPlace, AdapterWeights], int]:
    """The parts of the weighted sum: rows of down and columns of up side by side, shifts added."""
    import numpy as np

    from weft.weights.files import TensorView

    packer, most = backend.adapter_packer(), 0
    for place in sorted({place for source, _ in sources for place in source.parts}):
        found = [(s.name, s.parts[place], weight) for s, weight in sources if place in s.parts]
        for name, part, _ in found:
            if part.gain is not None or (part.up is not None and part.down is None):
                kind = "is DoRA" if part.gain is not None else "replaces a weight (modules_to_save)"
                raise UnsupportedError(
                    "adapter", f"{name} {kind} at {place.table.partition('/')[2]} and cannot be blended"
                )
        low = [(part, weight) for _, part, weight in found if part.down is not None]
        shifts = [np.float32(weight) * part.shift.row(0) for _, part, weight in found if part.shift is not None]
        values: dict[str, Any] = {"shift": sum(shifts) if shifts else None}
        if low:
            values["down"] = TensorView.of(np.concatenate([part.down.dense() for part, _ in low]))
            values["up"] = TensorView.of(np.concatenate([part.up.dense() for part, _ in low], axis=1))
            values["scale"] = np.concatenate([np.float32(weight) * part.scale.row(0) for part, weight in low])
            most = max(most, len(values["scale"]))
        if most > MAX_BLEND_RANK:
            raise InputError("adapter", f"the blend would have rank {most}, more than {MAX_BLEND_RANK}")
        packer.add(place, values)
    return packer.finish(), most
