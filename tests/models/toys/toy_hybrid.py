"""A small hybrid for tests: layers with a causal convolution and the gated delta rule, and attention in every third.

Its three kinds of state are those of the real hybrids; nothing else of it is anybody's model.
"""

from weft import ops
from weft.frozen import frozen
from weft.graph.tensor import Tensor
from weft.nn import Scope, Step, attend, embedding, linear, rms_norm
from weft.weights.names import Names

KIND = "decoder"
NAMES = Names()
GGUF = None
ATTENTION_EVERY = 3


@frozen
class Config:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    conv_kernel: int
    max_position_embeddings: int

    @property
    def positions(self) -> int:
        return self.max_position_embeddings

    settled_positions = positions


def delta_layer(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    width = cfg.conv_kernel
    mixed = linear(x, w / "v_proj", heads * dim)
    taps = w.weight("conv.weight", heads * dim, 1, width)
    state = step.conv(layer, heads * dim, width)
    v = ops.activate(ops.causal_conv(mixed, taps, state, step.slots, step.segments), kind="silu")
    q, k = (linear(x, w / name, groups * dim).reshape(tokens, groups, dim) for name in ("q_proj", "k_proj"))
    q, k = (ops.l2_normalise(part, eps=1e-6) for part in (q, k))
    decay = ops.scale(ops.activate(linear(x, w / "decay", heads), kind="sigmoid"), by=-1.0)
    beta = ops.activate(linear(x, w / "beta", heads), kind="sigmoid")
    memory = step.recurrent(layer, heads, dim, dim)
    out = ops.delta_rule(
        q, k, v.reshape(tokens, heads, dim), decay, beta, memory, step.slots, step.segments, scale=dim**-0.5
    )
    return linear(out.reshape(tokens, heads * dim), w / "o_proj", cfg.hidden_size)


def attention_layer(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    q = linear(x, w / "q_proj", heads * dim).reshape(tokens, heads, dim)
    k, v = (linear(x, w / name, groups * dim).reshape(tokens, groups, dim) for name in ("k_proj", "v_proj"))
    out = attend(q, k, v, step, layer)
    return linear(out.reshape(tokens, heads * dim), w / "o_proj", cfg.hidden_size)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    x = embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        mix = attention_layer if layer % ATTENTION_EVERY == ATTENTION_EVERY - 1 else delta_layer
        at = w / "layers" / layer
        x = x + mix(rms_norm(x, at / "norm", 1e-5), at, cfg, step, layer)
    return rms_norm(ops.take_rows(x, step.rows), w / "norm", 1e-5)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    return linear(hidden_states(w / "model", cfg, step), w / "lm_head", cfg.vocab_size)
