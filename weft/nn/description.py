"""A model in words: the JSON that weft/models/generic.py builds a decoder or encoder from, checked strictly.

docs/howto/run-a-model-from-a-description.md documents every field. A key that is not known is refused, like a value
that is not: a description says all there is to say about a model, so what is not understood would be missing in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from weft.errors import FormatError, UnsupportedError, WeftError
from weft.frozen import frozen
from weft.nn.config import LIMITS, read_config

if TYPE_CHECKING:
    from weft.nn.rotary import Rope

VERSION = 1
KINDS = ("decoder", "encoder")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
CLASSIFIERS = ("tanh", "silu", "gelu", "gelu_tanh", "relu")
PLACEMENTS = {  # how a part f, attention or feed-forward, meets the residual stream x -> the norms it has
    "pre": ("in",),  # x + f(norm(x))
    "post": ("out",),  # norm(x + f(x))
    "output": ("out",),  # x + norm(f(x))
    "sandwich": ("in", "out"),  # x + norm(f(norm(x)))
    "parallel": ("in",),  # x + attention(norm(x)) + mlp(norm(x)), each with a norm of its own
    "parallel_shared": ("in",),  # the same with one norm for both
}
QK_NORMS = ("none", "head", "all")  # over the channels of each head, or over all heads together
QKV = ("apart", "stacked", "by_group")  # three matrices; rows of q, k, v; for each kv head its queries, k and v
GATES = ("apart", "gate_up", "up_gate")
POSITIONS = ("none", "learned", "sinusoidal", "sinusoidal_interleaved")
PAIRS = ("halves", "neighbours")  # channel i rotates with i + dim/2, or 2i with 2i + 1
MAIN = "main"  # the rope whose constant has a plain name in programs
LAYER = "{i}"

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")


def bad(what: str, name: str, **rest: Any) -> UnsupportedError:
    return UnsupportedError("config", what, field=name, **rest)


def one_of(section: Any, name: str, known: Collection[str]) -> None:
    if getattr(section, name) not in known:
        raise bad(f"must be one of {', '.join(known)}", name, given=getattr(section, name))


def not_negative(section: Any, *names: str, high: int = LIMITS["max_position_embeddings"]) -> None:
    for name in names:
        if not 0 <= getattr(section, name) <= high:
            raise bad(f"must be 0 to {high}", name, given=getattr(section, name))


@frozen
class Embedding:
    """What the first layer reads: rows of the table, times `scale`, plus those of positions and of types of tokens."""

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("scale",)
    scale: float = 1.0
    positions: str = "none"
    first_position: int = 0  # the row of the position table that the first token takes
    types: int = 0  # how many types of tokens have a row; 0: the model has none
    norm: bool = False

    def __post_init__(self) -> None:
        one_of(self, "positions", POSITIONS)
        not_negative(self, "first_position", "types", high=LIMITS["type_vocab_size"])


@frozen
class Norm:
    """`plus_one`: stored less one. `bias`: of a layer norm. `weight` False: it has no parameters."""

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("eps",)
    type: str
    eps: float
    plus_one: bool = False
    bias: bool = False
    weight: bool = True

    def __post_init__(self) -> None:
        one_of(self, "type", ("rms", "layer"))
        if self.bias and (self.type == "rms" or not self.weight):
            raise bad("is only for a layer norm with a weight", "bias", given=True)
        if self.plus_one and not self.weight:
            raise bad("is only for a norm with a weight", "plus_one", given=True)


@frozen
class Block:
    """Where norms are, and what a part's result is multiplied by before it is added to the residual stream."""

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("residual_scale",)
    placement: str
    residual_scale: float = 1.0
    first_norm: bool = True  # False: the first layer has no norm before its attention
    final_norm: bool = True

    def __post_init__(self) -> None:
        one_of(self, "placement", tuple(PLACEMENTS))


@frozen
class Attention:
    LIMITS: ClassVar[dict[str, int]] = {"heads": 1024, "kv_heads": 1024}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("scale", "cap")
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    scale: float | None = None  # null: 1 / sqrt(head_dim)
    cap: float | None = None
    bias: bool = False  # of queries, keys and values
    out_bias: bool = False
    sinks: bool = False  # one more score for each head, of no value
    qk_norm: str = "none"
    qkv: str = "apart"

    def __post_init__(self) -> None:
        one_of(self, "qk_norm", QK_NORMS)
        one_of(self, "qkv", QKV)
        if self.heads % self.kv_heads:
            raise bad(f"must be a multiple of kv_heads ({self.kv_heads})", "heads", given=self.heads)


@frozen
class Mlp:
    LIMITS: ClassVar[dict[str, int]] = {"inner_size": LIMITS["intermediate_size"]}
    inner_size: int
    activation: str
    gated: bool
    bias: bool = False
    gate: str = "apart"  # of a gated one: the matrices of gate and up

    def __post_init__(self) -> None:
        one_of(self, "activation", ACTIVATIONS)
        one_of(self, "gate", GATES)
        if self.gated and self.activation == "relu2":
            raise bad("cannot be relu2 where gated is true", "activation", given=self.activation)
        if not self.gated and self.gate != "apart":
            raise bad("is only for a gated one", "gate", given=self.gate)


@frozen
class Output:
    """How a decoder's last hidden states become logits."""

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("scale", "cap")
    tied: bool
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.tied and self.bias:
            raise bad("is only for a head that is not tied", "bias", given=True)


@frozen
class Classifier:
    """How an encoder's pooled states become scores of labels: a layer of the same width, then one with the labels."""

    activation: str
    bias: bool = True  # of the first layer
    norm: bool = False  # after the activation

    def __post_init__(self) -> None:
        one_of(self, "activation", CLASSIFIERS)


@frozen
class RopeWords:
    """`dim` channels of each head rotate; `scaling` is what config.json calls rope_scaling."""

    LIMITS: ClassVar[dict[str, int]] = {"dim": LIMITS["head_dim"]}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("theta",)
    theta: float
    dim: int
    pairs: str = "halves"
    scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        one_of(self, "pairs", PAIRS)
        if self.dim % 2:
            raise bad("must be even", "dim", given=self.dim)


@frozen
class LayerType:
    """`window`: a token attends to tokens less than so many away, itself included; 0 for all. `rope`: its name."""

    window: int = 0
    rope: str | None = None

    def __post_init__(self) -> None:
        not_negative(self, "window")


def roles(
    embedding: Embedding,
    norm: Norm,
    block: Block,
    attention: Attention,
    mlp: Mlp,
    output: Output | None,
    classifier: Classifier | None = None,
) -> dict[str, int]:
    """The parts that need a name in `weights`; 1 for those of every layer, 0 for others."""
    norms = PLACEMENTS[block.placement] if norm.weight else ()
    shared = block.placement == "parallel_shared"
    apart, paired = attention.qkv == "apart", mlp.gate == "apart"
    parts = {
        "embedding": (0, True),
        "positions": (0, embedding.positions == "learned"),
        "types": (0, embedding.types > 0),
        "embedding_norm": (0, embedding.norm and norm.weight),
        "attention_norm": (1, "in" in norms),
        "q": (1, apart),
        "k": (1, apart),
        "v": (1, apart),
        "qkv": (1, not apart),
        "q_norm": (1, attention.qk_norm != "none" and norm.weight),
        "k_norm": (1, attention.qk_norm != "none" and norm.weight),
        "sinks": (1, attention.sinks),
        "o": (1, True),
        "attention_out_norm": (1, "out" in norms),
        "mlp_norm": (1, "in" in norms and not shared),
        "gate": (1, mlp.gated and paired),
        "up": (1, paired),
        "gate_up": (1, not paired),
        "down": (1, True),
        "mlp_out_norm": (1, "out" in norms),
        "final_norm": (0, block.final_norm and norm.weight),
        "head": (0, output is not None and not output.tied),
        "classifier_inner": (0, classifier is not None),
        "classifier_norm": (0, classifier is not None and classifier.norm and norm.weight),
        "classifier": (0, classifier is not None),
    }
    return {role: inside for role, (inside, there) in parts.items() if there}


@frozen
class Description:
    """A model. `pattern` names the layer type of each layer, and repeats. `weights` has the name of each part's tensors
    in the file, without `.weight` or `.bias`, with {i} for the number of the layer. `made_from` is for people.
    """

    LIMITS: ClassVar[dict[str, int]] = {"layers": LIMITS["num_hidden_layers"], "positions": 16_777_216}
    version: int
    kind: str
    vocab_size: int
    hidden_size: int
    layers: int
    positions: int
    embedding: Embedding
    norm: Norm
    block: Block
    attention: Attention
    mlp: Mlp
    ropes: dict[str, RopeWords]
    layer_types: dict[str, LayerType]
    pattern: list[str]
    weights: dict[str, str]
    output: Output | None = None  # of a decoder
    classifier: Classifier | None = None  # of an encoder that scores pairs or labels texts
    transposed: bool = False  # matrices of layers are stored as [inputs, outputs]
    made_from: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise bad(f"must be {VERSION}, the only one that this weft reads", "version", given=self.version)
        one_of(self, "kind", KINDS)
        if (self.output is None) == (self.kind == "decoder"):
            what = "is missing: a decoder makes logits" if self.output is None else "is only for a decoder"
            raise bad(what, "output")
        if self.kind == "decoder" and self.classifier is not None:
            raise bad("is only for an encoder", "classifier")
        if self.kind == "encoder" and self.attention.causal:
            raise bad("must be false in an encoder", "attention.causal", given=True)
        if not self.block.first_norm and self.block.placement != "pre":
            raise bad("can be false only with placement pre", "block.first_norm", given=False)
        self._check_layers()
        self._check_weights()

    def _check_layers(self) -> None:
        if not self.layer_types:
            raise bad("must have at least one layer type", "layer_types", given={})
        for name, words in self.ropes.items():
            if words.dim > self.attention.head_dim:
                what = f"must be at most head_dim ({self.attention.head_dim})"
                raise bad(what, f"ropes.{name}.dim", given=words.dim)
        for name, kind in self.layer_types.items():
            if kind.rope is not None and kind.rope not in self.ropes:
                what = f"must be null or one of ropes ({_listed(self.ropes)})"
                raise bad(what, f"layer_types.{name}.rope", given=kind.rope)
        unknown = sorted(set(self.pattern) - set(self.layer_types))
        if unknown or not 0 < len(self.pattern) <= self.layers:
            what = f"must have 1 to {self.layers} names of layer_types ({_listed(self.layer_types)})"
            raise bad(what, "pattern", given=unknown[0] if unknown else f"{len(self.pattern)} names")

    def _check_weights(self) -> None:
        wanted = self.roles()
        for role in wanted:
            if role not in self.weights:
                raise FormatError("config", "is missing: the description has this part", field=f"weights.{role}")
        for role, name in self.weights.items():
            if role not in wanted:
                what, advice = "is not a part of this model", f"it has {_listed(wanted)}"
                raise bad(what, f"weights.{role}", given=name, advice=advice)
            times = name.count(LAYER)
            if times != wanted[role] or not _NAME.fullmatch(name.replace(LAYER, "0")):
                holds = f"with {LAYER} once, for the layer's number" if wanted[role] else f"without {LAYER}"
                raise bad(f"must be a tensor's name {holds}", f"weights.{role}", given=name)

    def roles(self) -> dict[str, int]:
        return roles(self.embedding, self.norm, self.block, self.attention, self.mlp, self.output, self.classifier)

    def layer_type(self, layer: int) -> LayerType:
        return self.layer_types[self.pattern[layer % len(self.pattern)]]

    def as_json(self) -> dict[str, Any]:
        """The JSON that `read_description` makes the same description of; parts that are absent are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def described(known: Mapping[str, str], **rest: Any) -> Description:
    """The description with those of the `known` names that its parts need."""
    parts = ("embedding", "norm", "block", "attention", "mlp", "output", "classifier")
    wanted = roles(*(rest.get(part) for part in parts))  # type: ignore[arg-type]
    return Description(version=VERSION, weights={role: known[role] for role in wanted}, **rest)


def both_ways(heads: int, hidden: int, *, bias: bool, qkv: str = "apart") -> Attention:
    """The attention of BERT's relatives: full, with an even share of the embedding for each head."""
    return Attention(heads, heads, hidden // heads, causal=False, bias=bias, out_bias=bias, qkv=qkv)


def layers_of(windows: Sequence[int], rotations: Sequence[Rope | None]) -> dict[str, Any]:
    """`ropes`, `layer_types` and `pattern` of a model from the window and the rotation of each of its layers."""
    ropes: dict[str, RopeWords] = {}
    types: dict[str, LayerType] = {}
    names: list[str] = []
    for window, rotation in zip(windows, rotations):
        rope = None
        if rotation is not None:
            rope = rotation.name.removeprefix("rope.").removesuffix("inv_freq").rstrip(".") or MAIN
            pairs = PAIRS[1] if rotation.interleaved else PAIRS[0]
            scaling = None if rotation.scaling is None else dict(rotation.scaling)
            ropes[rope] = RopeWords(rotation.theta, 2 * len(rotation.frequencies), pairs, scaling)
        name = ("sliding" if window else "full") + ("" if rope in (None, MAIN) or window else f"_{rope}")
        name += "" if rope is not None or not any(rotations) else "_no_rope"
        kind = LayerType(window, rope)
        while types.setdefault(name, kind) != kind:
            name += "_"
        names.append(name)
    period = next(n for n in range(1, len(names) + 1) if all(name == names[i % n] for i, name in enumerate(names)))
    return {"ropes": ropes, "layer_types": types, "pattern": names[:period]}


_SECTIONS = {
    "embedding": Embedding,
    "norm": Norm,
    "block": Block,
    "attention": Attention,
    "mlp": Mlp,
    "output": Output,
    "classifier": Classifier,
}
_TABLES = {"ropes": RopeWords, "layer_types": LayerType}


def read_description(raw: Any) -> Description:
    """The description in a JSON value; FormatError or UnsupportedError with the path of the field."""
    values = dict(_object(raw, ""))
    _check_keys(Description, values, "")
    for name, section in _SECTIONS.items():
        if values.get(name) is not None:
            values[name] = _read(section, values[name], f"{name}.")
    for name, entry in _TABLES.items():
        if name in values:
            table = _object(values[name], f"{name}.")
            values[name] = {key: _read(entry, value, f"{name}.{key}.") for key, value in table.items()}
    for role, given in _object(values["weights"], "weights.").items():
        if not isinstance(given, str):
            raise FormatError("config", "must be of type str", field=f"weights.{role}", given=given)
    return read_config(Description, values)


def section(name: str, raw: Any) -> Any:
    """One section of a description, as an instance of its class."""
    return _read(_SECTIONS[name], raw, f"{name}.")


def _read(cls: type[T], raw: Any, path: str) -> T:
    """A section, with errors that name fields by their path."""
    values = _object(raw, path)
    _check_keys(cls, values, path)
    try:
        return read_config(cls, values)
    except WeftError as error:
        raise error.but(field=f"{path}{error.field}") from None


def _object(raw: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise FormatError("config", "must be an object", field=path.rstrip(".") or "the description", given=raw)
    return raw


def _check_keys(cls: type, raw: Mapping[str, Any], path: str) -> None:
    known = {one.name: one for one in fields(cls)}
    for name, one in known.items():
        if one.default is MISSING and raw.get(name) is None:
            raise FormatError("config", "is missing", field=f"{path}{name}")
    for name in raw:
        if name not in known:
            advice = f"known here: {_listed(known)}"
            raise bad("is not a field of a description", f"{path}{name}", given=raw[name], advice=advice)


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
