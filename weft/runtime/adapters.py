"""Adapters in memory: checked against the model, packed for the kernels, and swapped while steps run.

A version of an adapter never changes. It is freed when no name refers to it and no request holds it, so a request that
runs while its adapter is replaced finishes with the version it started with.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.backends.base import AdapterWeights, Backend
from weft.errors import BusyError, InputError, MemoryPlanError, NotFoundError, UnsupportedError, WeightError
from weft.frozen import frozen
from weft.models import model_module
from weft.nn.scope import TRANSPOSED
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.memory import SHARE, free_memory

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import WantedTable
    from weft.runtime.prepared import Prepared
    from weft.weights.adapters import AdaptedModule, AdapterFile
    from weft.weights.files import TensorView

LIMIT = 16  # adapters that are loaded at a time
INDICES = 256  # of versions, 0 is none: csrc/core/state.h: kAdapters
MAX_BLEND_RANK = 4096
NORM_ROWS = 1024  # of a weight that are widened at a time

LOOKUP = "lora_embedding/"  # the name of an embedding's table begins so: weft/graph/passes/adapt.py
# The weight of a product, where it is an embedding too, is adapted as the head that it is.
TIED = {"model.embed_tokens": "lm_head"}


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
    parts: Mapping[str, AdapterWeights] = field(repr=False)  # by table

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
        self._found: _Targets | None = None
        self._names: dict[str, Adapter] = {}
        self._live: dict[int, _Version] = {}
        self._generation = 0

    @property
    def tables(self) -> Mapping[str, Any]:
        """The tables that the program with adapters is bound to."""
        return self._targets.tables

    @property
    def _targets(self) -> _Targets:
        with self._begin:  # once, in the first thread that asks
            if self._found is None:
                self._found = _Targets(self._checkpoint, self._backend, self._prepare())
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

    def _read(self, path: str | Path) -> tuple[Mapping[str, AdapterWeights], int, bytes]:
        from weft.weights.adapters import open_adapter

        file = open_adapter(Path(path))
        return self._targets.parts(file), file.rank, file.digest()

    def _install(
        self, name: str, parts: Mapping[str, AdapterWeights], rank: int, digest: bytes, *, new: bool
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
            for table, part in parts.items():
                self.tables[table].put(index, *part)
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
        for table in adapter.parts:
            self.tables[table].clear(adapter.index)
        del self._live[adapter.index]


class _Target(NamedTuple):
    """A table and the rows of its module's weight that it adapts, from `first` on; with a `period` in every so many
    rows. An embedding's table is for the transposed weight.
    """

    table: WantedTable
    first: int
    total: int
    period: int = 0

    @property
    def lookup(self) -> bool:
        return self.table.name.startswith(LOOKUP)

    @property
    def weight(self) -> str:
        """The name of the weight."""
        return self.table.name.partition("/")[2]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight, as the model has it."""
        rows, cols = self.table.rows, self.table.cols
        return (cols, rows) if self.lookup else (rows, cols)

    def cut(self, view: TensorView) -> TensorView:
        """The rows of a tensor of the module."""
        from weft.weights.files import TensorView

        if view.shape[0] == self.table.rows:
            return view
        if self.period:
            import numpy as np

            count = self.table.rows * self.period // self.total  # in each period
            starts = np.arange(self.first, self.total, self.period, dtype=np.int32)[:, None]
            return view.take((starts + np.arange(count, dtype=np.int32)).reshape(-1))
        size = view.nbytes // view.shape[0]
        data = view.bytes()[self.first * size : (self.first + self.table.rows) * size]
        return TensorView(view.dtype, (self.table.rows, *view.shape[1:]), data)


class _Targets:
    """The weights of a model that adapters may change, by module."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, prepared: Prepared) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._weights = {wanted.name for wanted in prepared.weights}
        self.tables = {table.name: backend.adapter_table(table) for table in prepared.tables}
        self._modules: dict[str, list[_Target]] = {}
        for table in prepared.tables:
            stored, _, rows = table.name.partition("/")[2].partition(":")
            rows = f":{rows}".removeprefix(TRANSPOSED).removeprefix(":")
            first, _, *period, total = map(int, re.split("[-/]", rows)) if rows else (0, 0, table.rows)
            module, target = stored.removesuffix(".weight"), _Target(table, first, total, *period)
            own = module if target.lookup else TIED.get(module, module)
            self._modules.setdefault(own, []).append(target)

    def parts(self, file: AdapterFile) -> Mapping[str, AdapterWeights]:
        """The parts of an adapter's modules by table, packed; WeightError for what does not fit the model."""
        modules = file.modules
        found = [(name, self._find(name, module), module) for name, module in modules.items()]
        seen: dict[str, str] = {}
        for name, targets, module in found:
            if (other := seen.setdefault(targets[0].table.name, name)) != name:
                raise WeightError("adapter", f"{name[:120]} and {other[:120]} are the same module of this model")
            if targets[0].lookup and (file.format == "mlx" or module.magnitude is not None):
                kind = "use_dora" if module.magnitude is not None else "MLX, where the head changes with it"
                raise UnsupportedError(
                    "adapter", f"{name[:120]} is an embedding, which cannot be adapted this way ({kind})"
                )
        size = sum(view.nbytes for module in modules.values() for _, view in module.tensors())
        if size > SHARE * free_memory().available_bytes:
            raise MemoryPlanError("adapter", f"{size / 1e9:.2f} GB do not fit into free memory", advice="unload others")
        packer = self._backend.adapter_packer()
        for name, targets, module in found:
            for target in targets:
                packer.add(target.table.name, self._values(name, target, module))
        return packer.finish()

    def _find(self, name: str, module: AdaptedModule) -> list[_Target]:
        targets = next((self._modules[own] for own in self._spellings(name) if own in self._modules), None)
        if targets is None:
            if ".experts." in f"{name}.":
                advice = "train attention, the router or a shared expert, or merge the adapter into the weights"
                raise UnsupportedError("adapter", f"{name[:120]}: weft applies no adapters to experts", advice=advice)
            if any(self._checkpoint.stored(f"{own}.weight") is not None for own in self._spellings(name)):
                what = "modules_to_save" if module.weight is not None else "the adapter"
                raise UnsupportedError(
                    "adapter", f"{what} changes {name[:120]}; weft adapts products and embeddings of tokens"
                )
            raise WeightError("adapter", f"this model ({self._checkpoint.model_type}) has no module {name[:120]}")
        rows, cols = targets[0].total, targets[0].table.cols
        whole = targets[0].shape if targets[0].lookup else (rows, cols)
        wanted = {"down": (module.rank, cols), "up": (rows, module.rank), "weight": whole, "base": whole}
        for what, view in module.tensors():
            if view.shape != wanted.get(what, (rows,)):
                fits = wanted.get(what, (rows,))
                raise WeightError("adapter", f"{name[:120]}: {what} has shape {view.shape}, the model needs {fits}")
        return targets

    def _spellings(self, name: str) -> Iterator[str]:
        """The names that a module may have here: models are saved inside others."""
        yield name
        names = model_module(self._checkpoint.model_type).NAMES
        for prefix, start in {**dict.fromkeys(names.prefixes, ""), **names.part}.items():
            if name.startswith(prefix):
                yield start + name.removeprefix(prefix)

    def _values(self, name: str, target: _Target, module: AdaptedModule) -> Mapping[str, Any]:
        """The values of a part: views of matrices, arrays of the vectors."""
        import numpy as np

        from weft.weights.adapters import merged, transposed

        cut = {what: view if what == "down" or target.lookup else target.cut(view) for what, view in module.tensors()}
        for what, view in cut.items():
            if not np.isfinite(view.numpy()).all():
                raise WeightError("adapter", f"{name[:120]}: {what} holds numbers that are not finite")
        vectors = {what: view.numpy().astype(np.float32) for what, view in cut.items() if len(view.shape) == 1}
        base = self._base_bias(target)
        if "bias" in vectors and base is None:
            raise WeightError("adapter", f"{name[:120]} has a trained bias, but the model has no bias there")
        whole = cut.get("weight")
        if "base" in cut and not self._is_own(target, cut["base"]):
            whole = merged(cut, module.scale, lookup=target.lookup)
        if whole is not None:
            return {"up": transposed(whole) if target.lookup else whole, "shift": vectors.get("bias", base)}
        gain = self._gain(name, target, module, vectors["magnitude"]) if "magnitude" in vectors else None
        shift = vectors.get("bias", base)
        if shift is not None:
            assert base is not None
            shift = shift - (base if gain is None else gain * base)
        if "up_bias" in vectors:
            shift = (0 if shift is None else shift) + np.float32(module.scale) * vectors["up_bias"]
        scale = None if module.down is None else np.full(module.rank, module.scale, np.float32)
        changed = shift is not None and bool(shift.any())
        return {
            "down": cut.get("down"),
            "up": cut.get("up"),
            "scale": scale,
            "gain": gain,
            "shift": shift if changed else None,
        }

    def _is_own(self, target: _Target, view: TensorView) -> bool:
        """Whether the base that an adapter was saved with is the model's own weight."""
        import numpy as np

        tensor, given = self._checkpoint.tensor(target.weight, target.shape), view.numpy()
        count = target.shape[0]
        spans = [(first, min(first + NORM_ROWS, count)) for first in range(0, count, NORM_ROWS)]
        return all(np.array_equal(tensor.rows(first, end).numpy(), given[first:end]) for first, end in spans)

    def _base_bias(self, target: _Target) -> np.ndarray | None:
        import numpy as np

        name = target.weight.replace(f".weight{TRANSPOSED}", ".weight").replace(".weight", ".bias")
        if name not in self._weights or target.lookup:
            return None
        return self._checkpoint.tensor(name, (target.table.rows,)).numpy().astype(np.float32).reshape(-1)

    def _gain(self, name: str, target: _Target, module: AdaptedModule, magnitude: np.ndarray) -> np.ndarray:
        """DoRA: the magnitude of each row over the norm of the base's row with the adapter's added."""
        import numpy as np

        table = target.table
        tensor = self._checkpoint.tensor(target.weight, target.shape)
        assert module.up is not None and module.down is not None
        up, down = (view.numpy().astype(np.float32) for view in (target.cut(module.up), module.down))
        norms = np.empty(table.rows, np.float32)
        for first in range(0, table.rows, NORM_ROWS):
            end = min(first + NORM_ROWS, table.rows)
            base = tensor.rows(first, end).numpy().astype(np.float32)
            norms[first:end] = np.linalg.norm(base + np.float32(module.scale) * (up[first:end] @ down), axis=1)
        if not (norms > 0).all():
            raise WeightError("adapter", f"{name[:120]}: a row is all zeros and has no direction (use_dora)")
        return magnitude / norms


def _blended(sources: list[tuple[Adapter, float]], backend: Backend) -> tuple[Mapping[str, AdapterWeights], int]:
    """The parts of the weighted sum: rows of down and columns of up side by side, shifts added."""
    import numpy as np

    from weft.weights.files import TensorView

    packer, most = backend.adapter_packer(), 0
    for table in sorted({table for source, _ in sources for table in source.parts}):
        found = [(s.name, s.parts[table], weight) for s, weight in sources if table in s.parts]
        for name, part, _ in found:
            if part.gain is not None or (part.up is not None and part.down is None):
                kind = "is DoRA" if part.gain is not None else "replaces a weight (modules_to_save)"
                raise UnsupportedError("adapter", f"{name} {kind} at {table.partition('/')[2]} and cannot be blended")
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
        packer.add(table, values)
    return packer.finish(), most
