"""Files of models: checkpoints as mapped tensors, their formats and their names."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.weights.files import TensorFile as TensorFile
    from weft.weights.files import TensorInfo as TensorInfo
    from weft.weights.files import TensorView as TensorView
    from weft.weights.gguf import open_gguf as open_gguf
    from weft.weights.gguf_config import config_from_gguf as config_from_gguf
    from weft.weights.gguf_export import gguf_from_config as gguf_from_config
    from weft.weights.gguf_export import gguf_tensors as gguf_tensors
    from weft.weights.gguf_export import rope_factors as rope_factors
    from weft.weights.gguf_export import write_gguf as write_gguf
    from weft.weights.gguf_meta import Metadata as Metadata
    from weft.weights.gguf_meta import StringArray as StringArray
    from weft.weights.names import Gguf as Gguf
    from weft.weights.names import Names as Names
    from weft.weights.opening import open_weights as open_weights
    from weft.weights.pack import describe as describe
    from weft.weights.pack import quantise as quantise
    from weft.weights.safetensors import open_safetensors as open_safetensors
    from weft.weights.safetensors import write_safetensors as write_safetensors

_HOMES = {
    "Gguf": "names",
    "Metadata": "gguf_meta",
    "Names": "names",
    "StringArray": "gguf_meta",
    "TensorFile": "files",
    "TensorInfo": "files",
    "TensorView": "files",
    "config_from_gguf": "gguf_config",
    "describe": "pack",
    "gguf_from_config": "gguf_export",
    "gguf_tensors": "gguf_export",
    "open_gguf": "gguf",
    "open_safetensors": "safetensors",
    "open_weights": "opening",
    "quantise": "pack",
    "rope_factors": "gguf_export",
    "write_gguf": "gguf_export",
    "write_safetensors": "safetensors",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
