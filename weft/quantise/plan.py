"""Which type each tensor of a GGUF file gets: the named mixtures, and exceptions by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.dtype import DTYPES
from weft.errors import InputError
from weft.frozen import frozen
from weft.quantise.encoding import ENCODED, FLOATS
from weft.weights import TensorView

# GGUF's number of each mixture, which other readers show.
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_m": 12,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq4_nl": 25,
    "iq4_xs": 30,
    "bf16": 32,
    "mxfp4": 38,
}
# Rows that are not whole blocks of 256 get a type of at least as many bits with blocks of 32; f16 takes any row.
NARROWER = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q5_k": "q5_1", "q6_k": "q8_0"}
BASES = {"q2_k": "q2_k", "q3_k_m": "q3_k", "q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_k_m": "q5_k"}
HEAD = "q6_k"  # of the last product, whose errors go straight into the logits
FEW_BITS = ("q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "iq4_nl", "iq4_xs", "mxfp4")

_LAYER = re.compile(r"blk\.(\d+)\.")
# Small, or read as numbers rather than multiplied: routers, positions, types, recurrent parameters and convolutions.
_KEPT = re.compile(r"(ffn_gate_inp|position_embd|patch_embd|token_types|ssm_|shortconv\.conv|attn_rel_b|rope_)")


@frozen
class Plan:
    """The type of every tensor, by its name in the file."""

    name: str
    types: Mapping[str, str]

    def nbytes(self, tensors: Mapping[str, TensorView]) -> int:
        """The bytes of all tensors."""
        return sum(DTYPES[kind].nbytes(tensors[name].size) for name, kind in self.types.items())

    def file_type(self, tensors: Mapping[str, TensorView]) -> int:
        """GGUF's number of the mixture; of a plan without a name, of the type that most elements have."""
        if self.name in FILE_TYPES:
            return FILE_TYPES[self.name]
        sizes: dict[str, int] = {}
        for name, kind in self.types.items():
            sizes[kind] = sizes.get(kind, 0) + tensors[name].size
        most = max(sorted(sizes), key=sizes.__getitem__)
        return FILE_TYPES.get(most, FILE_TYPES.get(f"{most}_m", FILE_TYPES["f16"]))


def make_plan(
    tensors: Mapping[str, TensorView], name: str, exceptions: Sequence[tuple[str, str]] = (), *, widen: bool = False
) -> Plan:
    """The plan of mixture `name`; an exception is a part of a tensor's name, or a regular expression, and its type.

    Vectors, routers and what else is small stay as they are, or are f32 with `widen`, as readers of GGUF want them. An
    exception must fit a tensor that is quantised.
    """
    if name not in FILE_TYPES:
        what = f"must be one of {', '.join(FILE_TYPES)}"
        raise InputError("quantize", what, field="type", given=name)
    patterns = [(_pattern(part), _known(kind)) for part, kind in exceptions]
    layers = 1 + max((int(found[1]) for found in map(_LAYER.match, tensors) if found), default=-1)
    types, used = {}, set()
    for key, view in tensors.items():
        kind = "f32" if widen and not view.dtype.quantised else view.dtype.name
        if len(view.shape) > 1 and not _KEPT.search(key) and key.endswith(".weight"):
            kind = _chosen(name, key, layers, tied="output.weight" not in tensors)
            for index, (pattern, wanted) in enumerate(patterns):
                if pattern.search(key):
                    kind = wanted
                    used.add(index)
            kind = _fitting(kind, view.shape[-1])
        types[key] = kind
    for index, (part, _) in enumerate(exceptions):
        if index not in used:
            raise InputError("quantize", "fits no matrix of the model", field="tensor", given=part)
    return Plan(name, types)


def _pattern(part: str) -> re.Pattern[str]:
    try:
        return re.compile(part)
    except re.error as error:
        raise InputError("quantize", f"is no regular expression: {error}", field="tensor", given=part) from None


def _known(kind: str) -> str:
    if kind not in (*FLOATS, *ENCODED):
        what = f"must be one of {', '.join((*FLOATS, *ENCODED))}"
        raise InputError("quantize", what, field="tensor", given=kind)
    return kind


def _fitting(kind: str, columns: int) -> str:
    while columns % DTYPES[kind].block:
        kind = NARROWER.get(kind, "f16")
    return kind


def _chosen(name: str, key: str, layers: int, tied: bool) -> str:
    base = BASES.get(name, name)
    if key == "output.weight" or (tied and key == "token_embd.weight"):
        return HEAD if base in FEW_BITS else base
    found = _LAYER.match(key)
    if found is None or name not in BASES:
        return base
    layer = int(found[1])
    values, down, out = ("attn_v.", "attn_qkv."), ("ffn_down",), ("attn_output.",)
    part = next((part for part in (values, down, out) if any(word in key for word in part)), None)
    # Errors of values and of what ends a block weigh most, above all in the first and last layers.
    much = _weighs_much(layer, layers)
    if name in ("q4_k_m", "q5_k_m"):
        return "q6_k" if part in (values, down) and much else base
    if name == "q4_k_s":
        return "q5_k" if part in (values, down) and layer < max(1, layers // 8) else base
    if name == "q3_k_m":
        if part == values or (part == down and layer < max(1, layers // 16)):
            return "q5_k"
        return "q4_k" if part == out or (part == down and much) else base
    return {values: "q4_k", down: "q3_k", out: "q3_k"}.get(part, base) if part else base


def _weighs_much(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= layers - eighth or (layer - eighth) % 3 == 2
