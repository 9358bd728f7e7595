"""Model types: one file each, found by its name. `ModelModule` says what such a file holds.

Importing a model's file is cheap: it imports neither numpy nor the ops, which `nn` brings in when a model is traced.
Every start imports the file of its model, for the names that it declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from weft.errors import FormatError, UnsupportedError
from weft.weights.names import Gguf, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

# What GGUF files call a model whose file here has another name.
ARCHITECTURES = {
    "granitehybrid": "granitemoehybrid",
    "nemotron_h_moe": "nemotron_h",
    "qwen35": "qwen3_5_text",
    "qwen3next": "qwen3_next",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "lfm2moe": "lfm2_moe",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
}
# clip.projector_type of an mmproj file -> the file of its tower
PROJECTORS = {"gemma3": "gemma3_vision", "idefics3": "idefics3_vision", "qwen3vl_merger": "qwen3_vl_vision"}
WITH_EXPERTS = {"llama": "mixtral"}  # where a file of the architecture may have experts or not
ADVICE = "`weft list --models` prints the types that weft runs"


# What the outer config of a model with images says about both of its parts.
SHARED_BY_PARTS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
    "image_token_id",
    "image_token_index",
)


class ModelModule(Protocol):
    """What the file weft/models/<model_type>.py holds. Its docstring's first line is what `weft list --models` prints.

    KIND            "decoder" or "encoder"
    TEXT_TYPE       only for a model with images: the model_type of its text part
    PICTURES        only for a model with images that weft reads: how it looks at them (generate/sight/looks.py)
    VISION_TYPE     only for a model that embeds texts and pictures: the file of its picture tower. Then also
                    PROJECTION, the layer after the pooled token of a text and whether it has a bias, and LENGTH, the
                    field of Config that texts are filled up to, or None
    CLASS_TOKENS    of a picture tower: how many tokens come before the patches of a picture. Then also `features`, the
                    vectors of pictures [B, outputs] from hidden states, and, where they are needed, `derived`, weights
                    that are made of stored ones, and RESIZED, the positions that are resized to a picture's patches
    PROJECTOR       of a picture tower that an mmproj file may hold beside a GGUF file: how (weights/projector.py)
    Config          a frozen dataclass with the fields of config.json that the model reads. It refuses values that the
                    model does not support. Class variables: `ALIASES` (another name of a field -> the field),
                    `LIMITS` (the highest value of a count that only this model has), `ABOVE_ZERO` (its floats that
                    must be positive), `LAYER_ROPES` (layer type in rope_parameters -> fields for theta and scaling)
    NAMES           what safetensors files call the tensors, where that is not their name in the model
    GGUF            how a GGUF file holds the model; None for a model that is not read from GGUF
    hidden_states   the last hidden states: [L, hidden] of the rows asked for in a decoder, [T, hidden] in an encoder
    forward         decoders: logits [L, vocab] of the rows asked for
    DRAFT_HEAD      only for decoders with a head for multi-token prediction: the name of one of its tensors
    forward_hidden  with DRAFT_HEAD: `forward`, and the hidden states of all tokens [T, hidden]
    draft           with DRAFT_HEAD: logits [L, vocab] and hidden states [L, hidden], from those in step.vectors
    token_logit     decoders that rerank: the logit [L, 1] of one token, from hidden states [L, hidden]
    classify        encoders that rerank: scores [B, labels], from pooled states [B, hidden]
    describe        models that a description fits (weft/nn/description.py): that description, from the Config and the
                    names of the checkpoint's tensors
    """

    KIND: str
    Config: type[Any]
    NAMES: Names
    GGUF: Gguf | None

    def hidden_states(self, w: Scope, cfg: Any, step: Step) -> Tensor: ...

    def forward(self, w: Scope, cfg: Any, step: Step) -> Tensor: ...

    def forward_hidden(self, w: Scope, cfg: Any, step: Step) -> tuple[Tensor, Tensor]: ...

    def draft(self, w: Scope, cfg: Any, step: Step) -> tuple[Tensor, Tensor]: ...

    def token_logit(self, x: Tensor, w: Scope, cfg: Any, id: int) -> Tensor: ...

    def classify(self, x: Tensor, w: Scope, cfg: Any, labels: int) -> Tensor: ...


def model_types() -> list[str]:
    """The names of the files, which are model types with _ for every -."""
    import pkgutil

    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def find_module(model_type: str) -> ModelModule | None:
    """The file weft/models/<model_type>.py, None where there is none; xlm-roberta is xlm_roberta.py."""
    file = model_type.replace("-", "_")
    name = f"{__name__}.{file}"
    if not file.isidentifier() or file.startswith("_"):
        return None
    try:
        return cast(ModelModule, import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def model_module(model_type: str) -> ModelModule:
    """The file weft/models/<model_type>.py; a type without one is refused by name."""
    found = find_module(model_type)
    if found is None:
        advice = f"{ADVICE}; `weft adopt` drafts a description of another"
        raise UnsupportedError(
            "load", "is not a type that weft runs", field="model_type", given=model_type, advice=advice
        )
    return found


def gguf_declaration(architecture: str, experts: bool = False) -> Gguf:
    """How a GGUF file of this architecture, with experts or not, holds its model: the declaration in the file of the
    same name."""
    named = WITH_EXPERTS.get(architecture) if experts else None
    found = find_module(named or ARCHITECTURES.get(architecture, architecture))
    declared = found.GGUF if found is not None else None
    if declared is not None and declared.sparse is not None and experts:
        declared = declared.sparse
    if declared is None or declared.architecture != architecture:
        what = "is not an architecture that weft runs"
        advice = "this is a picture tower: load the model's own GGUF file, and give this one as its mmproj file"
        advice = advice if architecture == "clip" else ADVICE
        raise UnsupportedError("gguf", what, field="general.architecture", given=architecture, advice=advice)
    return declared


def text_config(config: Mapping[str, Any], text_type: str) -> dict[str, Any]:
    """The config of the text part of a model with images, with what the outer config says about both."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        what = f"must be an object in a {config['model_type']}"
        raise FormatError("config.json", what, field="text_config", given=text)
    outer = {name: config[name] for name in SHARED_BY_PARTS if config.get(name) is not None}
    vision = config.get("vision_config")
    deep = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    outer |= {"deepstack_layers": len(deep)} if isinstance(deep, list) else {}
    return {**text, **outer, "model_type": text_type}


def picture_token(config: Mapping[str, Any]) -> int | None:
    """The id of tokens that are pictures, under either of its names; None for models without."""
    found: int | None = config.get("image_token_id", config.get("image_token_index"))
    return found
