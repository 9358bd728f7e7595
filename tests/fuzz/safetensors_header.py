"""B3. A safetensors file: refused with a typed error, or all of its tensors can be read and the package agrees."""

import random
import struct

from fuzzing import Scratch, odd_bytes, odd_number, refusals
from json_edits import edit_json

from weft.weights import open_safetensors

try:
    from safetensors import SafetensorError, deserialize
except ImportError:  # the comparison is left out
    deserialize = None

SCRATCH = Scratch()


def check(data: bytes) -> None:
    path = SCRATCH.write("model.safetensors", data)
    accepted = False
    with refusals(SCRATCH.folder), open_safetensors(path) as file:
        for tensor in file.tensors.values():
            assert tensor.bytes().size == tensor.nbytes
        accepted = True
    if accepted and deserialize is not None:
        try:
            deserialize(data)
        except SafetensorError as error:
            raise AssertionError(f"weft accepts what safetensors refuses: {error}") from None


def mutate(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 10 or length > len(data) - 8:
        return odd_bytes(rng, data)
    header, rest = data[8 : 8 + length], data[8 + length :]
    kind = rng.randrange(8)
    if kind == 0:
        return struct.pack("<Q", odd_number(rng, length, 64)) + header + rest
    if kind == 1:
        rest = rest[: rng.randrange(len(rest) + 1)] + bytes(rng.randrange(9))
    elif kind == 2:
        header = odd_bytes(rng, header)
    else:
        header = edit_json(header.rstrip(b" "), rng)
    return struct.pack("<Q", len(header)) + header + rest
