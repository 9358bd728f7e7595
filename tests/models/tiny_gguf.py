"""GGUF by a config's model_type or a file's architecture: weft's readers and writers with the model's declaration."""

from collections.abc import Mapping
from typing import Any

from weft import weights
from weft.models import gguf_declaration, model_module
from weft.weights import Gguf, TensorFile, TensorView


def declared(model_type: str) -> Gguf:
    """How a GGUF file holds a model of this type."""
    found = model_module(model_type).GGUF
    assert found is not None
    return found


def gguf_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return weights.gguf_from_config(config, declared(config["model_type"]))


def gguf_tensors(config: Mapping[str, Any], tensors: Mapping[str, TensorView]) -> dict[str, TensorView]:
    return weights.gguf_tensors(config, tensors, declared(config["model_type"]))


def config_from_gguf(file: TensorFile[Any]) -> dict[str, Any]:
    return weights.config_from_gguf(file, gguf_declaration(file.metadata.get_str("general.architecture")))


def hf_name(architecture: str, name: str) -> str | None:
    return gguf_declaration(architecture).hf_name(name)


def gguf_name(architecture: str, name: str) -> str | None:
    return gguf_declaration(architecture).gguf_name(name)


def row_order(architecture: str, name: str, config: Mapping[str, Any]) -> Any:
    return gguf_declaration(architecture).row_order(name, config)


def stored_order(architecture: str, name: str, config: Mapping[str, Any]) -> Any:
    return gguf_declaration(architecture).stored_order(name, config)
