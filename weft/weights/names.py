"""What files call a model's tensors and settings: declarations that a model's file makes, one for each file format.

`Names` is for safetensors, `Gguf` for GGUF, `Projector` for mmproj files. The readers and writers of these formats get
the declaration of the model at hand, so this folder knows no model by name. Nothing heavy is imported: every start
reads a declaration.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from weft.errors import UnsupportedError, WeightError
from weft.frozen import frozen


@frozen
class Names:
    """What safetensors files may call a model's tensors, where that is not what the model calls them.

    prefixes  what names begin with where the model was saved inside another; the first one that a file has is removed
    renamed   what names begin with in old files -> what that is now
    trunk     the prefix that is missing where a decoder was saved without its head
    endings   endings of names in old files, and what they are now
    part      for the text part of a model with images: what its names begin with there -> what that is here
    stacks    experts are in gpt_oss's form: weights/experts.py makes stacks of matrices of them
    halves    with stacks: gates are the first half of the outputs of gate_up_proj, not every other one
    """

    prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    trunk: str = ""
    endings: Mapping[str, str] = field(default_factory=dict)
    part: Mapping[str, str] = field(default_factory=dict)
    stacks: bool = False
    halves: bool = False

    def current(self, name: str) -> str:
        """The name with its ending as files have it now."""
        for old, new in self.endings.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def starts(self, names: Mapping[str, Any]) -> Mapping[str, str]:
        """What the names of a file begin with -> what that is here; the first entry that fits a name counts."""
        if self.trunk and "embed_tokens.weight" in names:
            return {"": self.trunk}
        for prefix in self.prefixes:
            if any(name.startswith(prefix) for name in names):
                return {prefix: "", "": ""}  # a head beside the encoder has no prefix
        return {**self.renamed, "": ""}


class GgufKeys(Protocol):
    """The metadata of a GGUF file, as `Gguf.read` gets it. Keys are given without the architecture they begin with."""

    def __contains__(self, name: str) -> bool: ...

    def count(self, name: str, default: int | None = None, *, high: int = ...) -> int:
        """A number of at least one; where a file has one for each layer, they must agree."""

    def size(self, name: str, default: int, *, high: int = ...) -> int:
        """A number that may be 0."""

    def real(self, name: str, default: float | None = None) -> float:
        """A number above zero."""

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no."""

    def counts(self, name: str, count: int) -> list[int] | None:
        """A number for each of `count` layers, which may be 0; None where the file has no such list."""

    def flags(self, name: str, count: int) -> list[bool] | None:
        """A yes or no for each of `count` layers; None where the file has no such list."""

    def rows(self, tensor: str) -> int:
        """How many rows the matrix `tensor` has."""

    def has(self, tensor: str) -> bool:
        """Whether the file has this tensor."""

    def rope_scaling(self, dim: int) -> dict[str, Any] | None:
        """The config's rope_scaling of heads of `dim` channels."""

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise the UnsupportedError that names the key."""


@frozen
class Gguf:
    """How a GGUF file holds a model.

    architecture  the file's general.architecture, with which its keys begin
    model_type    config.json's word for a model in such a file
    class_name    the first of config.json's `architectures`
    encoder       whether it has BERT's keys, or those that all decoders share
    root, layer   GGUF stem -> Hugging Face stem, outside and inside layers; a stem is a name without .weight or .bias
    whole         names inside layers that are no stem with an ending: GGUF name -> Hugging Face name
    split         inside layers: Hugging Face stem -> the GGUF stems that hold equal parts of its rows, in order
    layer_prefix  what the names of Hugging Face's layers begin with
    absent        stems of either side without a tensor on the other: what they hold is elsewhere, or unused
    plus_one      norms are stored with one added to them, but for those whose names end in one of plain_norms
    minus_exp     the ending of a vector that is stored as minus its exponential
    folded        endings of vectors that are stored as matrices -> config.json's entry that says of how many rows
    paired        rows of queries and keys that rotate together lie side by side, not half a head apart
    part_rotates  rope.dimension_count may be less than a head's width
    factors       the kind of rope_scaling whose divisors are tensors: llama3 or longrope
    rope_words    older words for kinds of rope_scaling -> the current ones
    activation    the only activation that readers of the format apply
    experts       layers have experts, whose number is expert_count
    sparse        for a model that may have experts or not: how files with experts hold it
    is_sparse     with `sparse`: whether a model with this config.json has experts
    stacks        as Names.stacks, for tensors that are written
    draft         the head for multi-token prediction, whose tensors lie in one more layer: the stems that only it has
                  there -> its names; "" -> what the names of its own layer begin with
    some_attend   attention.head_count_kv and feed_forward_length may have a number for each layer, 0 for one without
    head_dim      the width of a head where config.json names none; 0 for an even share of the embedding
    read          config.json's entries that only this model has, from the keys and the shared entries
    write         the same back: keys without the architecture. It refuses what the format cannot say
    first_row     the first row of the position table that a token takes; earlier rows are not written
    """

    architecture: str
    model_type: str
    class_name: str
    root: Mapping[str, str]
    layer: Mapping[str, str]
    layer_prefix: str
    encoder: bool = False
    absent: frozenset[str] = frozenset()
    whole: Mapping[str, str] = field(default_factory=dict)
    plus_one: bool = False
    plain_norms: tuple[str, ...] = ()
    minus_exp: str = ""
    split: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    part_rotates: bool = False
    factors: str = ""
    rope_words: Mapping[str, str] = field(default_factory=dict)
    activation: str = "silu"
    experts: bool = False
    sparse: Gguf | None = None
    is_sparse: Callable[[Mapping[str, Any]], bool] | None = None
    stacks: bool = False
    draft: Mapping[str, str] = field(default_factory=dict)
    some_attend: bool = False
    head_dim: int = 0
    read: Callable[[GgufKeys, dict[str, Any]], dict[str, Any]] | None = None
    write: Callable[[Gguf, Mapping[str, Any]], dict[str, Any]] | None = None
    first_row: Callable[[Mapping[str, Any]], int] | None = None

    def of(self, config: Mapping[str, Any]) -> Gguf:
        """How files hold a model with this config.json: `sparse` where it has experts and these differ."""
        return (
            self.sparse if self.sparse is not None and self.is_sparse is not None and self.is_sparse(config) else self
        )

    def hf_name(self, name: str) -> str | None:
        """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`; None where Hugging Face has none."""
        stem, _, suffix = name.rpartition(".")
        if stem in self.absent:
            return None
        inside = _GGUF_LAYER.fullmatch(name)
        if inside is not None and inside[2] in self.whole:
            return f"{self.layer_prefix}.{inside[1]}.{self.whole[inside[2]]}"
        layer = _GGUF_LAYER.fullmatch(stem)
        if layer is None and stem in self.root:
            return f"{self.root[stem]}.{suffix}"
        if layer is not None and layer[2] in self.layer:
            return f"{self.layer_prefix}.{layer[1]}.{self.layer[layer[2]]}.{suffix}"
        whole = next((own for own, parts in self.split.items() if layer is not None and layer[2] in parts), None)
        if layer is not None and whole is not None:
            return f"{self.layer_prefix}.{layer[1]}.{whole}.{suffix}"
        raise self._unknown(name)

    def has_draft_head(self, names: Collection[str], layers: int) -> bool:
        """Whether a file with these tensors has the head in the layer after `layers`, in the form that `draft` says."""
        at = f"blk.{layers}."
        own = {name.removeprefix(at).rpartition(".")[0] for name in names if name.startswith(f"{at}nextn.")}
        return bool(own) and own == set(self.draft) - {""}

    def draft_name(self, name: str, layers: int) -> str:
        """`name` as `hf_name` gives it; a tensor of the layer after `layers` is one of the draft head."""
        stem, _, suffix = name.rpartition(".")
        at = f"{self.layer_prefix}.{layers}."
        if not stem.startswith(at):
            return name
        own = stem.removeprefix(at)
        return f"{self.draft.get(own) or '.'.join((self.draft[''], own))}.{suffix}"

    def layer_name(self, name: str, layers: int) -> str:
        """The way back: a tensor of the draft head is one of the layer after `layers`."""
        stem, _, suffix = name.rpartition(".")
        at = f"{self.layer_prefix}.{layers}"
        own = {drafted: stem for stem, drafted in self.draft.items() if stem}.get(stem)
        if own is None and self.draft and stem.startswith(f"{self.draft['']}."):
            own = stem.removeprefix(f"{self.draft['']}.")
        return name if own is None else f"{at}.{own}.{suffix}"

    def rows_of(self, name: str, rows: int) -> str:
        """Where a tensor of `rows` rows holds a part of Hugging Face's: which rows, as weft.nn.Scope names them."""
        layer = _GGUF_LAYER.fullmatch(name.rpartition(".")[0])
        parts = next((parts for parts in self.split.values() if layer is not None and layer[2] in parts), ())
        if layer is None or not parts:
            return ""
        place = parts.index(layer[2])
        return f":{place * rows}-{(place + 1) * rows}/{len(parts) * rows}"

    def gguf_name(self, name: str) -> str | None:
        """The way back: what GGUF calls a tensor of a Hugging Face model; None where it keeps no such tensor."""
        stem, _, suffix = name.rpartition(".")
        if stem in self.absent or name in self.absent:
            return None
        for gguf, own in self.root.items():
            if own == stem:
                return f"{gguf}.{suffix}"
        pattern = re.escape(self.layer_prefix) + r"\.(0|[1-9][0-9]{0,3})\.(.+)"
        layer, inside = re.fullmatch(pattern, stem), re.fullmatch(pattern, name)
        for gguf, own in self.whole.items():
            if inside is not None and own == inside[2]:
                return f"blk.{inside[1]}.{gguf}"
        for gguf, own in self.layer.items():
            if layer is not None and own == layer[2]:
                return f"blk.{layer[1]}.{gguf}.{suffix}"
        raise self._unknown(name)

    def parts(self, name: str) -> tuple[str, ...]:
        """What GGUF calls the equal parts of the rows of a Hugging Face tensor; empty where it is one tensor."""
        for own, parts in self.split.items():
            pattern = re.escape(self.layer_prefix) + r"\.(0|[1-9][0-9]{0,3})\." + re.escape(own) + r"\.([a-z]+)"
            inside = re.fullmatch(pattern, name)
            if inside is not None:
                return tuple(f"blk.{inside[1]}.{part}.{inside[2]}" for part in parts)
        return ()

    def holds_plus_one(self, name: str) -> bool:
        """Whether files hold the tensor `name` of Hugging Face with one added to it."""
        return self.plus_one and name.endswith("norm.weight") and not name.endswith(self.plain_norms)

    def holds_minus_exp(self, name: str) -> bool:
        """Whether files hold minus the exponential of the tensor `name` of Hugging Face."""
        return bool(self.minus_exp) and name.endswith(self.minus_exp)

    def row_order(self, name: str, config: Mapping[str, Any]) -> array[int] | None:
        """Which stored row is each row of the Hugging Face tensor `name`, or None where they are in order.

        Rotary embedding pairs the two halves of a head in Hugging Face's order. Where pairs lie side by side, row j of
        half t of a head of d rows, t * d/2 + j, is stored as row 2j + t. Use with TensorView.take.
        """
        match = _ROTATED.fullmatch(name) if self.paired else None
        if match is None:
            return None
        heads = config["num_attention_heads"] if match[1] == "q" else config["num_key_value_heads"]
        return _halves_from_pairs(heads, config["head_dim"])

    def stored_order(self, name: str, config: Mapping[str, Any]) -> array[int] | None:
        """The inverse of `row_order`, for writing: which row of the Hugging Face tensor is each stored row."""
        order = self.row_order(name, config)
        return None if order is None else array("i", sorted(range(len(order)), key=order.__getitem__))

    def unwritable(self, what: str) -> UnsupportedError:
        """The error for a config that has something GGUF has no key for."""
        return UnsupportedError("gguf", f"{what} cannot be written: GGUF has no key for it in {self.architecture}")

    def _unknown(self, name: str) -> WeightError:
        return WeightError("gguf", f"{self.architecture} models have no such tensor", given=name)


_GGUF_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.(.+)")
_ROTATED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.([qk])_proj\.(?:weight|bias)")


@lru_cache(maxsize=8)  # every layer has the same
def _halves_from_pairs(heads: int, dim: int) -> array[int]:
    one = [*range(0, dim, 2), *range(1, dim, 2)]
    return array("i", [head * dim + row for head in range(heads) for row in one])


_TOWER_ROOT = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.post_ln": "post_layernorm",
}
_TOWER_LAYER = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}  # in old files, which call the wider layer the one down
_VISION_LAYER = re.compile(r"v\.blk\.(0|[1-9][0-9]{0,3})\.([a-z0-9_]+)\.(weight|bias)")
_DEEP = re.compile(r"v\.deepstack\.(0|[1-9][0-9]{0,3})\.([a-z0-9_]+)\.(weight|bias)")


@frozen
class Projector:
    """How an mmproj file, which lies beside a GGUF file, holds its picture tower. The layers of all towers that are
    vision transformers have the same names in files.

    kind        the file's clip.projector_type
    model_type  config.json's word for a model with this tower
    tokens      config.json's field for a token's id -> the token in the vocabulary of the text part, first the one
                that stands for pictures
    tensors     GGUF stem -> the tower's stem, of what this tower has beside the layers
    plus_one    stems of the tower whose vectors are stored with one added to them
    read        config.json's entries, those that only this tower has in vision_config under `vision_config`, and the
                content of preprocessor_config.json but for its colours, from the file's metadata (gguf_meta) and
                vision_config
    write       the same back: keys, from config.json and preprocessor_config.json
    root        as `tensors`, of what most towers have beside the layers
    layer       GGUF stem inside a layer -> the tower's
    layers      what the names of the tower's layers begin with
    deep        the list of what goes in deeper, which files number by layer, and the parts of an entry in files -> the
                tower's
    frames      the stem of a matrix over two frames, each a tensor in files; then the tower has `derived`
    made        stems of the tower that `derived` makes, and files do not hold
    words       what the tower calls numbers of vision_config that most call otherwise
    """

    kind: str
    model_type: str
    tokens: Mapping[str, str]
    tensors: Mapping[str, str]
    read: Callable[[Any, Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
    write: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    plus_one: tuple[str, ...] = ()
    root: Mapping[str, str] = field(default_factory=lambda: _TOWER_ROOT)
    layer: Mapping[str, str] = field(default_factory=lambda: _TOWER_LAYER)
    layers: str = "encoder.layers"
    deep: tuple[str, Mapping[str, str]] = ("", MappingProxyType({}))
    frames: str = ""
    made: frozenset[str] = frozenset()
    words: Mapping[str, str] = field(default_factory=dict)

    def own_name(self, name: str, swapped: bool, deep: Sequence[int] = ()) -> str:
        """What the tower calls the tensor `name` of a file, for a tower with `deep` layers that go in deeper."""
        inside = _VISION_LAYER.fullmatch(name)
        if inside is not None:
            part = _SWAPPED.get(inside[2], inside[2]) if swapped else inside[2]
            if part in self.layer:
                return f"{self.layers}.{inside[1]}.{self.layer[part]}.{inside[3]}"
        deeper = _DEEP.fullmatch(name)
        if deeper is not None and int(deeper[1]) in deep and deeper[2] in self.deep[1]:
            return f"{self.deep[0]}.{deep.index(int(deeper[1]))}.{self.deep[1][deeper[2]]}.{deeper[3]}"
        stem, _, suffix = name.rpartition(".")
        known = {**self.root, **self.tensors}.get(stem)
        if known is None:
            raise WeightError("mmproj", f"{self.kind} projectors have no such tensor", given=name)
        return f"{known}.{suffix}"

    def file_name(self, name: str, deep: Sequence[int] = ()) -> str:
        """The way back."""
        stem, _, suffix = name.rpartition(".")
        lists = {self.layers: ("v.blk", self.layer, range(1 << 16)), self.deep[0]: ("v.deepstack", self.deep[1], deep)}
        for start, (there, parts, numbers) in lists.items():
            inside = re.fullmatch(re.escape(start) + r"\.([0-9]{1,4})\.(.+)", stem)
            part = next((part for part, own in parts.items() if inside is not None and own == inside[2]), None)
            if inside is not None and part is not None and int(inside[1]) < len(numbers):
                return f"{there}.{numbers[int(inside[1])]}.{part}.{suffix}"
        known = next((part for part, own in {**self.root, **self.tensors}.items() if own == stem), None)
        if known is None:
            raise WeightError("mmproj", f"{self.kind} projectors cannot hold it", given=name)
        return f"{known}.{suffix}"
