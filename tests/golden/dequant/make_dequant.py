"""Write dequant.json: what the `gguf` package makes of fixed random blocks of every type.

    python tests/golden/dequant/make_dequant.py

The blocks are not stored: `blocks` makes them from the type's name. Of the values the file keeps the SHA-256 (float32,
little-endian, every NaN as the plain one) and the first eight, so that a difference can be looked at.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

BLOCKS = 64
TARGET = Path(__file__).resolve().with_name("dequant.json")
sys.path.insert(0, str(TARGET.parents[1]))


def blocks(name: str, size_bytes: int) -> np.ndarray:
    """64 blocks of type `name`, uint8: SHA-256 of the name and a counter, one digest after another."""
    total = BLOCKS * size_bytes
    digests = (hashlib.sha256(f"{name}:{i}".encode()).digest() for i in range(-(-total // 32)))
    return np.frombuffer(b"".join(digests)[:total], np.uint8)


def digest(values: np.ndarray) -> str:
    """SHA-256 of float32 values, where a NaN is a NaN whatever its sign and payload."""
    plain = np.where(np.isnan(values), np.float32("nan"), values).astype("<f4")
    return hashlib.sha256(plain.tobytes()).hexdigest()


def main() -> None:
    import gguf
    from made_with import note_versions

    from weft.dtype import DTYPES

    golden = {}
    for dtype in DTYPES.values():
        if dtype.gguf is None or not (dtype.quantised or dtype.name in ("f32", "f16", "bf16")):
            continue
        raw = blocks(dtype.name, dtype.size_bytes)
        with np.errstate(all="ignore"):
            values = gguf.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType(dtype.gguf)).ravel()
        golden[dtype.name] = {"sha256": digest(values), "first": [float(v).hex() for v in values[:8]]}
    TARGET.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    note_versions(TARGET, "gguf", "numpy")


if __name__ == "__main__":
    main()
