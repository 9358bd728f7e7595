"""Opens weights of any format: a file, an index of shards, or a folder."""

import os
from pathlib import Path
from typing import Any

from weft.errors import NotFoundError, UnsupportedError
from weft.weights.files import MappedFile, TensorFile
from weft.weights.gguf import MAGIC, open_gguf
from weft.weights.safetensors import INDEX_NAME, open_safetensors


def open_weights(path: str | os.PathLike[str]) -> TensorFile[Any]:
    """Open a weight file, an index of shards, or the weights in a model folder.

    In a folder the order is: index of shards, `model.safetensors`, the only `.gguf` (or the first part of the only
    split one). The first bytes of a file decide its format, not its name. Pickled files are never opened.
    """
    path = Path(path)
    if path.is_dir():
        path = _in_folder(path)
    if path.name.endswith(".json"):
        return open_safetensors(path)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise UnsupportedError(
            "weights",
            f"{path.name} may be a pickle, which can run code and is never loaded",
            advice="convert it to safetensors",
        )
    file = MappedFile(path)
    gguf = file.slice(0, min(4, file.size)) == MAGIC
    file.close()
    return open_gguf(path) if gguf else open_safetensors(path)


def _in_folder(folder: Path) -> Path:
    for name in (INDEX_NAME, "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    found = sorted(p for p in folder.glob("*.gguf") if "-of-" not in p.name or "-00001-of-" in p.name)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(p.name for p in found[:8])
        raise NotFoundError("weights", f"{folder.name} has several models: {names}", advice="name one of the files")
    raise NotFoundError("weights", f"{folder.name} has no {INDEX_NAME}, model.safetensors or .gguf file")
