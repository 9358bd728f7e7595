"""What adapters may change of a model: the products of its modules, its embedding, and the matrices of its experts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.backends.base import AdapterWeights, Backend, PartPlace
from weft.errors import MemoryPlanError, UnsupportedError, WeightError
from weft.models import model_module
from weft.nn.scope import EACH, TRANSPOSED
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.memory import SHARE, free_memory
from weft.weights.rotation import GAIN, rotation_of

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import WantedTable
    from weft.runtime.checkpoint import Tensor
    from weft.runtime.prepared import Prepared
    from weft.weights.adapters import AdaptedModule, AdapterFile
    from weft.weights.files import TensorView

NORM_ROWS = 1024  # of a weight that are widened at a time

LOOKUP = "lora_embedding/"  # the name of an embedding's table begins so: weft/graph/passes/adapt.py
# The weight of a product, where it is an embedding too, is adapted as the head that it is.
TIED = {"model.embed_tokens": "lm_head"}

# What a matrix of an expert is, by its name; checkpoints and adapters may have either names.
ROLES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
# A matrix of one expert, or a parameter that holds one of all experts.
OF_EXPERTS = re.compile(
    r"(?P<base>.+\.experts)\.((?P<number>\d{1,5})\.(?P<name>\w+)|(?P<parameter>gate_up_proj|up_proj|down_proj))"
)
# The same part under the names that older and newer checkpoints have for it.
RENAMED = (".block_sparse_moe.", ".mlp.")


class Target(NamedTuple):
    """A table and the rows of its module's weight that it adapts, from `first` on; with a `period` in every so many
    rows. An embedding's table is for the transposed weight, that of a stack has a part for each matrix.
    """

    table: WantedTable
    first: int
    total: int
    period: int = 0
    matrix: int = 0  # of a stack

    @property
    def place(self) -> PartPlace:
        return PartPlace(self.table.name, self.matrix)

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


class Targets:
    """The weights of a model that adapters may change, by module."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, prepared: Prepared) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._weights = {wanted.name for wanted in prepared.weights}
        self.tables = {table.name: backend.adapter_table(table) for table in prepared.tables}
        self._modules: dict[str, list[Target]] = {}
        self._experts: dict[str, dict[str, WantedTable]] = {}  # by the name of all experts, then by role
        for table in prepared.tables:
            if table.matrices is not None:
                self._add_experts(table)
                continue
            stored, _, rows = table.name.partition("/")[2].partition(":")
            rows = f":{rows}".removeprefix(TRANSPOSED).removeprefix(":")
            if rows.startswith("in"):  # columns of a matrix, which no adapter changes
                continue
            first, _, *period, total = map(int, re.split("[-/]", rows)) if rows else (0, 0, table.rows)
            module, target = stored.removesuffix(".weight"), Target(table, first, total, *period)
            own = module if target.lookup else TIED.get(module, module)
            self._modules.setdefault(own, []).append(target)

    def _add_experts(self, table: WantedTable) -> None:
        stored, _, rows = table.name.partition("/")[2].partition(":")
        base, _, own = stored.removesuffix(".weight").replace(f".{EACH}.", ".").rpartition(".")
        role = ("gate" if rows.startswith("0-") else "up") if own == "gate_up_proj" else ROLES[own]
        self._experts.setdefault(base, {})[role] = table

    def parts(self, file: AdapterFile) -> Mapping[PartPlace, AdapterWeights]:
        """The parts of an adapter's modules by table, packed; WeightError for what does not fit the model."""
        found = self._found(file)
        size = sum(view.nbytes for module in file.modules.values() for _, view in module.tensors())
        if size > SHARE * free_memory().available_bytes:
            raise MemoryPlanError("adapter", f"{size / 1e9:.2f} GB do not fit into free memory", advice="unload others")
        packer = self._backend.adapter_packer()
        for place, values in self._valued(found):
            packer.add(place, values)
        return packer.finish()

    def values(self, file: AdapterFile) -> Iterator[tuple[PartPlace, Mapping[str, Any]]]:
        """What `parts` packs: the place of each part, and its values as AdapterPacker.add takes them."""
        return self._valued(self._found(file))

    def _found(self, file: AdapterFile) -> list[tuple[str, list[Target], AdaptedModule]]:
        """The modules of an adapter with what they change, checked."""
        found = [(name, self._find(name, module), module) for name, module in file.modules.items()]
        rotation = rotation_of(self._checkpoint.config)
        if rotation is not None:  # adapters are of the model as it was
            found = [
                (name, targets, rotation.adapted(targets[0].weight, module, self._gain_of_norm))
                for name, targets, module in found
            ]
        seen: dict[PartPlace, str] = {}
        for name, targets, module in found:
            others = {seen.setdefault(target.place, name) for target in targets} - {name}
            for other in others:
                raise WeightError("adapter", f"{name[:120]} and {other[:120]} are the same module of this model")
            if targets[0].lookup and (file.format == "mlx" or module.magnitude is not None):
                kind = "use_dora" if module.magnitude is not None else "MLX, where the head changes with it"
                raise UnsupportedError(
                    "adapter", f"{name[:120]} is an embedding, which cannot be adapted this way ({kind})"
                )
        return found

    def _valued(
        self, found: list[tuple[str, list[Target], AdaptedModule]]
    ) -> Iterator[tuple[PartPlace, Mapping[str, Any]]]:
        for name, targets, module in found:
            own = module.each()
            for target in targets:
                yield target.place, self._values(name, target, own[target.matrix if len(own) > 1 else 0])

    def _gain_of_norm(self, name: str) -> np.ndarray:
        """What a norm's weight was before the model was rotated."""
        import numpy as np

        if GAIN + name not in self._checkpoint.tensors:
            raise WeightError("adapter", f"{GAIN}{name} is missing, so no adapter can be rotated")
        return self._checkpoint.tensors[GAIN + name].numpy().astype(np.float64)

    def _find(self, name: str, module: AdaptedModule) -> list[Target]:
        targets = next((self._modules[own] for own in self._spellings(name) if own in self._modules), None)
        targets = self._find_experts(name) if targets is None else targets
        if targets is None:
            if any(self._checkpoint.stored(f"{own}.weight") is not None for own in self._spellings(name)):
                what = "modules_to_save" if module.weight is not None else "the adapter"
                raise UnsupportedError(
                    "adapter", f"{what} changes {name[:120]}; weft adapts products and embeddings of tokens"
                )
            raise WeightError("adapter", f"this model ({self._checkpoint.model_type}) has no module {name[:120]}")
        rows, cols = targets[0].total, targets[0].table.cols
        whole = targets[0].shape if targets[0].lookup else (rows, cols)
        matrices = targets[0].table.matrices if len(targets) > 1 and targets[0].table.matrices else 1
        if module.matrices != matrices:
            raise WeightError("adapter", f"{name[:120]} is of {module.matrices} matrices, the model's of {matrices}")
        ranks = module.rank * matrices
        wanted = {"down": (ranks, cols), "up": (rows, ranks), "weight": whole, "base": whole}
        for what, view in module.tensors():
            if view.shape != wanted.get(what, (rows,)):
                fits = wanted.get(what, (rows,))
                raise WeightError("adapter", f"{name[:120]}: {what} has shape {view.shape}, the model needs {fits}")
        return targets

    def _find_experts(self, name: str) -> list[Target] | None:
        """The matrix of one expert, or those of all experts that are in one parameter."""
        for own in self._spellings(name):
            found = OF_EXPERTS.fullmatch(own)
            tables = self._experts.get(found["base"]) if found else None
            if not found or not tables:
                continue
            if found["number"]:
                table, number = tables.get(ROLES.get(found["name"], "")), int(found["number"])
                fits = table is not None and table.matrices is not None and number < table.matrices
                return [Target(table, 0, table.rows, matrix=number)] if fits and table else None
            if found["parameter"] != "gate_up_proj":
                table = tables[ROLES[found["parameter"]]]
                return None if "gate" in tables and table is tables["up"] else _each(table, 0, table.rows)
            if "gate" not in tables:
                return None
            return self._gates_and_ups(tables["gate"], tables["up"])
        return None

    def _gates_and_ups(self, gate: WantedTable, up: WantedTable) -> list[Target]:
        """Of a parameter that holds both: all gates first, or in turns where the model's type says so."""
        total = gate.rows + up.rows
        if getattr(model_module(self._checkpoint.model_type), "GATES_IN_TURNS", False):
            return [*_each(gate, 0, total, 2), *_each(up, 1, total, 2)]
        return [*_each(gate, 0, total), *_each(up, gate.rows, total)]

    def _spellings(self, name: str) -> Iterator[str]:
        """The names that a module may have here: models are saved inside others, and parts were renamed."""
        names = model_module(self._checkpoint.model_type).NAMES
        prefixes = {**dict.fromkeys(names.prefixes, ""), **names.part}
        inner = [start + name.removeprefix(prefix) for prefix, start in prefixes.items() if name.startswith(prefix)]
        for own in (name, *inner):
            yield own
            yield from (own.replace(*way) for way in (RENAMED, RENAMED[::-1]) if way[0] in own)

    def _values(self, name: str, target: Target, module: AdaptedModule) -> Mapping[str, Any]:
        """The values of a part: views of matrices, arrays of the vectors."""
        import numpy as np

        from weft.weights.adapters import merged

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
            return {"up": whole.transposed() if target.lookup else whole, "shift": vectors.get("bias", base)}
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

    def _is_own(self, target: Target, view: TensorView) -> bool:
        """Whether the base that an adapter was saved with is the model's own weight."""
        import numpy as np

        tensor, given = self._stored(target), view.numpy()
        count = target.shape[0]
        spans = [(first, min(first + NORM_ROWS, count)) for first in range(0, count, NORM_ROWS)]
        return all(np.array_equal(tensor.rows(first, end).numpy(), given[first:end]) for first, end in spans)

    def _stored(self, target: Target) -> Tensor:
        """The weight that a target changes."""
        if target.table.matrices is None:
            return self._checkpoint.tensor(target.weight, target.shape)
        return self._checkpoint.matrices(target.weight, (target.table.matrices, *target.shape))[target.matrix]

    def _base_bias(self, target: Target) -> np.ndarray | None:
        import numpy as np

        name = target.weight.replace(f".weight{TRANSPOSED}", ".weight").replace(".weight", ".bias")
        if name == target.weight or name not in self._weights or target.lookup:
            return None
        size = target.table.rows * (target.table.matrices or 1)
        bias = self._checkpoint.tensor(name, (size,)).numpy().astype(np.float32).reshape(-1, target.table.rows)
        return bias[target.matrix]

    def _gain(self, name: str, target: Target, module: AdaptedModule, magnitude: np.ndarray) -> np.ndarray:
        """DoRA: the magnitude of each row over the norm of the base's row with the adapter's added."""
        import numpy as np

        table = target.table
        tensor = self._stored(target)
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


def _each(table: WantedTable, first: int, total: int, period: int = 0) -> list[Target]:
    """A target for each matrix of a stack."""
    return [Target(table, first, total, period, matrix) for matrix in range(table.matrices or 0)]
