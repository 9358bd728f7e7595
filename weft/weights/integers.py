"""Matrices that AWQ, GPTQ and compressed-tensors folders store as integers with scales, as blocks that kernels read.

Codes are moved and scales repeated; nothing is rounded: `scale * (code - zero)` of a group of 32, 64, 128 or more
inputs is that of each block of 32 in it. Blocks are q4_0 where every zero point is in the middle of the range, else
q4_z; bytes are q8_0. Scales that are f16, or bf16 of ordinary size, are exact halves; others are rounded to them.
A matrix is converted each time it is read, so that only one of them takes memory beside what the kernels keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from weft.dtype import DTYPES
from weft.errors import FormatError, UnsupportedError, WeightError
from weft.weights.files import MadeView, TensorView

if TYPE_CHECKING:
    import numpy as np

CONFIG = "quantization_config"
BLOCK = 32
METHODS = ("compressed-tensors", "awq", "gptq")
OTHERS = ("mxfp4",)  # gpt_oss: weights/experts.py reads it
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word is output AWQ_ORDER[i] of eight
LARGEST = 65504.0  # of a half

_ADVICE = "convert the model to safetensors in bf16 or f16, or take a GGUF file of it"


def integer_matrices(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a folder with `X.weight` for the parts of each quantised matrix X; `config` is config.json."""
    about = quantisation(config)
    if about is None:
        return dict(tensors)
    method = about.get("quant_method")
    if method is None or method in OTHERS:  # no method: the tensors say what they are
        return dict(tensors)
    if method not in METHODS:
        advice = f"weft reads {', '.join(METHODS)} and GGUF files; or {_ADVICE}"
        raise UnsupportedError(
            "config.json", "is not supported", field=f"{CONFIG}.quant_method", given=method, advice=advice
        )
    reader = {"compressed-tensors": _Compressed, "awq": _Awq, "gptq": _Gptq}[method](tensors, about)
    found = {name: view for name, view in tensors.items() if not reader.is_part(name)}
    for name in tensors:
        if name.endswith(reader.codes):
            base = name.removesuffix(reader.codes)
            found[f"{base}.weight"] = reader.matrix(base)
    return found


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What config.json says about quantised weights; None where it says nothing."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for name in (CONFIG, "compression_config"):
            about = place.get(name)
            if about is None:
                continue
            if not isinstance(about, dict):
                raise FormatError("config.json", "must be an object", field=name, given=about)
            return {"quant_method": "compressed-tensors", **about} if name != CONFIG else about
    return None


class _Reader:
    """One format: `codes` is how the name of the tensor with codes ends, `parts` how the others do."""

    codes = ""
    parts: tuple[str, ...] = ()

    def __init__(self, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.tensors, self.about = tensors, about

    def is_part(self, name: str) -> bool:
        """Whether this tensor is a part of a quantised matrix."""
        return any(name.endswith(end) and name.removesuffix(end) + self.codes in self.tensors for end in self.parts)

    def matrix(self, base: str) -> TensorView:
        raise NotImplementedError

    def refuse(self, what: str, *, field: str, given: Any, advice: str = _ADVICE) -> NoReturn:
        method = self.about.get("quant_method")
        raise UnsupportedError(
            "config.json", f"{method}: {what}", field=f"{CONFIG}.{field}", given=given, advice=advice
        )

    def part(self, base: str, end: str, kinds: tuple[str, ...], shape: tuple[int, ...] | None = None) -> Any:
        """The tensor `base + end`, checked."""
        view = self.tensors.get(base + end)
        if view is None:
            raise WeightError("weights", f"{base}{end} is missing, a part of the quantised matrix {base}")
        if view.dtype.name not in kinds or (shape is not None and view.shape != shape):
            wanted = f"{shape or 'a matrix'} of {' or '.join(kinds)}"
            raise WeightError("weights", f"{base}{end} has shape {view.shape} of {view.dtype}, not {wanted}")
        if shape is None and len(view.shape) != 2:
            raise WeightError("weights", f"{base}{end} has shape {view.shape}; a matrix has two axes")
        return view

    def sizes(self, base: str, rows: int, cols: int, groups: int) -> int:
        """Inputs of a group; rows and groups must be whole blocks."""
        if not rows or not groups or cols % groups or cols % BLOCK or cols // groups % BLOCK:
            what = f"{base} has rows of {cols} in {groups} groups; weft reads groups of whole blocks of {BLOCK}"
            raise UnsupportedError("weights", what, advice=_ADVICE)
        return cols // groups


WORDS = ("i32", "u32")
SCALES = ("f16", "bf16", "f32")


class _Gptq(_Reader):
    """Eight codes of neighbouring inputs in a word; zeros of neighbouring outputs. Version 1 stores zeros less one."""

    codes, parts = ".qweight", (".qweight", ".qzeros", ".scales", ".g_idx")

    def __init__(self, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        super().__init__(tensors, about)
        kind = about.get("checkpoint_format", "gptq")
        if kind not in ("gptq", "gptq_v2"):
            self.refuse("weft reads the layouts gptq and gptq_v2", field="checkpoint_format", given=kind)
        self.less = 1 if kind == "gptq" else 0
        bits = about.get("bits")
        if bits not in (4, 8):
            self.refuse("weft reads 4 and 8 bits", field="bits", given=bits)
        self.bits = int(bits)

    def matrix(self, base: str) -> TensorView:
        words = self.part(base, ".qweight", WORDS)
        rows, bits = words.shape[1], self.bits
        cols = words.shape[0] * 32 // bits
        index = self.tensors.get(f"{base}.g_idx")
        if index is not None and index.shape != (cols,):
            # gptqmodel's "dynamic" may give a matrix other bits than the config
            what = f"{base} has {index.shape} inputs in g_idx and {cols} in qweight at {bits} bits"
            raise UnsupportedError("weights", what, advice=_ADVICE)
        scales = self.part(base, ".scales", SCALES)
        groups = scales.shape[0]
        if scales.shape[1] != rows:
            raise WeightError("weights", f"{base}.scales has shape {scales.shape}, qweight has {rows} outputs")
        group = self.sizes(base, rows, cols, groups)
        zeros = self.part(base, ".qzeros", WORDS, (groups, -(-rows * bits // 32)))
        if index is not None:
            _check_order(base, index, group)
        middle = bool((_along(zeros, bits, rows) + self.less == 1 << (bits - 1)).all())
        if bits == 8:
            if not middle:
                self.refuse("8 bits with zero points are not supported", field="sym", given=self.about.get("sym"))
            return _bytes_view(rows, cols, words, lambda: _turned(words).view("u1") ^ 128, lambda: _numbers(scales).T)
        zero = None if middle else lambda: (_along(zeros, bits, rows) + self.less).T
        return _nibbles_view(
            rows, cols, words, lambda: _pairs(_turned(words).view("u1")), lambda: _numbers(scales).T, zero
        )


class _Awq(_Reader):
    """Eight codes of neighbouring outputs in a word, in an order of its own; the zeros likewise."""

    codes, parts = ".qweight", (".qweight", ".qzeros", ".scales")

    def __init__(self, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        super().__init__(tensors, about)
        version = str(about.get("version", about.get("format", "gemm"))).lower()
        if version != "gemm":
            self.refuse("weft reads the layout gemm", field="version", given=version)
        bits = about.get("bits", about.get("w_bit"))
        if bits != 4:
            self.refuse("weft reads 4 bits", field="bits", given=bits)
        if about.get("zero_point") is False:
            self.refuse("matrices without zero points are not supported", field="zero_point", given=False)

    def matrix(self, base: str) -> TensorView:
        words = self.part(base, ".qweight", WORDS)
        cols, rows = words.shape[0], words.shape[1] * 8
        scales = self.part(base, ".scales", SCALES)
        groups = scales.shape[0]
        if scales.shape[1] != rows:
            raise WeightError("weights", f"{base}.scales has shape {scales.shape}, qweight has {rows} outputs")
        self.sizes(base, rows, cols, groups)
        zeros = self.part(base, ".qzeros", WORDS, (groups, rows // 8))
        codes, zero = partial(_awq_codes, words), partial(_awq_codes, zeros)
        return _nibbles_view(rows, cols, words, lambda: _halves(codes()), lambda: _numbers(scales).T, zero)


class _Compressed(_Reader):
    """Codes plus half their range, of neighbouring inputs in a word; int8 as they are. Zeros of outputs in a word."""

    codes, parts = ".weight_scale", (
        *(".weight_packed", ".weight", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"),
        *(".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point"),
    )  # fmt: skip
    FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "mixed-precision", "dense")

    def __init__(self, tensors: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        super().__init__(tensors, about)
        groups = about.get("config_groups")
        if not isinstance(groups, dict):
            what = "must be an object"
            raise FormatError("config.json", what, field=f"{CONFIG}.config_groups", given=groups)
        sparsity = about.get("sparsity_config")
        if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
            self.refuse("sparse weights are not supported", field="sparsity_config.format", given=sparsity["format"])
        for name, group in groups.items():
            kind = group.get("format") or about.get("format") or "pack-quantized" if isinstance(group, dict) else None
            if kind not in self.FORMATS:
                advice = f"weft reads pack-quantized and int-quantized; {_ADVICE}"
                self.refuse("this layout is not supported", field="format", given=kind, advice=advice)
            weights = group.get("weights")
            if not isinstance(weights, dict):
                continue
            place = f"config_groups.{name}.weights"
            if weights.get("type", "int") != "int":
                self.refuse("weft reads integers", field=f"{place}.type", given=weights.get("type"))
            if weights.get("num_bits") not in (4, 8):
                self.refuse("weft reads 4 and 8 bits", field=f"{place}.num_bits", given=weights.get("num_bits"))
            if weights.get("strategy") not in ("group", "channel", "tensor", None):
                self.refuse(
                    "weft reads groups, channels and tensors", field=f"{place}.strategy", given=weights["strategy"]
                )

    def matrix(self, base: str) -> TensorView:
        packed = f"{base}.weight_packed" in self.tensors
        codes = self.part(base, ".weight_packed", WORDS) if packed else self.part(base, ".weight", ("i8",))
        rows, cols = self._shape(base, codes) if packed else codes.shape
        bits = 32 * codes.shape[1] // cols if packed else 8
        if packed and (codes.shape != (rows, cols * bits // 32) or bits not in (4, 8)):
            what = f"{base}.weight_packed has shape {codes.shape}, which is not {rows} x {cols} of 4 or 8 bits"
            raise WeightError("weights", what)
        scales = self.tensors[f"{base}.weight_scale"]
        if scales.dtype.name not in SCALES or (scales.size not in (1, rows) and scales.shape[:1] != (rows,)):
            what = f"{base}.weight_scale has shape {scales.shape} of {scales.dtype}; the matrix has {rows} outputs"
            raise WeightError("weights", what)
        groups = max(1, scales.size // rows)
        group = self.sizes(base, rows, cols, groups)
        index = self.tensors.get(f"{base}.weight_g_idx")
        if index is not None:
            _check_order(base, index, group)
        zero = self._zeros(base, rows, groups, bits)
        import numpy as np

        def scale() -> np.ndarray:
            return np.broadcast_to(_numbers(scales).reshape(-1, groups), (rows, groups))

        if bits == 8:
            if zero is not None and np.any(zero() != 128):
                what = f"{base}: 8 bits with zero points are not supported"
                raise UnsupportedError("weights", what, advice=_ADVICE)
            flip = 128 if packed else 0
            return _bytes_view(rows, cols, codes, lambda: codes.bytes().reshape(rows, cols) ^ flip, scale)
        pairs = partial(_packed_pairs, codes, rows)
        return _nibbles_view(rows, cols, codes, pairs, scale, zero)

    def _shape(self, base: str, codes: Any) -> tuple[int, int]:
        shape = self.tensors.get(f"{base}.weight_shape")
        if shape is None or shape.size != 2 or shape.dtype.name not in ("i32", "i64"):
            raise WeightError("weights", f"{base}.weight_shape is missing or not two integers")
        rows, cols = (int(size) for size in shape.numpy().reshape(-1))
        if rows != codes.shape[0] or not 0 < cols <= codes.shape[1] * 32:
            raise WeightError("weights", f"{base}.weight_shape is {rows} x {cols}, weight_packed has {codes.shape}")
        return rows, cols

    def _zeros(self, base: str, rows: int, groups: int, bits: int) -> Callable[[], np.ndarray] | None:
        """The zero points as codes [rows, groups]: packed like codes along the outputs, or int8."""
        view = self.tensors.get(f"{base}.weight_zero_point")
        if view is None:
            return None
        if view.dtype.name == "i8" and view.size in (1, rows * groups):
            return lambda: view.numpy().reshape(-1, groups).astype("i4") + (1 << (bits - 1))
        if view.dtype.name in WORDS and view.shape == (-(-rows * bits // 32), groups):
            return lambda: _along_words(view.elements().T, bits)[:, :rows].T
        raise WeightError("weights", f"{base}.weight_zero_point has shape {view.shape} of {view.dtype}")


def _check_order(base: str, index: Any, group: int) -> None:
    """Act-order: the inputs of a group lie anywhere."""
    import numpy as np

    if len(index.shape) != 1 or index.dtype.name not in ("i32", "i64"):
        raise WeightError("weights", f"{base}: g_idx has shape {index.shape} of {index.dtype}")
    values = index.numpy()
    # compressed-tensors writes -1 where a matrix has no order of its own
    if not (np.array_equal(values, np.arange(len(values)) // group) or (values == -1).all()):
        what = f"{base} was quantised in activation order (desc_act): its groups are not neighbouring inputs"
        advice = "take a version without desc_act (compressed-tensors: actorder weight or static), or a GGUF file"
        raise UnsupportedError("weights", what, advice=advice)


def _numbers(scales: Any) -> np.ndarray:
    """Scales as halves."""
    import numpy as np

    wide = scales.numpy().astype(np.float32)
    if not (np.abs(wide) <= LARGEST).all():
        raise WeightError("weights", f"a scale of a quantised matrix is not finite or above {LARGEST:g}")
    return wide.astype("<f2")


def _along_words(words: np.ndarray, bits: int) -> np.ndarray:
    """The codes of words [n, m] one after another [n, m * 32 / bits]."""
    import numpy as np

    data = np.ascontiguousarray(words).view("u1").reshape(len(words), -1)
    if bits == 8:
        return data.astype(np.int32)
    codes = np.empty((len(data), data.shape[1] * 2), np.int32)
    codes[:, 0::2], codes[:, 1::2] = data & 15, data >> 4
    return codes


def _along(view: Any, bits: int, count: int) -> np.ndarray:
    return _along_words(view.elements(), bits)[:, :count]


def _turned(words: Any) -> np.ndarray:
    """Words [inputs, outputs] as [outputs, inputs]."""
    import numpy as np

    return np.ascontiguousarray(words.elements().T)


def _awq_codes(words: Any) -> np.ndarray:
    """Words [n, outputs / 8] as codes [outputs, n]."""
    import numpy as np

    stored = words.elements()
    codes = np.empty((stored.shape[1] * 8, stored.shape[0]), np.uint8)
    for place, output in enumerate(AWQ_ORDER):
        codes[output::8] = (stored >> (4 * place) & 15).astype(np.uint8).T
    return codes


def _halves(codes: np.ndarray) -> np.ndarray:
    """Codes [rows, cols] in the order of a block: elements i and i + 16 in a byte; [rows, blocks, 16]."""
    parts = codes.reshape(len(codes), -1, 2, 16)
    return parts[:, :, 0] | parts[:, :, 1] << 4


def _pairs(data: np.ndarray) -> np.ndarray:
    """Neighbours in a byte, [rows, cols / 2], in the order of a block."""
    import numpy as np

    low, high = data.reshape(len(data), -1, 2, 8).transpose(2, 0, 1, 3)
    made = np.empty((*low.shape[:2], 16), np.uint8)
    made[..., 0::2] = (low & 15) | (high << 4)
    made[..., 1::2] = (low >> 4) | (high & 0xF0)
    return made


def _packed_pairs(words: Any, rows: int) -> np.ndarray:
    return _pairs(words.bytes().reshape(rows, -1))


Values = Callable[[], "np.ndarray"]


def _blocks(rows: int, cols: int, words: Any, fields: tuple[Values, ...], codes: Values) -> np.ndarray:
    """Halves of each group, repeated for its blocks, before the codes of every block; the file's pages are freed."""
    import numpy as np

    parts = [np.asarray(field(), "<f2") for field in fields]
    found = codes()
    found = found.reshape(rows, cols // BLOCK, -1)
    made = np.empty((rows, cols // BLOCK, 2 * len(parts) + found.shape[2]), np.uint8)
    for place, part in enumerate(parts):
        repeated = np.repeat(np.ascontiguousarray(part), cols // BLOCK // part.shape[1], axis=1)
        made[..., 2 * place : 2 * place + 2] = repeated.view("u1").reshape(rows, -1, 2)
    made[..., 2 * len(parts) :] = found
    if hasattr(words, "release"):
        words.release()
    return made


def _nibbles_view(rows: int, cols: int, words: Any, codes: Values, scales: Values, zeros: Values | None) -> TensorView:
    fields = (scales,) if zeros is None else (scales, zeros)
    kind = DTYPES["q4_0" if zeros is None else "q4_z"]
    return MadeView(kind, (rows, cols), partial(_blocks, rows, cols, words, fields, codes))


def _bytes_view(rows: int, cols: int, words: Any, codes: Values, scales: Values) -> TensorView:
    return MadeView(DTYPES["q8_0"], (rows, cols), partial(_blocks, rows, cols, words, (scales,), codes))
