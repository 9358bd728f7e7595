"""Adapters on disk: PEFT folders and MLX folders, read without a model; weft/runtime checks that they fit one.

Both store two small matrices per module: their A is `down` here [rank, in], their B is `up` [out, rank]. Every setting
that changes results is supported or refused by name, and every tensor is used or refused by name.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from weft.errors import FormatError, NotFoundError, UnsupportedError, WeightError
from weft.frozen import frozen
from weft.weights import strict_json
from weft.weights.files import MappedFile, TensorView
from weft.weights.safetensors import open_safetensors

CONFIG = "adapter_config.json"
MAX_CONFIG = 1 << 20
MAX_RANK = 256
MAX_NAME = 512
STORED = ("f32", "f16", "bf16")
JSON_NAMES = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}

# Settings of PEFT that have no effect once an adapter is trained: its origin, how it was trained, which modules were
# chosen (the file's tensors show that), and defaults of options that are off.
PEFT_NEUTRAL = {
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "exclude_modules", "layers_pattern", "megatron_core", "qalora_group_size", "runtime_config"),
    *("loftq_config", "eva_config"),
}
PEFT_READ = {
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "bias", "lora_bias"),
    *("target_modules", "target_parameters", "modules_to_save", "layers_to_transform", "init_lora_weights"),
}
# How the matrices were initialised. The other ways (pissa, olora, loftq, corda, lora_ga) change the base model.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")

# Settings of mlx_lm.lora, which writes all of them to the config of the adapter.
MLX_NEUTRAL = {
    *("adapter_path", "batch_size", "config", "data", "grad_accumulation_steps", "grad_checkpoint", "iters"),
    *("learning_rate", "lr_schedule", "mask_prompt", "max_seq_length", "model", "optimizer", "optimizer_config"),
    *("project_name", "report_to", "resume_adapter_file", "save_every", "seed", "steps_per_eval", "steps_per_report"),
    *("test", "test_batches", "train", "val_batches", "wandb", "hf_dataset", "prompt_feature", "completion_feature"),
}
MLX_READ = {"fine_tune_type", "lora_parameters", "num_layers", "lora_layers"}

PEFT_PREFIX = "base_model.model."
# What a tensor is, by the end of its name, longest first.
PEFT_ENDS = {
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector": "magnitude",
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_embedding_A": "down",
    ".lora_embedding_B": "up",
    ".lora_B.bias": "up_bias",
    ".base_layer.bias": "bias",
    ".base_layer.weight": "base",
    ".bias": "bias",
    ".weight": "weight",
}
# The parameters of a module of experts that may be adapted, in the order in which transformers declares them. PEFT
# wraps the module once for each, the first one innermost; a tensor's name says only how far inside it is: "base_layer".
EXPERT_PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")
INSIDE = ".base_layer"
MLX_ENDS = {".lora_a": "down", ".lora_b": "up", ".m": "magnitude"}


@frozen
class AdaptedModule:
    """The tensors of an adapter for one module, rows in the model's order; those that are None change nothing.

    The module's product becomes x Wᵀ + scale * (x downᵀ) upᵀ. With a `magnitude` (DoRA) each row is then divided by the
    norm of that row of W + scale * up down, and multiplied by the magnitude. `up_bias` is added to the product with up.
    `bias` and `weight` replace the module's own; `base` replaces its weight too, and is then adapted.

    With `matrices`, the module is a stack of so many [out, in], each with a part of its own: `down` has the rows of the
    first, then those of the second; `up` has a column of each for the first rank, then for the second.

    For an embedding [count, dim], `in` is count and `out` is dim: W is the table transposed. Only `weight` and `base`
    have the table's own layout.
    """

    down: TensorView | None = None  # [rank, in]
    up: TensorView | None = None  # [out, rank]
    scale: float = 1.0
    magnitude: TensorView | None = None  # [out]
    up_bias: TensorView | None = None  # [out]
    bias: TensorView | None = None  # [out]
    weight: TensorView | None = None  # [out, in]
    base: TensorView | None = None  # [out, in]
    matrices: int = 1

    @property
    def rank(self) -> int:
        return 0 if self.down is None else self.down.shape[0] // self.matrices

    def each(self) -> Sequence[AdaptedModule]:
        """The part of each matrix of a stack."""
        if self.matrices == 1 or self.down is None or self.up is None:
            return [self]
        import numpy as np

        (outs, _), cols, rank = self.up.shape, self.down.shape[1], self.rank
        downs = self.down.elements().reshape(self.matrices, rank, cols)
        ups = np.ascontiguousarray(self.up.elements().reshape(outs, rank, self.matrices).transpose(2, 0, 1))
        return [
            AdaptedModule(
                TensorView(self.down.dtype, (rank, cols), down), TensorView(self.up.dtype, (outs, rank), up), self.scale
            )
            for down, up in zip(downs, ups)
        ]

    def tensors(self) -> Iterable[tuple[str, TensorView]]:
        """The tensors that are not None, with their names."""
        for name in ("down", "up", "magnitude", "up_bias", "bias", "weight", "base"):
            view = getattr(self, name)
            if view is not None:
                yield name, view


@frozen
class AdapterFile:
    """An adapter as its folder describes it, with the folder's names of modules."""

    format: str  # "peft" or "mlx"
    modules: Mapping[str, AdaptedModule]

    @property
    def rank(self) -> int:
        """The largest rank of any module."""
        return max((module.rank for module in self.modules.values()), default=0)

    def digest(self) -> bytes:
        """A hash of everything that decides what the adapter computes."""
        hashed = sha256()
        for name, module in sorted(self.modules.items()):
            stack = f" {module.matrices}" if module.matrices > 1 else ""
            hashed.update(f"{name} {module.scale!r}{stack}\n".encode())
            for what, view in module.tensors():
                hashed.update(f"{what} {view.dtype} {view.shape}\n".encode())
                hashed.update(view.bytes().data)
        return hashed.digest()


def open_adapter(folder: Path) -> AdapterFile:
    """The adapter in `folder`: its config, and adapter_model.safetensors (PEFT) or adapters.safetensors (MLX)."""
    if not folder.is_dir():
        raise NotFoundError("adapter", f"no such folder: {folder}", advice=f"name the folder that holds {CONFIG}")
    if not (folder / CONFIG).is_file():
        raise NotFoundError("adapter", f"{folder} has no {CONFIG}", advice="name the folder of an adapter")
    settings = _Settings(_read_config(folder / CONFIG))
    if "peft_type" in settings.values:
        return _read_peft(settings, _tensors(folder, "adapter_model.safetensors"))
    if "lora_parameters" in settings.values or "fine_tune_type" in settings.values:
        return _read_mlx(settings, _tensors(folder, "adapters.safetensors"))
    raise FormatError(CONFIG, "the config is neither PEFT's (no peft_type) nor MLX's (no lora_parameters)")


def _read_config(path: Path) -> dict[str, Any]:
    file = MappedFile(path)
    if file.size > MAX_CONFIG:
        raise FormatError(CONFIG, f"the file is too large: {file.size} bytes", advice=f"the limit is {MAX_CONFIG}")
    try:
        values = strict_json.parse(strict_json.text_of(file.slice().tobytes()))
    except strict_json.CrowdError as error:
        raise FormatError(CONFIG, str(error)) from None
    except strict_json.JsonError as error:
        raise FormatError(CONFIG, f"malformed JSON: {error}") from None
    if not isinstance(values, dict):
        raise FormatError(CONFIG, "the document is not an object")
    return values


def _tensors(folder: Path, name: str) -> Mapping[str, TensorView]:
    if not (folder / name).is_file():
        pickled = sorted(path.name for ending in ("bin", "pt", "npz") for path in folder.glob(f"adapter*.{ending}"))
        if pickled:
            raise UnsupportedError(
                "adapter", f"{pickled[0]} may hold pickled code, which weft does not run", advice=f"save it as {name}"
            )
        raise NotFoundError("adapter", f"{folder.name} has no {name}")
    found = open_safetensors(folder / name).tensors
    if not found:
        raise WeightError(name, "the file has no tensors")
    for key, view in found.items():
        if view.dtype.name not in STORED:
            advice = "convert it to f32, f16 or bf16"
            raise UnsupportedError(name, f"{key[:120]} is stored as {view.dtype}", advice=advice)
    return found


class _Settings:
    """The fields of adapter_config.json, checked as they are read; `prefix` is the path of an inner object."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix

    def fail(self, name: str, what: str) -> NoReturn:
        raise FormatError(CONFIG, what, field=f"{self.prefix}{name}", given=self.values.get(name))

    def unsupported(self, name: str, what: str, *, advice: str | None = None) -> NoReturn:
        field, given = f"{self.prefix}{name[:80]}", self.values.get(name)
        raise UnsupportedError(CONFIG, what, field=field, given=given, advice=advice)

    def get(self, name: str, kinds: type | tuple[type, ...], otherwise: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            return otherwise
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            self.fail(name, f"must be {' or '.join(JSON_NAMES[kind] for kind in allowed)}")
        return value

    def integer(self, name: str, otherwise: int | None, limit: int) -> int:
        value = self.get(name, int, otherwise)
        if value is None or not 1 <= value <= limit:
            self.fail(name, f"must be 1 to {limit}")
        return int(value)

    def number(self, name: str, otherwise: float | None) -> float:
        value = self.get(name, (int, float), otherwise)
        if value is None or not math.isfinite(value) or abs(value) > 1e9:
            self.fail(name, "must be a number, at most 1e9")
        return float(value)

    def texts(self, name: str) -> list[str]:
        """A list of texts; a single text becomes a list of one, and no value an empty one."""
        value = self.get(name, (list, str), [])
        listed = [value] if isinstance(value, str) else value
        if not all(isinstance(entry, str) for entry in listed):
            self.fail(name, "must be a list of texts")
        return listed

    def refuse_others(self, known: set[str]) -> None:
        """Raise UnsupportedError for an unknown field that is not off."""
        for name, value in self.values.items():
            if name not in known and value not in (None, False, "", [], {}):
                self.unsupported(name, "is unknown to weft and may change results")


# PEFT.


def _read_peft(settings: _Settings, tensors: Mapping[str, TensorView]) -> AdapterFile:
    if settings.values["peft_type"] != "LORA":
        settings.unsupported("peft_type", "must be LORA")
    if settings.get("fan_in_fan_out", bool, False):
        settings.unsupported("fan_in_fan_out", "must be false", advice="no model of weft stores its weights transposed")
    start = settings.values.get("init_lora_weights")
    if not any(start is plain or (isinstance(plain, str) and start == plain) for plain in PLAIN_STARTS):
        what = "must not be a method that changes the base model"
        settings.unsupported("init_lora_weights", what, advice="convert the adapter to plain LoRA")
    settings.refuse_others(PEFT_READ | PEFT_NEUTRAL | {"fan_in_fan_out"})
    rules = _PeftRules.read(settings)
    found: dict[str, dict[str, TensorView]] = {}
    for name, view in tensors.items():
        _keep(found, *_split(name, PEFT_PREFIX, PEFT_ENDS), view, name)
    modules = {module: rules.module(module, parts) for module, parts in rules.with_parameters(found).items()}
    rules.check_all(modules)
    return AdapterFile("peft", modules)


def _split(name: str, prefix: str, ends: Mapping[str, str]) -> tuple[str, str]:
    """The module that a tensor belongs to, and what it is there: "down", "up" …"""
    for end, what in ends.items() if len(name) <= MAX_NAME else ():
        if name.startswith(prefix) and name.endswith(end) and len(name) > len(prefix) + len(end):
            return name[len(prefix) : -len(end)], what
    raise WeightError("adapter", f"the tensor {name[:120]!r} is not part of an adapter, and weft ignores none")


def _keep(found: dict[str, dict[str, TensorView]], module: str, what: str, view: TensorView, name: str) -> None:
    parts = found.setdefault(module, {})
    if what in parts:
        raise WeightError("adapter", f"{name[:120]} occurs twice, under two names")
    wanted = 2 if what in ("down", "up", "weight", "base") else 1
    if len(view.shape) != wanted or 0 in view.shape:
        raise WeightError("adapter", f"{name[:120]} has shape {view.shape}, expected {wanted} dimensions, none empty")
    parts[what] = view


@frozen
class _PeftRules:
    """PEFT's settings, as they apply to modules."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, tuple[int, int]]
    alpha_pattern: Mapping[str, tuple[int, float]]
    rooted: bool  # rsLoRA: alpha over the root of the rank
    dora: bool
    bias: str
    up_bias: bool
    targets: frozenset[str] | None  # None: a regular expression or all-linear, so the file's tensors decide
    parameters: frozenset[str]  # target_parameters
    whole: frozenset[str]  # modules_to_save
    layers: frozenset[int] | None

    @classmethod
    def read(cls, settings: _Settings) -> _PeftRules:
        targets = settings.texts("target_modules")
        rules = cls(
            rank=settings.integer("r", 8, MAX_RANK),
            alpha=settings.number("lora_alpha", 8),
            rank_pattern=_patterns(settings, "rank_pattern", lambda table, key: table.integer(key, None, MAX_RANK)),
            alpha_pattern=_patterns(settings, "alpha_pattern", lambda table, key: table.number(key, None)),
            rooted=settings.get("use_rslora", bool, False),
            dora=settings.get("use_dora", bool, False),
            bias=settings.get("bias", str, "none"),
            up_bias=settings.get("lora_bias", bool, False),
            targets=frozenset(targets) if isinstance(settings.values.get("target_modules"), list) else None,
            parameters=frozenset(settings.texts("target_parameters")),
            whole=frozenset(settings.texts("modules_to_save")),
            layers=_layers(settings),
        )
        if rules.bias not in ("none", "all", "lora_only"):
            settings.fail("bias", "must be none, all or lora_only")
        if rules.dora and rules.up_bias:
            settings.unsupported("lora_bias", "must be false if use_dora is true")
        return rules

    def with_parameters(self, found: Mapping[str, dict[str, TensorView]]) -> Mapping[str, dict[str, TensorView]]:
        """The tensors by module, those of experts by the parameter that they are for."""
        outer = {module: module.replace(INSIDE, "") for module in found}
        wrapped = Counter(name for name in outer.values() if name.endswith(".experts"))
        named = {}
        for module, parts in found.items():
            name = outer[module]
            if name not in wrapped:
                named[module] = parts
                continue
            targeted = [one for one in EXPERT_PARAMETERS if _named(f"{name}.{one}", self.parameters)]
            inside = module.count(INSIDE)
            if len(targeted) != wrapped[name] or inside >= wrapped[name]:
                what = f"{name[:120]} has tensors for {wrapped[name]} parameters, but {len(targeted)} of them are named"
                raise WeightError("adapter", what, field="target_parameters")
            named[f"{name}.{targeted[-1 - inside]}"] = parts
        return named

    def _key(self, name: str) -> str:
        """The name that settings may name a module by: of a parameter that is all of it, the parameter's."""
        return f"{name}.weight" if _named(f"{name}.weight", self.parameters) else name

    def module(self, name: str, parts: Mapping[str, TensorView]) -> AdaptedModule:
        allowed = {"down", "up", "base"}
        allowed |= {"magnitude"} if self.dora else set()
        allowed |= {"up_bias"} if self.up_bias else set()
        allowed |= {"bias"} if self.bias != "none" or _named(name, self.whole) else set()
        allowed |= {"weight"} if _named(name, self.whole) else set()
        _check_parts(name, parts, allowed, needed={"down", "up", *(["magnitude"] if self.dora else [])})
        made = AdaptedModule(**parts)  # type: ignore[arg-type]
        if made.down is None:
            return made
        key = self._key(name)
        if self.targets is not None and not _named(name, self.targets) and not _named(key, self.parameters):
            raise WeightError("adapter", f"{name[:120]} is adapted, but not one of target_modules")
        self._check_layer(name)
        rank = _matched(key, self.rank_pattern, self.rank)
        if name.endswith(tuple(f".experts.{one}" for one in EXPERT_PARAMETERS)) and made.rank % rank == 0:
            made = replace(made, matrices=made.rank // rank)
        if made.rank != rank:
            raise WeightError("adapter", f"{name[:120]} has rank {made.rank}, {CONFIG} says {rank}")
        alpha = _matched(key, self.alpha_pattern, self.alpha)
        return replace(made, scale=alpha / (math.sqrt(rank) if self.rooted else rank))

    def _check_layer(self, name: str) -> None:
        number = re.search(r"\.(\d{1,6})\.", name)
        if self.layers is not None and number is not None and int(number[1]) not in self.layers:
            raise WeightError("adapter", f"{name[:120]} is adapted, but not one of layers_to_transform")

    def check_all(self, modules: Mapping[str, AdaptedModule]) -> None:
        """Raise WeightError if the settings name a module for which the file has no tensor."""
        for setting, wanted, what in (
            ("target_modules", self.targets, "down"),
            ("target_parameters", self.parameters, "down"),
            ("modules_to_save", self.whole, "weight"),
        ):
            known = [self._key(name) if setting == "target_parameters" else name for name in modules]
            there = {
                end for name, m in zip(known, modules.values()) if getattr(m, what) is not None for end in _ends(name)
            }
            for target in sorted((wanted or frozenset()) - there):
                what = f"names {target[:80]!r}, for which the file has no tensor"
                raise WeightError("adapter", what, field=setting)


def _patterns(settings: _Settings, name: str, read: Any) -> dict[str, tuple[int, Any]]:
    """Position in the table and value, by module name. PEFT takes regular expressions too, of which weft takes those
    that it writes for experts: any start, then a name."""
    table = settings.get(name, dict, {})
    table = {key.removeprefix(r".*\.").replace(r"\.", "."): value for key, value in table.items()}
    for pattern in table:
        if not re.fullmatch(r"\^?[\w.-]+", pattern):
            what = "must have names of modules as keys, not patterns"
            raise UnsupportedError(CONFIG, what, field=name, given=pattern)
    entries = _Settings(table, f"{name}.")
    return {key: (place, read(entries, key)) for place, key in enumerate(table)}


def _layers(settings: _Settings) -> frozenset[int] | None:
    value = settings.get("layers_to_transform", (int, list), None)
    listed = [value] if isinstance(value, int) else value
    if listed is not None and not all(type(entry) is int for entry in listed):
        settings.fail("layers_to_transform", "must be a list of integers")
    return frozenset(listed) if listed else None


def _ends(module: str) -> list[str]:
    """The module's name and every end of it after a dot: the names that match it in lists."""
    words = module.split(".")
    return [".".join(words[i:]) for i in range(len(words))]


def _named(module: str, names: Collection[str]) -> bool:
    return any(end in names for end in _ends(module))


def _matched(module: str, table: Mapping[str, tuple[int, Any]], otherwise: Any) -> Any:
    """The value of the first name in the table that matches the module; after ^ the whole name must match."""
    found = [table[end] for end in (*_ends(module), f"^{module}") if end in table]
    return min(found)[1] if found else otherwise


def _check_parts(name: str, parts: Mapping[str, TensorView], allowed: set[str], needed: set[str]) -> None:
    for what in parts:
        if what not in allowed:
            raise WeightError("adapter", f"{name[:120]} has a tensor {what!r}, which {CONFIG} does not allow")
    adapted = [what for what in parts if what in ("down", "up", "magnitude", "up_bias", "base")]
    if adapted and not needed <= parts.keys():
        missing = ", ".join(sorted(needed - parts.keys()))
        raise WeightError("adapter", f"{name[:120]} has no {missing}")
    if adapted and "weight" in parts:
        raise WeightError("adapter", f"{name[:120]} is both adapted and replaced (modules_to_save)")
    if adapted and parts["down"].shape[0] != parts["up"].shape[1]:
        shapes = f"down {parts['down'].shape}, up {parts['up'].shape}"
        raise WeightError("adapter", f"{name[:120]} has tensors of different ranks: {shapes}")


# MLX.


def _read_mlx(settings: _Settings, tensors: Mapping[str, TensorView]) -> AdapterFile:
    kind = settings.get("fine_tune_type", str, "lora")
    if kind not in ("lora", "dora"):
        settings.unsupported("fine_tune_type", "must be lora or dora")
    settings.refuse_others(MLX_READ | MLX_NEUTRAL)
    parameters = _Settings(settings.get("lora_parameters", dict, {}), "lora_parameters.")
    parameters.refuse_others({"rank", "scale", "dropout", "keys"})
    rank, scale = parameters.integer("rank", None, MAX_RANK), parameters.number("scale", None)
    keys = frozenset(parameters.texts("keys"))
    found: dict[str, dict[str, TensorView]] = {}
    for name, view in tensors.items():
        module, what = _split(name, "", MLX_ENDS)
        _keep(found, module, what, view if what == "magnitude" or len(view.shape) != 2 else view.transposed(), name)
    needed = {"down", "up", *(["magnitude"] if kind == "dora" else [])}
    modules = {}
    for module, parts in found.items():
        _check_parts(module, parts, needed, needed)
        made = replace(AdaptedModule(**parts), scale=scale)  # type: ignore[arg-type]
        if made.rank != rank:
            raise WeightError("adapter", f"{module[:120]} has rank {made.rank}, {CONFIG} says {rank}")
        if keys and not _named(module, keys):
            raise WeightError("adapter", f"{module[:120]} is adapted, but not one of lora_parameters.keys")
        modules[module] = made
    return AdapterFile("mlx", modules)


def merged(parts: Mapping[str, TensorView], scale: float, *, lookup: bool) -> TensorView:
    """The base weight that an adapter was saved with, with its change added; `lookup` if it is an embedding's."""
    import numpy as np

    wide = {what: view.numpy().astype(np.float32) for what, view in parts.items()}
    change = np.float32(scale) * (wide["up"] @ wide["down"])
    result = wide["base"] + (change.T if lookup else change)
    if "magnitude" in wide:
        result *= (wide["magnitude"] / np.linalg.norm(result, axis=1))[:, None]
    return TensorView.of(result)
