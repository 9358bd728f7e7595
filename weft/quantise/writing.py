"""A model as a GGUF file in other types, tensor by tensor, so that it needs the memory of its largest matrix only.

A run that was stopped, by Ctrl-C or kill -9, goes on where it was: what is written so far lies beside the output, with
a line that says of what, and how many tensors are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.dtype import DTYPES
from weft.errors import InputError
from weft.frozen import frozen
from weft.quantise.calibration import Calibration
from weft.quantise.encoding import encode, feedback_factor
from weft.quantise.plan import Plan, make_plan
from weft.quantise.source import open_source
from weft.quantise.tower import open_tower_source
from weft.weights import TensorView
from weft.weights.files import MadeView, replacing
from weft.weights.gguf_export import gguf_start

SOURCE = "weft.quantised.source"  # SHA-256 of what it was made from
AT_A_TIME = 1 << 22  # elements that are widened together
NOTED_AFTER = 1 << 20  # bytes of tensors that a stopped run may have to make again
BLOCK_FORMATS = 2  # the version of the block formats, which other readers check


@frozen
class Written:
    """A tensor that is complete; `lost` is the part of its square that rounding lost, 0 for one that is kept."""

    name: str
    before: str
    after: str
    nbytes: int
    lost: float


class Quantising:
    """Iterate over it: each tensor of `source` as it is written, those of an earlier run that is taken up first.

    `importance` has for some tensors, by their names in the file, how much each column matters. With `feedback`, a text
    that goes through the model, what rounding a column misses is made up for by later ones. `output` appears, with what
    was done as `output`.json beside it, when all are written.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        type: str | Plan,
        exceptions: Sequence[tuple[str, str]] = (),
        importance: Mapping[str, np.ndarray] | None = None,
        feedback: Calibration | None = None,
        threads: int = 1,
        overwrite: bool = False,
        tower: bool = False,
    ) -> None:
        self.source, self.output, self.threads = Path(source), Path(output), threads
        self._check(overwrite)
        self._opened = open_tower_source(self.source) if tower else open_source(self.source)
        self.tensors: Mapping[str, TensorView] = self._opened.tensors
        self.given_bytes = sum(view.nbytes for view in self.tensors.values())
        if isinstance(type, str):
            type = make_plan(self.tensors, type, exceptions, widen=self.source.is_dir())
        elif exceptions or set(type.types) != set(self.tensors):
            raise InputError("quantize", "must be of this model, without exceptions", field="type", given=type.name)
        self.plan: Plan = type
        self.importance = dict(importance or {})
        self._check_importance()
        self._feedback = feedback
        self._moments: dict[str, np.ndarray] = {}
        self._partial = self.output.with_name(f".{self.output.name}.partial")
        self._journal = self.output.with_name(f".{self.output.name}.partial.json")

    def _check(self, overwrite: bool) -> None:
        if self.output.suffix.lower() != ".gguf":
            raise InputError("quantize", "must end in .gguf", field="output", given=self.output.name)
        if not self.output.parent.is_dir():
            raise InputError("quantize", f"{self.output.parent} is not a folder", field="output", advice="create it")
        if self.output.exists() and self.source.samefile(self.output):
            raise InputError("quantize", "is the model itself", field="output", advice="name another file")
        if self.output.exists() and not overwrite:
            raise InputError("quantize", f"{self.output} exists", field="output", advice="name a new file, or --force")

    def _check_importance(self) -> None:
        for name, given in self.importance.items():
            view = self.tensors.get(name)
            if view is None or not view.shape:
                continue  # of a tensor that this file does not have
            if given.shape not in ((view.shape[-1],), (view.shape[0], view.shape[-1])):
                what = f"has another shape than {name} {view.shape}: it is another model's"
                raise InputError("quantize", what, field="importance", given=given.shape)

    def __len__(self) -> int:
        return len(self.plan.types)

    def __iter__(self) -> Iterator[Written]:
        views: dict[str, TensorView] = {
            name: MadeView(DTYPES[kind], self.tensors[name].shape, lambda: b"")
            for name, kind in self.plan.types.items()
        }
        source = self._opened.digest()
        metadata = dict(self._opened.metadata)
        metadata["general.file_type"] = self.plan.file_type(self.tensors)
        metadata["general.quantization_version"] = BLOCK_FORMATS
        metadata[SOURCE] = source
        start, alignment = gguf_start(views, metadata)
        key = hashlib.sha256(start + self._importance_bytes()).hexdigest()
        done = self._taken_up(key)
        with open(self._partial, "r+b" if done else "wb") as out:
            if not done:
                out.write(start)
            place, since = len(start), 0
            for number, (name, view) in enumerate(views.items()):
                size = view.nbytes + -view.nbytes % alignment
                if number >= len(done):
                    out.seek(place)
                    done.append(self._write(name, view, out))
                    out.write(bytes(-view.nbytes % alignment))
                    self._opened.release()
                    since += self.tensors[name].nbytes
                    if since >= NOTED_AFTER:
                        out.flush()
                        os.fsync(out.fileno())
                        self._note(key, done)
                        since = 0
                place += size
                yield Written(name, self.tensors[name].dtype.name, view.dtype.name, view.nbytes, done[number])
            out.truncate(place)
            os.fsync(out.fileno())
        with replacing(self.output.with_name(self.output.name + ".json")) as manifest:
            manifest.write(json.dumps(self._manifest(source, views, done), indent=1).encode() + b"\n")
        os.replace(self._partial, self.output)
        self._journal.unlink(missing_ok=True)

    def _write(self, name: str, view: TensorView, out: BinaryIO) -> float:
        """Write a tensor in its new type, some rows at a time; the part of its square that is lost."""
        stored = self.tensors[name]
        data = stored.bytes()
        if stored.dtype == view.dtype:
            out.write(np.ascontiguousarray(data).data)
            return 0.0
        columns = stored.shape[-1] if stored.shape else 1
        count = stored.size // columns
        size, step = len(data) // count, max(1, AT_A_TIME // columns)
        given = self.importance.get(name)
        # Of a stack each matrix may have its own importance, so that rows of two are never encoded together.
        height = count if given is None or given.ndim < 2 else count // len(given)
        factor = self._factor(name, view)
        off = total = 0.0
        for first, rows in _pieces(count, height, step):
            weights = given if given is None or given.ndim < 2 else given[first // height]
            part = TensorView(stored.dtype, (rows, columns), data[first * size : (first + rows) * size])
            values = np.ascontiguousarray(part.numpy(), dtype=np.float32)
            made = encode(values, view.dtype, importance=weights, factor=factor, threads=self.threads)
            out.write(np.ascontiguousarray(made.bytes()).data)
            wide = values.astype(np.float64)
            total += float((wide**2).sum())
            wide -= made.numpy()
            off += float((wide**2).sum())
        return off / total if total else 0.0

    def _factor(self, name: str, view: TensorView) -> np.ndarray | None:
        """What error feedback of a tensor needs; None for one without."""
        if self._feedback is None or not view.dtype.quantised or name not in self._feedback.able:
            return None
        if name not in self._moments:
            names = list(self.plan.types)
            after = [one for one in names[names.index(name) :] if DTYPES[self.plan.types[one]].quantised]
            self._moments = self._feedback.moments(after)
        return feedback_factor(self._moments.pop(name))

    def _importance_bytes(self) -> bytes:
        given = sorted(self.importance.items())
        fed = repr([part.tolist() for part in self._feedback.windows]).encode() if self._feedback is not None else b""
        return fed + b"".join(
            name.encode() + np.ascontiguousarray(value, np.float64).tobytes() for name, value in given
        )

    def _taken_up(self, key: str) -> list[float]:
        """What an earlier run of the same has written: of each complete tensor the part that was lost."""
        try:
            kept = json.loads(self._journal.read_text())
            if kept["key"] == key and self._partial.is_file():
                return [float(lost) for lost in kept["lost"]]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return []

    def _note(self, key: str, done: list[float]) -> None:
        with replacing(self._journal) as out:
            out.write(json.dumps({"key": key, "lost": done}).encode())

    def _manifest(self, source: str, views: Mapping[str, TensorView], done: Sequence[float]) -> dict[str, Any]:
        tensors = {
            name: {"from": self.tensors[name].dtype.name, "to": view.dtype.name, "lost": lost}
            for (name, view), lost in zip(views.items(), done)
        }
        with_importance = sorted(set(self.importance) & set(views))
        fed = 0 if self._feedback is None else self._feedback.tokens
        said = {"source": source, "type": self.plan.name, "importance": with_importance, "feedback_tokens": fed}
        return {**said, "tensors": tensors}


def _pieces(count: int, height: int, step: int) -> Iterator[tuple[int, int]]:
    """`count` rows as pieces of `step` at most, first and length, none across a multiple of `height`."""
    for start in range(0, count, height):
        yield from ((first, min(step, start + height - first)) for first in range(start, start + height, step))
