"""A Hugging Face model as GGUF: its config as metadata, and its tensors with the names and the form such files have.

What GGUF has no words for is refused: a file that other readers would run as another model is worse than none. Files
are of version 3, little-endian, with metadata of every type and tensors of every type the format has.
"""

import math
import os
import re
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from weft.errors import InputError, WeightError
from weft.weights import gguf_meta as meta
from weft.weights.experts import expert_stacks
from weft.weights.files import MadeView, TensorView, replacing
from weft.weights.gguf import ALIGNMENT_RULE, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_KEY, MAX_NAME, is_alignment
from weft.weights.gguf_config import POOLING, TOKENS, YARN, yarn_magnitude
from weft.weights.names import Gguf

_BY_NUMPY = {np.dtype(name).str: kind for kind, name in meta.NUMPY.items()}
_COUNTS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
_REALS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
}
_EXPERT = re.compile(r"(.+\.experts)\.[0-9]+\.(.+)")
_FUSED = re.compile(r"(.+\.experts)\.(gate_up_proj|up_proj|down_proj)")
_HEAD_WIDTHS = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def gguf_tensors(config: Mapping[str, Any], tensors: Mapping[str, TensorView], gguf: Gguf) -> dict[str, TensorView]:
    """The tensors of a Hugging Face model as a GGUF file of it holds them, rope factors among them."""
    gguf = gguf.of(config)
    full = _with_head_dim(_flat_rope(config), gguf)
    stored: dict[str, TensorView] = {}
    for name, view in _with_stacks(expert_stacks(tensors) if gguf.stacks else tensors).items():
        name = gguf.layer_name(name, full["num_hidden_layers"]) if gguf.draft else name
        if parts := gguf.parts(name):
            stored.update(zip(parts, _row_parts(view, len(parts))))
            continue
        known = gguf.gguf_name(name)
        if known is None:
            continue
        order: Any = gguf.stored_order(name, full)
        if known == "position_embd.weight" and _first_row(config, gguf):
            order = np.arange(_first_row(config, gguf), view.shape[0])
        if gguf.holds_plus_one(name):
            view = TensorView.of(view.numpy().astype(np.float32) + np.float32(1))
        if gguf.holds_minus_exp(name):
            view = TensorView.of(-np.exp(view.numpy().astype(np.float64)).astype(np.float32))
        if len(view.shape) == 3 and view.shape[1] == 1:  # the taps of a convolution
            view = TensorView(view.dtype, (view.shape[0], view.shape[2]), view.bytes())
        if known.endswith("ffn_gate_inp_shexp.weight"):  # one row, which readers want as a vector
            view = TensorView(view.dtype, view.shape[1:], view.bytes())
        for ending, count in gguf.folded.items():
            if name.endswith(ending):
                rows = full.get(count, 1)
                view = TensorView(view.dtype, (rows, view.shape[0] // rows), view.bytes())
        stored[known] = view if order is None else _ordered(view, order)
    factors = {name: TensorView.of(np.float32(values)) for name, values in _factor_tensors(full, gguf).items()}
    return {**stored, **factors}


def _ordered(view: TensorView, order: Any) -> TensorView:
    """The rows `order`, made when they are read: those of all layers together take much memory."""
    return MadeView(view.dtype, (len(order), *view.shape[1:]), lambda: view.take(order).bytes())


def _with_stacks(tensors: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """The tensors with those of all experts as one: experts.3.up_proj.weight is a part of experts.each.up_proj.weight,
    and so is experts.gate_up_proj."""
    found: dict[str, TensorView] = {}
    parts: dict[str, list[TensorView]] = {}
    for name, view in sorted(tensors.items(), key=lambda item: _numbers(item[0])):
        one, fused = _EXPERT.fullmatch(name), _FUSED.fullmatch(name)
        if one is not None:
            parts.setdefault(f"{one[1]}.each.{one[2]}", []).append(view)
        elif fused is not None:
            names = ("gate_proj", "up_proj") if fused[2] == "gate_up_proj" else (fused[2],)
            shape = (view.shape[0], view.shape[1] // len(names), view.shape[2])
            for index, own in enumerate(names):
                make = partial(_part_of_each, view, len(names), index)
                found[f"{fused[1]}.each.{own}.weight"] = MadeView(view.dtype, shape, make)
        else:
            found[name] = view
    for name, views in parts.items():
        if any((view.dtype, view.shape) != (views[0].dtype, views[0].shape) for view in views):
            raise WeightError("gguf", f"{name}: the matrices of all experts must have one type and shape")
        found[name] = MadeView(views[0].dtype, (len(views), *views[0].shape), partial(_joined, views))
    return found


def _part_of_each(view: TensorView, parts: int, index: int) -> np.ndarray:
    """One of the equal parts of the rows of every matrix of a stack."""
    return np.ascontiguousarray(view.bytes().reshape(view.shape[0], parts, -1)[:, index]).reshape(-1)


def _joined(views: list[TensorView]) -> np.ndarray:
    return np.concatenate([view.bytes() for view in views])


def _numbers(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _row_parts(view: TensorView, count: int) -> list[TensorView]:
    """Equal parts of the rows."""
    rows, size = view.shape[0] // count, view.nbytes // count
    shape = (rows, *view.shape[1:])
    return [
        MadeView(view.dtype, shape, lambda first=i * size: view.bytes()[first : first + size])  # type: ignore[misc]
        for i in range(count)
    ]


def gguf_from_config(config: Mapping[str, Any], gguf: Gguf) -> dict[str, Any]:
    """GGUF metadata of a model with this config.json; gguf_tensors has what goes beside it."""
    config, gguf = _flat_rope(config), gguf.of(config)
    if gguf.head_dim:
        config = _with_head_dim(config, gguf)
    activation = config.get("hidden_activation") or config.get("hidden_act")
    if activation is not None and activation != gguf.activation:
        raise gguf.unwritable(f"the activation {activation}")
    keys: dict[str, Any] = {key: int(config[hf]) for hf, key in _COUNTS.items() if config.get(hf) is not None}
    keys.update({key: float(config[hf]) for hf, key in _REALS.items() if config.get(hf) is not None})
    if "pooling_type" in config or gguf.encoder:
        keys["pooling_type"] = POOLING.index(config.get("pooling_type", "none"))
    if gguf.encoder:
        keys["context_length"] = int(config["max_position_embeddings"]) - _first_row(config, gguf)
        keys["attention.causal"] = bool(config.get("causal", False))
    else:
        keys.update(dict.fromkeys(_HEAD_WIDTHS, config["head_dim"]) if config.get("head_dim") is not None else {})
        keys.update({"attention.causal": False} if config.get("is_causal") is False else {})
    keys.update(_written_scaling(config, gguf))
    keys.update(gguf.write(gguf, _with_head_dim(config, gguf)) if gguf.write is not None else {})
    metadata: dict[str, Any] = {"general.architecture": gguf.architecture}
    metadata.update({f"{gguf.architecture}.{key}": value for key, value in keys.items()})
    if gguf.encoder:
        metadata["tokenizer.ggml.token_type_count"] = int(config.get("type_vocab_size", 2))  # llama.cpp wants it
    for name, word in TOKENS.items():
        if isinstance(config.get(name), int):
            metadata[f"tokenizer.ggml.{word}_token_id"] = config[name]
    return metadata


def rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """The divisors of the rotary frequencies, f32 [head_dim / 2], that files keep as `rope_freqs.weight` (llama3).

    Where a wave is short against the original context nothing changes, where it is long the frequency is divided by
    `factor`, and in between the two are mixed. None for a model without this scaling.
    """
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    if "factors" in scaling:
        return np.asarray(scaling["factors"], np.float32)
    dim, factor = config["head_dim"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    plain = float(config.get("rope_theta", 10_000.0)) ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (blend + (1.0 - blend) / factor)).astype(np.float32)


def _factor_tensors(config: Mapping[str, Any], gguf: Gguf) -> dict[str, Any]:
    scaling = _scaling(config, gguf)
    if scaling["rope_type"] != gguf.factors:
        return {}
    if gguf.factors == "longrope":
        return {f"rope_factors_{kind}.weight": scaling[f"{kind}_factor"] for kind in ("short", "long")}
    return {"rope_freqs.weight": rope_factors(config)}


def _scaling(config: Mapping[str, Any], gguf: Gguf) -> dict[str, Any]:
    """rope_scaling with its kind under one name."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return {**scaling, "rope_type": gguf.rope_words.get(kind, kind)}


def _flat_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer files keep theta and scaling in `rope_parameters`, those of sliding layers apart."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        return config
    full, local = (rope.get(f"{kind}_attention") for kind in ("full", "sliding"))
    flat: dict[str, Any] = {**config, "rope_scaling": full or rope, "rope_local_scaling": local}
    for name, part in (("rope_theta", full or rope), ("rope_local_base_freq", local)):
        if part and "rope_theta" in part:
            flat[name] = part["rope_theta"]
    return flat


def _with_head_dim(config: Mapping[str, Any], gguf: Gguf) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        **config,
        "head_dim": config.get("head_dim") or gguf.head_dim or config["hidden_size"] // heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
    }


def _first_row(config: Mapping[str, Any], gguf: Gguf) -> int:
    """The first row of the position table that a token takes; the rows before it belong to no token."""
    return 0 if gguf.first_row is None else gguf.first_row(config)


def _written_scaling(config: Mapping[str, Any], gguf: Gguf) -> dict[str, Any]:
    scaling = _scaling(config, gguf)
    kind = scaling["rope_type"]
    if kind in ("default", gguf.factors):  # factors are tensors
        return {}
    if kind not in ("linear", "yarn") or scaling.get("truncate") is False:
        raise gguf.unwritable(f"rope_scaling of type {kind!r}")
    keys: dict[str, Any] = {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
    if "original_max_position_embeddings" in scaling:
        keys["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    return {**keys, **(_written_yarn(scaling) if kind == "yarn" else {})}


def _written_yarn(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """attention_factor twice: as converters write it, and as what readers multiply the rule's own number by."""
    given, magnitude = dict(scaling), yarn_magnitude(scaling["factor"])
    if given.get("attention_factor") is None:
        given.pop("attention_factor", None)
        if given.get("mscale") and given.get("mscale_all_dim"):
            parts = (yarn_magnitude(scaling["factor"], given[name]) for name in ("mscale", "mscale_all_dim"))
            given["attention_factor"] = next(parts) / next(parts)
    keys = {key: float(given[hf]) for hf, key in YARN.items() if given.get(hf) is not None}
    if "attention_factor" in given:
        keys["rope.scaling.attn_factor"] = given["attention_factor"] / magnitude
    return keys


def write_gguf(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write `tensors` (arrays, or TensorViews for quantised data) and `metadata`; `path` appears when it is complete.

    A numpy scalar or array keeps its type. Plain numbers get the types that readers expect: u32 (i32 if negative, 64
    bits if needed) and f32 alone, i32 and f32 in lists. Shapes are outermost first, as everywhere in weft.
    """
    views = {name: TensorView.of(value) for name, value in tensors.items()}
    start, alignment = gguf_start(views, metadata)
    with replacing(path) as out:
        out.write(start)
        for view in views.values():
            out.write(np.ascontiguousarray(view.bytes()).data)
            out.write(bytes(-view.nbytes % alignment))


def gguf_start(views: Mapping[str, TensorView], metadata: Mapping[str, Any]) -> tuple[bytes, int]:
    """What a file has before the bytes of its tensors, and the alignment of each of them."""
    alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    if not is_alignment(alignment):
        raise InputError("gguf", ALIGNMENT_RULE, field="general.alignment", given=alignment)
    head = [MAGIC, struct.pack("<IQQ", 3, len(views), len(metadata))]
    head += [_string(key, MAX_KEY) + _value(key, value) for key, value in metadata.items()]
    offset = 0
    for name, view in views.items():
        shape = _checked(name, view).shape or (1,)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_string(name, MAX_NAME) + dims + struct.pack("<IQ", view.dtype.gguf, offset))
        offset += view.nbytes + -view.nbytes % alignment
    start = b"".join(head)
    return start + bytes(-len(start) % alignment), alignment


def _checked(name: str, view: TensorView) -> TensorView:
    if view.dtype.gguf is None:
        raise InputError("gguf", f"tensor {name!r} cannot be written: GGUF has no type {view.dtype}")
    if len(view.shape) > MAX_DIMS or view.size == 0:
        raise InputError(
            "gguf",
            f"tensor {name!r} cannot be written: shape {view.shape}",
            advice=f"1 to {MAX_DIMS} dimensions are allowed, none empty",
        )
    return view


def _string(text: str | bytes, limit: int | None = None) -> bytes:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    if limit is not None and not 0 < len(raw) <= limit:
        raise InputError("gguf", f"a name must have 1 to {limit} bytes, this one has {len(raw)}", given=text)
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    """The type of `value` and its bytes."""
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", meta.STRING) + _string(value)
    if isinstance(value, (meta.StringArray, list, tuple)) and all(isinstance(item, (str, bytes)) for item in value):
        raws = [value.raw(i) for i in range(len(value))] if isinstance(value, meta.StringArray) else value
        return struct.pack("<IIQ", meta.ARRAY, meta.STRING, len(value)) + b"".join(map(_string, raws))
    array = _narrow(value) if not isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)
    kind = _BY_NUMPY.get(array.dtype.newbyteorder("<").str)
    if kind is None or array.ndim > 1:
        raise InputError(
            "gguf",
            f"cannot be written: {type(value).__name__} of {array.dtype}, {array.ndim} dimensions",
            field=key,
            advice="numbers, text and flat lists of them can be",
        )
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return struct.pack("<I", kind) + raw if array.ndim == 0 else _array(kind, len(array), raw)


def _array(kind: int, count: int, raw: bytes) -> bytes:
    return struct.pack("<IIQ", meta.ARRAY, kind, count) + raw


def _narrow(value: Any) -> np.ndarray:
    """Plain Python numbers in the types GGUF readers expect."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind not in "iu" or array.size == 0:
        return array
    low, high = int(array.min()), int(array.max())
    if array.ndim == 0 and 0 <= low < 1 << 32:
        return array.astype(np.uint32)
    return array.astype(np.int32) if low >= -(1 << 31) and high < 1 << 31 else array
