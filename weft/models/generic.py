"""Any decoder that a description in weft.json fits: its attention, norms, feed-forward part, positions and names.

The description is JSON beside the weights (weft/nn/description.py). Names of tensors are those of the file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.nn.description import LAYER, MAIN, Description, read_description
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step
    from weft.nn.scope import Part

KIND = "decoder"
NAMES = Names()
GGUF = None


@frozen
class Config:
    description: dict[str, Any]

    def __post_init__(self) -> None:
        for name, words in self.words.ropes.items():
            try:
                nn.rope(words.dim, words.theta, words.scaling, positions=self.words.positions)
            except UnsupportedError as error:
                own = "theta" if error.field == "rope_theta" else f"scaling.{error.field}"
                raise error.but(where="config", field=f"ropes.{name}.{own}") from None

    @cached_property
    def words(self) -> Description:
        return read_description(self.description)

    @property
    def vocab_size(self) -> int:
        return self.words.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.words.hidden_size

    @property
    def type_vocab_size(self) -> int:
        return self.words.embedding.types or 1

    @property
    def causal(self) -> bool:
        return self.words.attention.causal

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        own = self.words.positions
        return max([own, *(nn.most_positions(rope.scaling, own) for rope in self._stretched())])

    @property
    def settled_positions(self) -> int:
        """The longest context in which positions rotate as in short texts; a longer one must be asked for."""
        own = self.words.positions
        return min([own, *(nn.settled_positions(rope.scaling, own) for rope in self._stretched())])

    def _stretched(self) -> list[Any]:
        """The ropes, unless a table of positions limits texts anyway."""
        return list(self.words.ropes.values()) if self.words.embedding.positions == "none" else []

    def rotation(self, layer: int, context: int) -> Rope | None:
        """The rotation of this layer's queries and keys in a context of so many tokens; None where there is none."""
        name = self.words.layer_type(layer).rope
        if name is None:
            return None
        words = self.words.ropes[name]
        made = nn.rope(words.dim, words.theta, words.scaling, positions=self.words.positions, context=context)
        constant = made.name if name == MAIN else f"rope.{name}.inv_freq"
        return replace(made, name=constant, interleaved=words.pairs == "neighbours")


class Parts:
    """The weight scopes of a model, or of one of its layers, by what a description calls them."""

    def __init__(self, w: Scope, words: Description, layer: int | None = None) -> None:
        self.w, self.words, self.layer = w.root(), words, layer

    def __truediv__(self, role: str) -> Scope:
        return self.w / self.words.weights[role].replace(LAYER, str(self.layer))

    def vector(self, role: str, size: int) -> Tensor:
        """A tensor that is no weight or bias of a part: its name is whole."""
        above, _, name = (self / role).path.rpartition(".")
        return (self.w / above).weight(name, size)

    def norm(self, x: Tensor, role: str) -> Tensor:
        norm = self.words.norm
        w = self / role if norm.weight else None
        if norm.type == "rms":
            return nn.rms_norm(x, w, norm.eps, plus_one=norm.plus_one)
        return nn.layer_norm(x, w, norm.eps, bias=norm.bias, plus_one=norm.plus_one)

    def linear(self, x: Tensor, role: str, out: int, bias: bool, part: Part | None = None) -> Tensor:
        return nn.linear(x, self / role, out, bias, part=part, transposed=self.words.transposed)


def projections(x: Tensor, p: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden] -> queries [T, heads, dim], keys and values [T, kv_heads, dim]"""
    att = p.words.attention
    dim, counts = att.head_dim, (att.heads, att.kv_heads, att.kv_heads)
    rows = sum(counts) * dim
    if att.qkv == "apart":
        flat = [p.linear(x, role, count * dim, att.bias) for role, count in zip("qkv", counts)]
    else:
        # Where each kv head's queries, key and value lie together, a part is a range of rows in every such group.
        groups = att.kv_heads if att.qkv == "by_group" else 1
        flat, first = [], 0
        for count in counts:
            part = (first, rows, rows // groups) if groups > 1 else (first, rows)
            flat.append(p.linear(x, "qkv", count * dim, att.bias, part))
            first += count * dim // groups
    if att.qk_norm == "all":
        flat[:2] = p.norm(flat[0], "q_norm"), p.norm(flat[1], "k_norm")
    q, k, v = (y.reshape(x.shape[0], count, dim) for y, count in zip(flat, counts))
    if att.qk_norm == "head":
        q, k = p.norm(q, "q_norm"), p.norm(k, "k_norm")
    return q, k, v


def attention(x: Tensor, p: Parts, cfg: Config, step: Step, layer: int) -> Tensor:
    att, kind = cfg.words.attention, cfg.words.layer_type(layer)
    q, k, v = projections(x, p)
    rotation = cfg.rotation(layer, step.context)
    if rotation is not None:
        q, k = nn.rotate(q, step, rotation), nn.rotate(k, step, rotation)
    cap = 0.0 if att.cap is None else att.cap
    sinks = p.vector("sinks", att.heads) if att.sinks else None
    own = att.bias and att.qkv == "apart" and not att.qk_norm  # so the bias is in every key
    y = nn.attend(
        q,
        k,
        v,
        step,
        layer,
        causal=att.causal,
        window=kind.window,
        scale=att.scale,
        softcap=cap,
        sinks=sinks,
        key_bias=(p / "k").weight("bias", att.kv_heads * att.head_dim) if own else None,
        rotation=rotation,
    )
    return p.linear(y.reshape(x.shape[0], att.heads * att.head_dim), "o", cfg.hidden_size, att.out_bias)


def mlp(x: Tensor, p: Parts) -> Tensor:
    own = p.words.mlp
    inner, kind = own.inner_size, own.activation
    if not own.gated:
        y = p.linear(x, "up", inner, own.bias)
        y = nn.activate(y, kind="relu" if kind == "relu2" else kind)
        y = y * y if kind == "relu2" else y
        return p.linear(y, "down", p.words.hidden_size, own.bias)
    if own.gate == "apart":
        gate, up = (p.linear(x, role, inner, own.bias) for role in ("gate", "up"))
    else:
        halves = (0, inner) if own.gate == "gate_up" else (inner, 0)
        gate, up = (p.linear(x, "gate_up", inner, own.bias, (first, 2 * inner)) for first in halves)
    return p.linear(nn.gated(gate, up, kind=kind), "down", p.words.hidden_size, own.bias)


def block(x: Tensor, p: Parts, cfg: Config, step: Step, layer: int) -> Tensor:
    """One layer. weft/nn/description.py says what the placements of norms are."""
    own = cfg.words.block
    place, by = own.placement, own.residual_scale

    def scaled(y: Tensor) -> Tensor:
        return y if by == 1.0 else nn.scale(y, by=by)

    def attended(y: Tensor) -> Tensor:
        return attention(y, p, cfg, step, layer)

    if place in ("parallel", "parallel_shared"):
        normed = p.norm(x, "attention_norm")
        beside = normed if place == "parallel_shared" else p.norm(x, "mlp_norm")
        return x + scaled(attended(normed)) + scaled(mlp(beside, p))
    for name, part in (("attention", attended), ("mlp", lambda y: mlp(y, p))):
        skips = name == "attention" and layer == 0 and not own.first_norm
        y = p.norm(x, f"{name}_norm") if place in ("pre", "sandwich") and not skips else x
        y = part(y)
        y = p.norm(y, f"{name}_out_norm") if place in ("output", "sandwich") else y
        x = p.norm(scaled(y) + x, f"{name}_out_norm") if place == "post" else x + scaled(y)
    return x


def embedded(w: Scope, cfg: Config, step: Step) -> Tensor:
    """What the first layer reads [T, hidden]."""
    words, p = cfg.words, Parts(w, cfg.words)
    own, hidden, longest = words.embedding, words.hidden_size, words.positions
    x = nn.embedding(step.ids, p / "embedding", words.vocab_size, hidden)
    if own.scale != 1.0:
        x = nn.scale(x, by=own.scale)
    if own.types:
        x = x + nn.embedding(step.types, p / "types", own.types, hidden)
    if own.positions == "learned":
        part = (own.first_position, longest + own.first_position) if own.first_position else None
        x = x + nn.embedding(step.positions, p / "positions", longest, hidden, part=part)
    elif own.positions != "none":
        interleaved = own.positions == "sinusoidal_interleaved"
        x = x + nn.sinusoids(step, longest, hidden, first=own.first_position, interleaved=interleaved)
    return p.norm(x, "embedding_norm") if own.norm else x


def trunk(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The hidden states after the last layer [T, hidden], before the final norm."""
    x = embedded(w, cfg, step)
    for layer in range(cfg.words.layers):
        x = block(x, Parts(w, cfg.words, layer), cfg, step, layer)
    return x


def final(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return Parts(w, cfg.words).norm(x, "final_norm") if cfg.words.block.final_norm else x


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of the tokens in step.rows [L, hidden], normed where the model has a final norm."""
    return final(nn.take_rows(trunk(w, cfg, step), step.rows), w, cfg)


def logits(x: Tensor, w: Scope, cfg: Config, part: tuple[int, int] | None = None) -> Tensor:
    """Logits of hidden states: x [L, hidden] -> [L, vocab], or with `part` (id, vocab) of one token [L, 1]"""
    words, p = cfg.words, Parts(w, cfg.words)
    assert words.output is not None  # a description of a decoder has it
    role, count = "embedding" if words.output.tied else "head", 1 if part else words.vocab_size
    y = nn.linear(x, p / role, count, words.output.bias, part=part)
    y = y if words.output.scale == 1.0 else nn.scale(y, by=words.output.scale)
    return y if words.output.cap is None else nn.softcap(y, cap=words.output.cap)


def token_logit(x: Tensor, w: Scope, cfg: Config, id: int) -> Tensor:
    """The logit of one token: x [L, hidden] -> [L, 1]"""
    return logits(x, w, cfg, (id, cfg.vocab_size))


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return logits(hidden_states(w, cfg, step), w, cfg)
