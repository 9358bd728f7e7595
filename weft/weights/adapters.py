"""Adapters on disk: PEFT folders and MLX folders, read without a model. Whether they fit one, weft/runtime says.

Both keep for a module two small matrices: what they call A is `down` here [rank, in], B is `up` [out, rank]. A setting
that changes numbers is understood or refused by its name; a tensor is used or refused by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
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

# Settings of PEFT that change nothing once an adapter is trained: where it comes from, how it was trained, which
# modules were chosen (the file's tensors say that too), and defaults of what is off.
PEFT_NEUTRAL = {
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "exclude_modules", "layers_pattern", "megatron_core", "qalora_group_size", "runtime_config"),
    *("loftq_config", "eva_config"),
}
PEFT_READ = {
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "bias", "lora_bias"),
    *("target_modules", "modules_to_save", "layers_to_transform", "init_lora_weights"),
}
# How the matrices were filled before training. Other ways (pissa, olora, loftq, corda, lora_ga) change the base model.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")

# Settings of mlx_lm.lora, which writes all of them beside the adapter.
MLX_NEUTRAL = {
    *("adapter_path", "batch_size", "config", "data", "grad_accumulation_steps", "grad_checkpoint", "iters"),
    *("learning_rate", "lr_schedule", "mask_prompt", "max_seq_length", "model", "optimizer", "optimizer_config"),
    *("project_name", "report_to", "resume_adapter_file", "save_every", "seed", "steps_per_eval", "steps_per_report"),
    *("test", "test_batches", "train", "val_batches", "wandb", "hf_dataset", "prompt_feature", "completion_feature"),
}
MLX_READ = {"fine_tune_type", "lora_parameters", "num_layers", "lora_layers"}

PEFT_PREFIX = "base_model.model."
# What the end of a tensor's name says, longest first.
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
MLX_ENDS = {".lora_a": "down", ".lora_b": "up", ".m": "magnitude"}


@frozen
class AdaptedModule:
    """What an adapter has for one module, in the model's order of rows; what is None it leaves as it is.

    The module's product becomes x Wᵀ + scale * (x downᵀ) upᵀ; with a `magnitude` (DoRA) that is divided, row by row, by
    the norm of W + scale * up down and multiplied with it. `up_bias` is added to the product with up, `bias` and
    `weight` stand in place of the module's own; `base` does too, and is changed then.

    Of an embedding [count, dim], `in` is count and `out` is dim: W is the table transposed. Only `weight` and `base`
    are as the table is.
    """

    down: TensorView | None = None  # [rank, in]
    up: TensorView | None = None  # [out, rank]
    scale: float = 1.0
    magnitude: TensorView | None = None  # [out]
    up_bias: TensorView | None = None  # [out]
    bias: TensorView | None = None  # [out]
    weight: TensorView | None = None  # [out, in]
    base: TensorView | None = None  # [out, in]

    @property
    def rank(self) -> int:
        return 0 if self.down is None else self.down.shape[0]

    def tensors(self) -> Iterable[tuple[str, TensorView]]:
        """The tensors that are there, by what they are."""
        for name in ("down", "up", "magnitude", "up_bias", "bias", "weight", "base"):
            view = getattr(self, name)
            if view is not None:
                yield name, view


@frozen
class AdapterFile:
    """An adapter as its folder describes it; modules have the names that the folder gives them."""

    format: str  # "peft" or "mlx"
    modules: Mapping[str, AdaptedModule]

    @property
    def rank(self) -> int:
        """The largest."""
        return max((module.rank for module in self.modules.values()), default=0)

    def digest(self) -> bytes:
        """A hash of everything that decides what the adapter computes."""
        hashed = sha256()
        for name, module in sorted(self.modules.items()):
            hashed.update(f"{name} {module.scale!r}\n".encode())
            for what, view in module.tensors():
                hashed.update(f"{what} {view.dtype} {view.shape}\n".encode())
                hashed.update(view.bytes().data)
        return hashed.digest()


def open_adapter(folder: Path) -> AdapterFile:
    """The adapter in `folder`: its config, and adapter_model.safetensors (PEFT) or adapters.safetensors (MLX)."""
    if not folder.is_dir():
        raise NotFoundError(f"[adapter] no such folder: {folder}; give the one that holds {CONFIG}")
    settings = _Settings(_read_config(folder / CONFIG))
    if "peft_type" in settings.values:
        return _read_peft(settings, _tensors(folder, "adapter_model.safetensors"))
    if "lora_parameters" in settings.values or "fine_tune_type" in settings.values:
        return _read_mlx(settings, _tensors(folder, "adapters.safetensors"))
    settings.fail("is neither PEFT's (it has no peft_type) nor MLX's (it has no lora_parameters)")


def _read_config(path: Path) -> dict[str, Any]:
    file = MappedFile(path)
    if file.size > MAX_CONFIG:
        raise FormatError(f"[{CONFIG}] the file is too large: {file.size} bytes; the limit is {MAX_CONFIG}")
    try:
        values = strict_json.parse(strict_json.text_of(file.slice().tobytes()))
    except strict_json.CrowdError as error:
        raise FormatError(f"[{CONFIG}] {error}") from None
    except strict_json.JsonError as error:
        raise FormatError(f"[{CONFIG}] malformed JSON: {error}") from None
    if not isinstance(values, dict):
        raise FormatError(f"[{CONFIG}] the document is not an object")
    return values


def _tensors(folder: Path, name: str) -> Mapping[str, TensorView]:
    if not (folder / name).is_file():
        pickled = sorted(path.name for ending in ("bin", "pt", "npz") for path in folder.glob(f"adapter*.{ending}"))
        if pickled:
            raise UnsupportedError(
                f"[adapter] {pickled[0]} may hold pickled code, which weft does not run; save it as {name}"
            )
        raise NotFoundError(f"[adapter] {folder.name} has no {name}")
    found = open_safetensors(folder / name).tensors
    if not found:
        raise WeightError(f"[{name}] the file has no tensors")
    for key, view in found.items():
        if view.dtype.name not in STORED:
            raise UnsupportedError(f"[{name}] {key[:120]} is stored as {view.dtype}; adapters are f32, f16 or bf16")
    return found


class _Settings:
    """The fields of adapter_config.json, each asked for by its type."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self.where = where

    def fail(self, what: str) -> NoReturn:
        raise FormatError(f"[{CONFIG}] {what}")

    def get(self, name: str, kinds: type | tuple[type, ...], otherwise: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            return otherwise
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            self.fail(f"{self.where}{name} is {value!r:.80}, not of type {' or '.join(k.__name__ for k in allowed)}")
        return value

    def integer(self, name: str, otherwise: int | None, limit: int) -> int:
        value = self.get(name, int, otherwise)
        if value is None or not 1 <= value <= limit:
            self.fail(f"{self.where}{name} is {value!r:.80}; 1 to {limit} is allowed")
        return int(value)

    def number(self, name: str, otherwise: float | None) -> float:
        value = self.get(name, (int, float), otherwise)
        if value is None or not math.isfinite(value) or abs(value) > 1e9:
            self.fail(f"{self.where}{name} is {value!r:.80}; a number is wanted")
        return float(value)

    def texts(self, name: str) -> list[str]:
        """A list of texts, or a text alone; empty where there is none."""
        value = self.get(name, (list, str), [])
        listed = [value] if isinstance(value, str) else value
        if not all(isinstance(entry, str) for entry in listed):
            self.fail(f"{self.where}{name} holds something else than texts: {value!r:.80}")
        return listed

    def refuse_others(self, known: set[str]) -> None:
        """A field that is not known must be off."""
        for name, value in self.values.items():
            if name not in known and value not in (None, False, "", [], {}):
                raise UnsupportedError(
                    f"[{CONFIG}] {self.where}{name[:80]} is {value!r:.80}, which weft does not know; it may matter"
                )


# PEFT.


def _read_peft(settings: _Settings, tensors: Mapping[str, TensorView]) -> AdapterFile:
    if settings.values["peft_type"] != "LORA":
        raise UnsupportedError(f"[{CONFIG}] peft_type is {settings.values['peft_type']!r:.80}; weft runs LORA")
    if settings.get("fan_in_fan_out", bool, False):
        raise UnsupportedError(
            f"[{CONFIG}] fan_in_fan_out is true: the base keeps weights transposed, no model of weft does"
        )
    start = settings.values.get("init_lora_weights")
    if not any(start is plain or (isinstance(plain, str) and start == plain) for plain in PLAIN_STARTS):
        raise UnsupportedError(
            f"[{CONFIG}] init_lora_weights is {start!r:.80}, which changes the base; convert it to plain LoRA"
        )
    settings.refuse_others(PEFT_READ | PEFT_NEUTRAL | {"fan_in_fan_out"})
    rules = _PeftRules.read(settings)
    found: dict[str, dict[str, TensorView]] = {}
    for name, view in tensors.items():
        _keep(found, *_split(name, PEFT_PREFIX, PEFT_ENDS), view, name)
    modules = {module: rules.module(module, parts) for module, parts in found.items()}
    rules.check_all(modules)
    return AdapterFile("peft", modules)


def _split(name: str, prefix: str, ends: Mapping[str, str]) -> tuple[str, str]:
    """The module of a tensor, and what the tensor is for it."""
    for end, what in ends.items() if len(name) <= MAX_NAME else ():
        if name.startswith(prefix) and name.endswith(end) and len(name) > len(prefix) + len(end):
            return name[len(prefix) : -len(end)], what
    raise WeightError(f"[adapter] the tensor {name[:120]!r} is none of an adapter's; nothing is left out")


def _keep(found: dict[str, dict[str, TensorView]], module: str, what: str, view: TensorView, name: str) -> None:
    parts = found.setdefault(module, {})
    if what in parts:
        raise WeightError(f"[adapter] {name[:120]} is there twice, under two spellings")
    wanted = 2 if what in ("down", "up", "weight", "base") else 1
    if len(view.shape) != wanted or 0 in view.shape:
        raise WeightError(f"[adapter] {name[:120]} has shape {view.shape}; {wanted} dimensions are wanted")
    parts[what] = view


@frozen
class _PeftRules:
    """What PEFT's settings say about a module."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, tuple[int, int]]
    alpha_pattern: Mapping[str, tuple[int, float]]
    rooted: bool  # rsLoRA: alpha over the root of the rank
    dora: bool
    bias: str
    up_bias: bool
    targets: frozenset[str] | None  # None: a regular expression or all-linear, which the file's tensors answer
    whole: frozenset[str]  # modules_to_save
    layers: frozenset[int] | None

    @classmethod
    def read(cls, settings: _Settings) -> _PeftRules:
        targets = settings.texts("target_modules")
        rules = cls(
            rank=settings.integer("r", 8, MAX_RANK),
            alpha=settings.number("lora_alpha", 8),
            rank_pattern=_patterns(settings, "rank_pattern", lambda entry: entry.integer("value", None, MAX_RANK)),
            alpha_pattern=_patterns(settings, "alpha_pattern", lambda entry: entry.number("value", None)),
            rooted=settings.get("use_rslora", bool, False),
            dora=settings.get("use_dora", bool, False),
            bias=settings.get("bias", str, "none"),
            up_bias=settings.get("lora_bias", bool, False),
            targets=frozenset(targets) if isinstance(settings.values.get("target_modules"), list) else None,
            whole=frozenset(settings.texts("modules_to_save")),
            layers=_layers(settings),
        )
        if rules.bias not in ("none", "all", "lora_only"):
            settings.fail(f"bias is {rules.bias!r:.80}; none, all or lora_only")
        if rules.dora and rules.up_bias:
            raise UnsupportedError(f"[{CONFIG}] lora_bias together with use_dora")
        return rules

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
        if self.targets is not None and not _named(name, self.targets):
            raise WeightError(f"[adapter] {name[:120]} is adapted, but is none of target_modules")
        self._check_layer(name)
        rank = _matched(name, self.rank_pattern, self.rank)
        if made.rank != rank:
            raise WeightError(f"[adapter] {name[:120]} has rank {made.rank}, {CONFIG} says {rank}")
        alpha = _matched(name, self.alpha_pattern, self.alpha)
        return replace(made, scale=alpha / (math.sqrt(rank) if self.rooted else rank))

    def _check_layer(self, name: str) -> None:
        number = re.search(r"\.(\d{1,6})\.", name)
        if self.layers is not None and number is not None and int(number[1]) not in self.layers:
            raise WeightError(f"[adapter] {name[:120]} is adapted, but is none of layers_to_transform")

    def check_all(self, modules: Mapping[str, AdaptedModule]) -> None:
        """Everything that the settings name is in the file."""
        for setting, wanted, what in (
            ("target_modules", self.targets, "down"),
            ("modules_to_save", self.whole, "weight"),
        ):
            there = {end for name, m in modules.items() if getattr(m, what) is not None for end in _ends(name)}
            for target in sorted((wanted or frozenset()) - there):
                raise WeightError(f"[adapter] {setting} names {target[:80]!r}, of which the file has no tensor")


def _patterns(settings: _Settings, name: str, read: Any) -> dict[str, tuple[int, Any]]:
    """Places in the table and values, by name of module. PEFT takes regular expressions too, weft does not."""
    table = settings.get(name, dict, {})
    for pattern in table:
        if not re.fullmatch(r"\^?[\w.-]+", pattern):
            raise UnsupportedError(f"[{CONFIG}] {name} has the pattern {pattern!r:.80}; weft takes names of modules")
    return {
        key: (place, read(_Settings({"value": value}, f"{name}.{key[:80]}: ")))
        for place, (key, value) in enumerate(table.items())
    }


def _layers(settings: _Settings) -> frozenset[int] | None:
    value = settings.get("layers_to_transform", (int, list), None)
    listed = [value] if isinstance(value, int) else value
    if listed is not None and not all(type(entry) is int for entry in listed):
        settings.fail(f"layers_to_transform is {value!r:.80}; a list of integers is wanted")
    return frozenset(listed) if listed else None


def _ends(module: str) -> list[str]:
    """The module's name, and what is left of it after each dot: the names that stand for it in lists."""
    words = module.split(".")
    return [".".join(words[i:]) for i in range(len(words))]


def _named(module: str, names: Collection[str]) -> bool:
    return any(end in names for end in _ends(module))


def _matched(module: str, table: Mapping[str, tuple[int, Any]], otherwise: Any) -> Any:
    """The value of the first name in the table that stands for the module; one with ^ is the whole name."""
    found = [table[end] for end in (*_ends(module), f"^{module}") if end in table]
    return min(found)[1] if found else otherwise


def _check_parts(name: str, parts: Mapping[str, TensorView], allowed: set[str], needed: set[str]) -> None:
    for what in parts:
        if what not in allowed:
            raise WeightError(f"[adapter] {name[:120]}: {what} is there, but {CONFIG} does not speak of it")
    adapted = [what for what in parts if what in ("down", "up", "magnitude", "up_bias", "base")]
    if adapted and not needed <= parts.keys():
        missing = ", ".join(sorted(needed - parts.keys()))
        raise WeightError(f"[adapter] {name[:120]} has no {missing}")
    if adapted and "weight" in parts:
        raise WeightError(f"[adapter] {name[:120]} is both adapted and replaced (modules_to_save)")
    if adapted and parts["down"].shape[0] != parts["up"].shape[1]:
        raise WeightError(f"[adapter] {name[:120]}: ranks differ, {parts['down'].shape} and {parts['up'].shape}")


# MLX.


def _read_mlx(settings: _Settings, tensors: Mapping[str, TensorView]) -> AdapterFile:
    kind = settings.get("fine_tune_type", str, "lora")
    if kind not in ("lora", "dora"):
        raise UnsupportedError(f"[{CONFIG}] fine_tune_type is {kind!r:.80}; weft runs lora and dora")
    settings.refuse_others(MLX_READ | MLX_NEUTRAL)
    parameters = _Settings(settings.get("lora_parameters", dict, {}), "lora_parameters.")
    parameters.refuse_others({"rank", "scale", "dropout", "keys"})
    rank, scale = parameters.integer("rank", None, MAX_RANK), parameters.number("scale", None)
    keys = frozenset(parameters.texts("keys"))
    found: dict[str, dict[str, TensorView]] = {}
    for name, view in tensors.items():
        module, what = _split(name, "", MLX_ENDS)
        _keep(found, module, what, view if what == "magnitude" or len(view.shape) != 2 else transposed(view), name)
    needed = {"down", "up", *(["magnitude"] if kind == "dora" else [])}
    modules = {}
    for module, parts in found.items():
        _check_parts(module, parts, needed, needed)
        made = AdaptedModule(**parts, scale=scale)
        if made.rank != rank:
            raise WeightError(f"[adapter] {module[:120]} has rank {made.rank}, {CONFIG} says {rank}")
        if keys and not _named(module, keys):
            raise WeightError(f"[adapter] {module[:120]} is adapted, but is none of lora_parameters.keys")
        modules[module] = made
    return AdapterFile("mlx", modules)


def transposed(view: TensorView) -> TensorView:
    """A matrix with rows and columns exchanged."""
    import numpy as np

    stored = view.bytes().view(f"<u{view.dtype.size_bytes}").reshape(view.shape)
    return TensorView(view.dtype, view.shape[::-1], np.ascontiguousarray(stored.T))


def merged(parts: Mapping[str, TensorView], scale: float, *, lookup: bool) -> TensorView:
    """The base that an adapter was saved with, of an embedding where `lookup`, changed as its other tensors say."""
    import numpy as np

    wide = {what: view.numpy().astype(np.float32) for what, view in parts.items()}
    change = np.float32(scale) * (wide["up"] @ wide["down"])
    result = wide["base"] + (change.T if lookup else change)
    if "magnitude" in wide:
        result *= (wide["magnitude"] / np.linalg.norm(result, axis=1))[:, None]
    return TensorView.of(result)
