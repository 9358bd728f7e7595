"""The picture tower of Qwen3-VL: patches of pictures in their own proportions, turned by rows and columns.

Reference: transformers/models/qwen3_vl. A token's input is the vector of its patch; a picture is one frame shown twice,
so that the two halves of a patch's matrix are added. Learned positions are resized outside of the program
(`step.added`). Squares of patches are merged to tokens of the text: from the last states, and from those after the
layers `deepstack_visual_indexes`, which the text part adds after its first layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models.clip import ACTIVATIONS
from weft.weights.names import Names, Projector

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
NAMES = Names(part={"model.visual.": "", "visual.": ""})
GGUF = None
CLASS_TOKENS = 0
MERGED = "joined"
RESIZED = "pos_embed.weight"  # the table of positions that is resized for each picture
CORNERS = True  # the corners of the table are those of a picture
TURNED = True
EPS = 1e-6
MOST_DEEP = 8


@frozen
class Config:
    LIMITS: ClassVar[dict[str, int]] = {
        "depth": 1024,
        "num_heads": 1024,
        "patch_size": 4096,
        "spatial_merge_size": 64,
        "temporal_patch_size": 2,
        "out_hidden_size": 65_536,
        "num_position_embeddings": 1 << 20,
    }
    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: list[int] = field(default_factory=lambda: [8, 16, 24])
    hidden_act: str = "gelu_pytorch_tanh"
    text_hidden_size: int = 0  # of the text part

    def __post_init__(self) -> None:
        nn.check_one_of(self, "hidden_act", ACTIVATIONS)
        if self.in_channels != 3:
            raise nn.unsupported(self, "in_channels", "must be 3", given=self.in_channels)
        if self.hidden_size % (4 * self.num_heads):
            what = f"must be a multiple of 4 num_heads ({4 * self.num_heads})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)
        if round(self.num_position_embeddings**0.5) ** 2 != self.num_position_embeddings:
            what = "must be a square"
            raise nn.unsupported(self, "num_position_embeddings", what, given=self.num_position_embeddings)
        deep = self.deepstack_visual_indexes
        if deep != sorted(set(deep)) or len(deep) > MOST_DEEP or (deep and not 0 <= deep[0] <= deep[-1] < self.depth):
            what = f"must be at most {MOST_DEEP} layers from 0 to {self.depth - 1}, in order"
            raise nn.unsupported(self, "deepstack_visual_indexes", what, given=deep)
        if self.text_hidden_size not in (0, self.out_hidden_size):
            what = f"must be the hidden_size of the text part, {self.text_hidden_size}"
            raise nn.unsupported(self, "out_hidden_size", what, given=self.out_hidden_size)

    @property
    def positions(self) -> int:
        """Rows of the table of positions."""
        return self.num_position_embeddings

    @property
    def image_size(self) -> int:
        """The side of a picture whose patches have the positions of the table as they are."""
        return math.isqrt(self.num_position_embeddings) * self.patch_size

    @property
    def layer_norm_eps(self) -> float:
        return EPS

    @property
    def inputs(self) -> int:
        """Numbers of a patch."""
        return self.in_channels * self.patch_size**2

    @property
    def block(self) -> int:
        """Patches of a side of a square that becomes one token of the text."""
        return self.spatial_merge_size

    @property
    def outputs(self) -> int:
        """Numbers of a token of the text."""
        return self.out_hidden_size

    @property
    def merged(self) -> int:
        """Numbers of a square before it is projected."""
        return self.hidden_size * self.spatial_merge_size**2

    @property
    def deep(self) -> tuple[int, ...]:
        """The layers whose states the text part adds."""
        return tuple(self.deepstack_visual_indexes)


def derived(stored: Callable[[str], Any]) -> dict[str, Any]:
    """Weights that are made of stored ones when the tower is opened, as float32 arrays."""
    matrix = stored("patch_embed.proj.weight")  # [hidden, colours, frames, rows, cols]
    return {
        "patch_embed.folded.weight": matrix.sum(2).reshape(len(matrix), -1),
        "patch_embed.folded.bias": stored("patch_embed.proj.bias"),
    }


def attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, size = x.shape[0], cfg.num_heads, cfg.hidden_size
    q, k, v = (
        nn.linear(x, w / "qkv", size, bias=True, part=(i * size, 3 * size)).reshape(tokens, heads, size // heads)
        for i in range(3)
    )
    turned = nn.grid_rope(size // heads)
    q, k = nn.rotate(q, step, turned), nn.rotate(k, step, turned)
    out = nn.attend(q, k, v, step, layer, causal=False).reshape(tokens, size)
    return nn.linear(out, w / "proj", size, bias=True)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    x = nn.linear(x, w / "linear_fc1", cfg.intermediate_size, bias=True)
    return nn.linear(nn.activate(x, kind=ACTIVATIONS[cfg.hidden_act]), w / "linear_fc2", cfg.hidden_size, bias=True)


def hidden_states(w: Scope, cfg: Config, step: Step) -> tuple[Tensor, ...]:
    """The normed last hidden state of every token [T, hidden], then those after the layers of the deep stack."""
    x, deep = nn.linear(step.vectors, w / "patch_embed" / "folded", cfg.hidden_size, bias=True) + step.added, []
    for layer in range(cfg.depth):
        at = w / "blocks" / layer
        x = x + attention(nn.layer_norm(x, at / "norm1", EPS), at / "attn", cfg, step, layer)
        x = x + mlp(nn.layer_norm(x, at / "norm2", EPS), at / "mlp", cfg)
        deep += [x] if layer in cfg.deep else []
    return nn.layer_norm(x, w / "merger" / "norm", EPS), *deep


def _merged(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    x = nn.activate(nn.linear(x, w / "linear_fc1", cfg.merged, bias=True), kind="gelu")
    return nn.linear(x, w / "linear_fc2", cfg.outputs, bias=True)


def projected(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Tokens of the text [T, outputs], of the squares in step.vectors [T, merged]."""
    return _merged(step.vectors, w / "merger", cfg)


def deepened(w: Scope, cfg: Config, step: Step, index: int) -> Tensor:
    """What is added to tokens of the text after layer `index` [T, outputs], of the squares in step.vectors."""
    at = w / "deepstack_merger_list" / index
    return _merged(nn.layer_norm(step.vectors, at / "norm", EPS), at, cfg)


_MERGE, _LEAST, _MOST = (
    f"clip.vision.{name}" for name in ("spatial_merge_size", "image_min_pixels", "image_max_pixels")
)
_TOKENS = 64, 16_384  # that a picture is at least and at most, where an mmproj file says nothing
_PIXELS = {_LEAST: 56 * 56, _MOST: 28 * 28 * 1280}  # where a processor says nothing, as in weft/pictures/grid.py


def _read(meta: Any, vision: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file's layer_norm_epsilon may be that of the text part, which upstream's tower does not read."""
    merge, patch = meta.get_int(_MERGE, 2, low=1, high=Config.LIMITS["spatial_merge_size"]), vision["patch_size"]
    more = {
        "spatial_merge_size": merge,
        "out_hidden_size": meta.get_int("clip.vision.projection_dim", low=1, high=Config.LIMITS["out_hidden_size"]),
        "num_position_embeddings": (vision["image_size"] // patch) ** 2,
    }
    pixels = [meta.get_int(key, tokens * (patch * merge) ** 2, low=1) for key, tokens in zip((_LEAST, _MOST), _TOKENS)]
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    said = {"patch_size": patch, "merge_size": merge, "size": size}
    return {"vision_config": more}, {"image_processor_type": "Qwen2VLImageProcessor", **said}


def _write(config: Mapping[str, Any], processor: Mapping[str, Any]) -> dict[str, Any]:
    half, vision, size = [0.5, 0.5, 0.5], config["vision_config"], processor.get("size") or {}
    limits = {}
    for key, name, edge in ((_LEAST, "min_pixels", "shortest_edge"), (_MOST, "max_pixels", "longest_edge")):
        limits[key] = next((int(n) for n in (processor.get(name), size.get(edge), size.get(name)) if n), _PIXELS[key])
    return {
        _MERGE: int(vision.get("spatial_merge_size", Config.spatial_merge_size)),
        "clip.vision.image_mean": [float(value) for value in processor.get("image_mean") or half],
        "clip.vision.image_std": [float(value) for value in processor.get("image_std") or half],
        **limits,
    }


PROJECTOR = Projector(
    kind="qwen3vl_merger",
    model_type="qwen3_vl",
    tokens={
        "image_token_id": "<|image_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    tensors={"mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2"},
    root={"v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed", "v.post_ln": "merger.norm"},
    layer={
        "ln1": "norm1",
        "ln2": "norm2",
        "attn_qkv": "attn.qkv",
        "attn_out": "attn.proj",
        "ffn_up": "mlp.linear_fc1",
        "ffn_down": "mlp.linear_fc2",
    },
    layers="blocks",
    deep=("deepstack_merger_list", {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}),
    frames="patch_embed.proj",
    made=frozenset({"patch_embed.folded"}),
    words={"num_hidden_layers": "depth", "num_attention_heads": "num_heads"},
    read=_read,
    write=_write,
)
