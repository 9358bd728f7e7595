"""The founding binary format: `FANN`, version 1, little-endian.

    4 bytes  FANN          u32  1, the version          u32  layers
    per layer:  u32 inputs, u32 outputs, u8 activation, f32 slope if that is a leaky ReLU,
                f32 weights [outputs, inputs], f32 biases [outputs]

Layers fit each other, all numbers together are at most 100 million, and nothing follows the last layer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from weft.errors import FormatError, NotFoundError, UnsupportedError
from weft.tiny.layers import Layer
from weft.weights.files import replacing

MAGIC, VERSION = b"FANN", 1
KINDS = ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "softmax")  # by their number in the file
MAX_NUMBERS = 100_000_000
SHAPE = struct.Struct("<IIB")


def is_fann(path: Path) -> bool:
    """Whether a file begins as one of these does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise NotFoundError("tiny", f"cannot read {path}: {error.strerror or error}") from None


def to_bytes(layers: Sequence[Layer]) -> bytes:
    """The layers as a file has them."""
    return b"".join(_pieces(layers))


def _pieces(layers: Sequence[Layer]) -> Iterator[bytes]:
    numbers = sum(layer.weight.size + layer.bias.size for layer in layers)
    if numbers > MAX_NUMBERS:
        what = f"the format holds at most {MAX_NUMBERS:,} numbers, and the network has {numbers:,}"
        raise UnsupportedError("fann", what, advice="save it under a name that does not end in .fann")
    yield MAGIC + struct.pack("<II", VERSION, len(layers))
    for layer in layers:
        if layer.activation not in KINDS:
            what = f"the format has no {layer.activation}"
            raise UnsupportedError("fann", what, advice="save it under a name that does not end in .fann")
        yield SHAPE.pack(layer.inputs, layer.outputs, KINDS.index(layer.activation))
        if layer.activation == "leaky_relu":
            yield struct.pack("<f", layer.slope)
        yield layer.weight.astype("<f4").tobytes() + layer.bias.astype("<f4").tobytes()


def write(path: Path, layers: Sequence[Layer]) -> None:
    data = to_bytes(layers)
    with replacing(path) as out:
        out.write(data)


def read(path: Path) -> list[Layer]:
    return from_bytes(path.read_bytes(), path.name)


def from_bytes(data: bytes, name: str = "fann") -> list[Layer]:
    """The layers in the bytes of a file."""
    reader = _Reader(data, name)
    if reader.take(4, "the magic") != MAGIC:
        raise FormatError(name, "does not begin with FANN")
    version, count = struct.unpack("<II", reader.take(8, "the header"))
    if version != VERSION:
        raise FormatError(name, f"must be {VERSION}", field="version", given=version)
    layers: list[Layer] = []
    total = 0
    for number in range(count):
        inputs, outputs, kind = SHAPE.unpack(reader.take(SHAPE.size, "a layer"))
        if kind >= len(KINDS):
            raise FormatError(
                name, f"has the activation {kind}; 0 to {len(KINDS) - 1} are known", field="layer", index=number
            )
        if not inputs or not outputs or (layers and inputs != layers[-1].outputs):
            before = f" after {layers[-1].outputs} outputs" if layers else ""
            raise FormatError(name, f"has {inputs} inputs{before} and {outputs} outputs", field="layer", index=number)
        if KINDS[kind] == "softmax" and number < count - 1:
            raise FormatError(name, "is a softmax, which is for the last layer", field="layer", index=number)
        total += inputs * outputs + outputs
        if total > MAX_NUMBERS:
            raise FormatError(name, f"holds more than {MAX_NUMBERS:,} numbers")
        slope = struct.unpack("<f", reader.take(4, "a slope"))[0] if KINDS[kind] == "leaky_relu" else 0.01
        weight = reader.floats(inputs * outputs).reshape(outputs, inputs)
        bias = reader.floats(outputs)
        if not (math.isfinite(slope) and np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise FormatError(name, "has numbers that are not finite", field="layer", index=number)
        layers.append(Layer(weight, bias, KINDS[kind], slope))
    if reader.at != len(data):
        raise FormatError(name, f"has {len(data) - reader.at} bytes after the last layer")
    if not layers:
        raise FormatError(name, "has no layers")
    return layers


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name, self.at = data, name, 0

    def take(self, count: int, what: str) -> bytes:
        if self.at + count > len(self.data):
            raise FormatError(self.name, f"ends inside {what}: {len(self.data)} bytes are there")
        self.at += count
        return self.data[self.at - count : self.at]

    def floats(self, count: int) -> np.ndarray:
        return np.frombuffer(self.take(4 * count, "a layer's numbers"), "<f4").astype(np.float32)
