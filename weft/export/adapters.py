"""An adapter alone, as one file for the bundles of its base: what `weft export --adapter FOLDER --alone` does.

The file is safetensors: a tensor is named by the weight's table in the program with adapters and by what it is (`down`,
`up`, `scale`, `gain` or `shift`, as AdapterWeights has them). The metadata have the digest of the base's weights, since
gains of DoRA and trained biases are computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, WeftError
from weft.frozen import frozen
from weft.weights.files import TensorView
from weft.weights.safetensors import in_written_order, open_safetensors, write_safetensors

if TYPE_CHECKING:
    from weft.runtime.adapters import Adapters

VERSION = "1"


@frozen
class ExportedAdapter:
    """An adapter's file that was written: `base` is the digest of the weights that it is for, `digest` of its own."""

    path: Path
    rank: int
    nbytes: int
    base: str
    digest: str


class BaseDigest:
    """The digest of a model's weights, whatever their order and files, the program and the arithmetic."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        self._lines.append(f"{name} {dtype} {list(shape)} {sha256(data).hexdigest()}\n")

    def finish(self) -> str:
        return sha256("".join(sorted(self._lines)).encode()).hexdigest()


def write_adapter(
    adapters: Adapters, folder: Path, output: Path, base: Callable[[], str], *, overwrite: bool
) -> ExportedAdapter:
    """Write the adapter in `folder`, which is checked against the model of `adapters`, to the file `output`."""
    if output.is_dir():
        raise InputError("export", "is a folder; an adapter is one file", field="output", given=str(output))
    if output.exists() and not overwrite:
        raise InputError("export", "exists", field="output", given=str(output), advice="give --force to replace it")
    if output.exists() and not _is_written(output):
        what = "is not an adapter that was written alone, so it is not replaced"
        raise InputError("export", what, field="output", given=str(output), advice="give another name")
    tensors = dict(_tensors(adapters, folder))
    own = sha256()
    for name in in_written_order(tensors):
        own.update(tensors[name].bytes().data)
    about = {"weft_adapter": VERSION, "name": folder.resolve().name, "base": base(), "sha256": own.hexdigest()}
    output.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(output, tensors, about)
    rank = max((view.shape[0] for name, view in tensors.items() if name.endswith(".down")), default=0)
    return ExportedAdapter(output, rank, output.stat().st_size, about["base"], about["sha256"])


def _is_written(file: Path) -> bool:
    try:
        return "weft_adapter" in open_safetensors(file).metadata
    except WeftError:
        return False


def _tensors(adapters: Adapters, folder: Path) -> Iterable[tuple[str, TensorView]]:
    for place, values in adapters.values(folder):
        for what, view in _in_one_type(values).items():
            yield f"{place.table}.{what}", view


def _in_one_type(values: Mapping[str, Any]) -> dict[str, TensorView]:
    """The tensors of a part; matrices of two types are widened, vectors are float32."""
    import numpy as np

    views = {what: TensorView.of(value) for what, value in values.items() if value is not None}
    kinds = {views[what].dtype.name for what in ("down", "up") if what in views}
    wide = {what for what in views if what not in ("down", "up") or len(kinds) > 1}
    return {
        what: TensorView.of(np.ascontiguousarray(view.numpy(), np.float32)) if what in wide else view
        for what, view in views.items()
    }
