"""A Hugging Face folder with its matrices as integers: compressed-tensors' pack-quantized layout, module by module.

transformers with compressed-tensors reads int8 and int4, too. Everything else in the folder travels along. A run that
was stopped goes on where it was; the output appears when it is complete, so a folder of that name is always whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft import digest
from weft.dtype import DTYPES, DType
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.quantise.grouped import packed_words, rounded
from weft.quantise.rotating import rotated
from weft.quantise.writing import Written
from weft.weights import TensorView, open_weights, strict_json
from weft.weights.files import replacing
from weft.weights.integers import CONFIG, integer_matrices
from weft.weights.rotation import refuse_rotated

MANIFEST = "weft-quantised.json"
FOLDER_TYPES = {"int8": (8, True), "int4": (4, True), "int4-asym": (4, False)}
GROUPS = (32, 64, 128)
ROW = "row"  # as a group: one scale a row
WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".gguf",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
)
ELSEWHERE = ("onnx", "openvino")  # the same weights for other programs

# Looked up rather than multiplied, or small: embeddings, routers, scores. Conv1D has its inputs first.
_KEPT = re.compile(
    r"embed|(^|\.)(wte|wpe|shared|lm_head|gate|router|classifier|score|c_attn|c_proj|c_fc|conv1d)\.weight$"
)


@frozen
class Scheme:
    """How matrices are stored: `group` is None for one scale a row."""

    name: str
    bits: int
    symmetric: bool
    group: int | None


def make_scheme(type: str, group: int | str | None = None) -> Scheme:
    """int8 has one scale a row; 4 bits have groups, of 64 unless said otherwise, or "row"."""
    if type not in FOLDER_TYPES:
        raise InputError("quantize", f"must be one of {', '.join(FOLDER_TYPES)}", field="type", given=type)
    bits, symmetric = FOLDER_TYPES[type]
    if bits == 8 and group is not None:
        raise InputError("quantize", "int8 has one scale a row", field="group", given=group, advice="leave --group out")
    if group not in (None, ROW, *GROUPS):
        what = f"must be one of {', '.join(map(str, GROUPS))} and {ROW}"
        raise InputError("quantize", what, field="group", given=group)
    columns = None if bits == 8 or group == ROW else int(group or 64)
    return Scheme(type, bits, symmetric, columns)


@frozen(eq=False)
class _Part:
    """One tensor of the output: where its bytes begin in the data."""

    dtype: DType
    shape: tuple[int, ...]
    place: int

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(int(np.prod(self.shape)))


class QuantisingFolder:
    """Iterate over it: each tensor of the folder `source` as it is written, those of an earlier run first.

    With `rotate` ("inner" or "all") the model is rotated first (weft/weights/rotation), and `check` holds every tensor
    to what it was before any is written.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        type: str,
        group: int | str | None = None,
        rotate: str | None = None,
        seed: int = 0,
        threads: int = 1,
        overwrite: bool = False,
    ) -> None:
        self.source, self.output, self.threads = Path(source), Path(os.path.abspath(output)), threads
        self.scheme, self._overwrite = make_scheme(type, group), overwrite
        self._check()
        self.config = _config(self.source)
        self._opened = open_weights(self.source)
        self.tensors: Mapping[str, Any] = integer_matrices(self._opened.tensors, self.config)
        self.given_bytes = sum(view.nbytes for view in self.tensors.values())
        refuse_rotated("quantize", self.config, "it cannot be quantised again")
        self.rotated = None if rotate is None else rotated(self.source, self.tensors, self.config, rotate, seed)
        self._checked: float | None = None
        if self.rotated is not None:
            self.tensors, self.config = self.rotated.tensors, self.rotated.config(self.config)
        self._partial = self.output.with_name(f".{self.output.name}.partial")
        self._chosen = {name for name, view in self.tensors.items() if self._is_quantised(name, view)}
        if not self._chosen:
            what = f"{self.source.name} has no matrix whose rows are whole groups of {self.scheme.group or 32}"
            raise UnsupportedError("quantize", what, advice="choose another --group")

    def _check(self) -> None:
        if not self.source.is_dir() or not (self.source / "config.json").is_file():
            advice = "give a folder with config.json and safetensors; GGUF files take GGUF's types, such as q4_k_m"
            what = "is not a Hugging Face folder"
            raise UnsupportedError("quantize", what, field="model", given=str(self.source), advice=advice)
        if not self.output.parent.is_dir():
            raise InputError("quantize", f"{self.output.parent} is not a folder", field="output", advice="create it")
        if self.output.exists() and not self.output.is_dir():
            raise InputError("quantize", f"{self.output} is a file", field="output", advice="name a folder")
        if self.output.exists() and self.source.samefile(self.output):
            raise InputError("quantize", "is the model itself", field="output", advice="name another folder")
        if self.output.exists() and not self._overwrite:
            advice = "name a new folder, or --force"
            raise InputError("quantize", f"{self.output} exists", field="output", advice=advice)

    def _is_quantised(self, name: str, view: Any) -> bool:
        whole = self.scheme.group or 32
        plain = name.endswith(".weight") and len(view.shape) == 2 and view.dtype.stores_weights
        return plain and view.shape[1] % whole == 0 and not _KEPT.search(name)

    def __len__(self) -> int:
        return len(self.tensors)

    def check(self, tell: Callable[[int, int], None] = lambda done, all: None) -> float:
        """Of a rotated model, the largest relative difference between results of a tensor and of the one it was; an
        error where it is too large. `tell` hears how many tensors of how many are checked."""
        if self._checked is None:
            self._checked = 0.0 if self.rotated is None else self.rotated.check(tell)
        return self._checked

    def __iter__(self) -> Iterator[Written]:
        self.check()
        source = _digest(self._opened.files)
        parts, size = self._layout()
        header = _header(parts, size)
        seed = "" if self.rotated is None else f"rotated {vars(self.rotated.rotation)}"
        key = hashlib.sha256(header + source.encode() + seed.encode()).hexdigest()
        done = self._taken_up(key)
        self._partial.mkdir(exist_ok=True)
        weights = self._partial / "model.safetensors"
        with open(weights, "r+b" if done else "wb") as out:
            if not done:
                out.write(header)
                out.truncate(len(header) + size)
            for number, (name, view) in enumerate(self.tensors.items()):
                if number >= len(done):
                    made, lost = self._made(name, view)
                    for part, value in made.items():
                        out.seek(len(header) + parts[part].place)
                        out.write(value.bytes().data)
                    out.flush()
                    os.fsync(out.fileno())
                    done.append(lost)
                    self._note(key, done)
                    if hasattr(view, "release"):
                        view.release()
                kept = name not in self._chosen
                after = self.stored(name).name if kept else self.scheme.name
                nbytes = sum(parts[part].nbytes for part in self._names(name))
                yield Written(name, view.dtype.name, after, nbytes, done[number])
        self._finish(source, done)

    def stored(self, name: str) -> DType:
        """The type of a tensor that stays as it is: float32 matrices become f16, which loses little."""
        view = self.tensors[name]
        wide = view.dtype.name == "f32" and len(view.shape) > 1
        return (
            DTYPES["f16" if wide or view.dtype.quantised else view.dtype.name]
            if view.dtype.name in DTYPES
            else view.dtype
        )

    def _names(self, name: str) -> list[str]:
        if name not in self._chosen:
            return [name]
        ends = ["_packed", "_scale", "_shape", *([] if self.scheme.symmetric else ["_zero_point"])]
        return [name + end for end in ends]

    def _layout(self) -> tuple[dict[str, _Part], int]:
        """Where every tensor of the output lies: the widest elements first, so that all are aligned."""
        bits, found = self.scheme.bits, {}
        for name, view in self.tensors.items():
            if name not in self._chosen:
                found[name] = (self.stored(name), view.shape)
                continue
            rows, cols = view.shape
            groups = cols // (self.scheme.group or cols)
            found[f"{name}_packed"] = (DTYPES["i32"], (rows, cols * bits // 32))
            found[f"{name}_scale"] = (DTYPES["f16"], (rows, groups))
            found[f"{name}_shape"] = (DTYPES["i64"], (2,))
            if not self.scheme.symmetric:
                found[f"{name}_zero_point"] = (DTYPES["i32"], (-(-rows * bits // 32), groups))
        parts, place = {}, 0
        for name, (dtype, shape) in sorted(found.items(), key=lambda item: (-item[1][0].size_bytes, item[0])):
            parts[name] = _Part(dtype, tuple(shape), place)
            place += parts[name].nbytes
        return parts, place

    def _made(self, name: str, view: Any) -> tuple[dict[str, TensorView], float]:
        """The tensors that stand for one, and the part of its square that is lost."""
        if name not in self._chosen:
            dtype = self.stored(name)
            if dtype == view.dtype:
                return {name: view}, 0.0
            values = view.numpy()
            made = values.astype(np.float16)
            if not np.isfinite(made).all():
                raise InputError("quantize", f"{name} has values that no half holds", field="model")
            return {name: TensorView.of(made)}, _lost(values, made)
        scheme, values = self.scheme, np.ascontiguousarray(view.numpy(), np.float32)
        if not np.isfinite(values).all():
            raise InputError("quantize", f"{name} has values that are not finite", field="model")
        found = rounded(values, bits=scheme.bits, group=scheme.group, symmetric=scheme.symmetric, threads=self.threads)
        stored: dict[str, Any] = {
            f"{name}_packed": packed_words(found.codes, scheme.bits),
            f"{name}_scale": found.scales,
            f"{name}_shape": np.array(values.shape, np.int64),
        }
        if not scheme.symmetric:
            stored[f"{name}_zero_point"] = np.ascontiguousarray(packed_words(found.zeros.T, scheme.bits).T)
        return {part: TensorView.of(value) for part, value in stored.items()}, _lost(values, found.dense())

    def _described(self) -> dict[str, Any]:
        """config.json's quantization_config."""
        scheme = self.scheme
        weights = {
            "num_bits": scheme.bits,
            "type": "int",
            "symmetric": scheme.symmetric,
            "strategy": "channel" if scheme.group is None else "group",
            "group_size": scheme.group,
            "dynamic": False,
        }
        matrices = [name for name, view in self.tensors.items() if name.endswith(".weight") and len(view.shape) == 2]
        ignored = [
            name.removesuffix(".weight") for name in matrices if name not in self._chosen and "embed" not in name
        ]
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": sorted({*ignored, "lm_head"}),
        }

    def _finish(self, source: str, done: list[float]) -> None:
        _copy_rest(self.source, self._partial)
        config = {**self.config, CONFIG: self._described()}
        config.pop("compression_config", None)
        (self._partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {
            name: {"from": view.dtype.name, "to": self.scheme.name, "lost": lost}
            for (name, view), lost in zip(self.tensors.items(), done)
            if name in self._chosen
        }
        manifest: dict[str, Any] = {"source": source, "type": self.scheme.name, "group": self.scheme.group}
        if self.rotated is not None:
            manifest["rotation"] = {**vars(self.rotated.rotation), "difference": self._checked}
        manifest["tensors"] = tensors
        (self._partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        (self._partial / ".journal").unlink()
        old = self.output.with_name(f".{self.output.name}.{os.urandom(4).hex()}.old")
        if self.output.exists():
            os.replace(self.output, old)
        os.replace(self._partial, self.output)
        shutil.rmtree(old, ignore_errors=True)

    def _taken_up(self, key: str) -> list[float]:
        try:
            kept = json.loads((self._partial / ".journal").read_text())
            if kept["key"] == key and (self._partial / "model.safetensors").is_file():
                return [float(lost) for lost in kept["lost"]]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        shutil.rmtree(self._partial, ignore_errors=True)
        return []

    def _note(self, key: str, done: list[float]) -> None:
        with replacing(self._partial / ".journal") as out:
            out.write(json.dumps({"key": key, "lost": done}).encode())


def _config(folder: Path) -> dict[str, Any]:
    from weft.errors import FormatError

    try:
        value = strict_json.parse(strict_json.text_of((folder / "config.json").read_bytes()), infinity=True)
    except strict_json.JsonError as error:
        raise FormatError("config.json", f"malformed JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError("config.json", "the document must be an object")
    return value


def _digest(files: Any) -> str:
    found = []
    for file in files:
        with open(file.path, "rb") as opened:
            found.append(digest.of_file(opened))
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _lost(values: np.ndarray, made: np.ndarray) -> float:
    off = size = 0.0
    for first in range(0, len(values), 1024):
        part = values[first : first + 1024].astype(np.float64)
        off += float(((part - made[first : first + 1024]) ** 2).sum())
        size += float((part**2).sum())
    return off / size if size else 0.0


def _header(parts: Mapping[str, _Part], size: int) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, part in parts.items():
        span = [part.place, part.place + part.nbytes]
        entries[name] = {"dtype": part.dtype.safetensors, "shape": list(part.shape), "data_offsets": span}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _copy_rest(source: Path, target: Path) -> None:
    """Tokenizer, template, pooling and whatever else is beside the weights."""
    for path in sorted(source.iterdir()):
        if path.name.startswith(".") or path.name in (*ELSEWHERE, "config.json", MANIFEST):
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)
        elif path.is_file() and not path.name.endswith(WEIGHTS):
            shutil.copyfile(path, target / path.name)
