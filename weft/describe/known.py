"""The description of a model whose type weft has a file for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.graph import Trace
from weft.models import model_module
from weft.nn import read_config
from weft.nn.description import LAYER, Description, read_description
from weft.runtime.checkpoint import DESCRIBED

if TYPE_CHECKING:
    from weft.runtime import Checkpoint

# The ops that weft/models/generic.py records.
WORDS = frozenset(
    {
        *("embedding", "take_rows", "reshape", "add", "mul", "scale", "activate", "gated", "softcap", "matmul"),
        *("rms_norm", "layer_norm", "rope", "attention", "attention_paged", "kv_write"),
    }
)
# Operands of those that it never gives.
BEYOND = {("attention", "bias"): "its attention scores have biases by distance"}


def description_of(checkpoint: Checkpoint) -> Description:
    """The description of a checkpoint, with the names that its file has for tensors.

    UnsupportedError names what the model has that a description has no words for.
    """
    module: Any = model_module(checkpoint.model_type)
    if DESCRIBED in checkpoint.config:
        with checkpoint.naming():
            return read_description(checkpoint.config[DESCRIBED])
    if not hasattr(module, "describe"):
        what = f"a {checkpoint.model_type} does not fit a description: {_obstacle(checkpoint)}"
        raise UnsupportedError("describe", what)
    with checkpoint.naming():
        words: Description = module.describe(read_config(module.Config, checkpoint.config), checkpoint.tensors.keys())
    named = {role: _file_name(checkpoint, name, words.layers) for role, name in words.weights.items()}
    return replace(words, weights=named, made_from=checkpoint.model_type)


def _file_name(checkpoint: Checkpoint, name: str, layers: int) -> str:
    """What the file calls the part whose name in the model is `name`."""
    head, inside, tail = name.partition(LAYER)
    for layer in range(layers if inside else 1):  # some layers may lack the part
        own = f"{head}{layer}{tail}.weight" if inside else f"{head}.weight"
        stored = checkpoint.file_names.get(own)
        if stored is not None:
            end = f"{layer}{tail}.weight" if inside else ".weight"
            if not stored.endswith(end):
                what = f"{stored} does not end like {own}; a description has names without .weight and .bias"
                raise UnsupportedError("describe", what)
            return stored.removesuffix(end) + (f"{LAYER}{tail}" if inside else "")
    return name


def _obstacle(checkpoint: Checkpoint) -> str:
    """What of the model's program a description has no words for."""
    from weft.describe.tracing import traced

    body = traced(Trace(checkpoint.model_type), checkpoint).program().body
    found = sorted({instruction.op for instruction in body} - WORDS)
    if found:
        return f"its program has the ops {', '.join(found)}"
    for instruction in body:
        for operand, given in zip(instruction.meaning.operands, instruction.inputs):
            if given is not None and (instruction.op, operand.name) in BEYOND:
                return BEYOND[instruction.op, operand.name]
    return f"weft/models/{checkpoint.model_type}.py does not describe it"
