"""Write encode.json: how much llama.cpp's quantisers lose on fixed random rows, with importance and without.

    python tests/golden/encode/make_encode.py LIBRARY COMMIT

LIBRARY is a shared library that exports `quantize_q4_K` and its relatives of ggml-quants.c, built from COMMIT.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).resolve().with_name("encode.json")
sys.path.insert(0, str(TARGET.parents[1]))
TYPES = ("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "mxfp4", "q3_k", "q2_k")


def rows() -> tuple[np.ndarray, np.ndarray]:
    """48 rows of 768 with a few outliers, and the importance of their columns."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((48, 768)) * rng.gamma(2.0, 0.02, (48, 1))
    values[rng.random(values.shape) < 0.002] *= 6
    return values.astype(np.float32), np.exp(1.4 * rng.standard_normal(768)).astype(np.float32)


def lost(values: np.ndarray, made: np.ndarray, importance: np.ndarray) -> float:
    """The part of the rows' weighted square that is lost."""
    values, made = values.astype(np.float64), made.astype(np.float64)
    return float((importance * (values - made) ** 2).sum() / (importance * values**2).sum())


def main(library: str, commit: str) -> None:
    from made_with import note_versions

    from weft._core import quant
    from weft.dtype import DTYPES

    loaded = ctypes.CDLL(library)
    values, importance = rows()
    golden: dict[str, dict[str, float]] = {}
    for name in TYPES:
        function = getattr(loaded, "quantize_" + name.replace("_k", "_K"))
        function.restype = ctypes.c_size_t
        out = np.empty(DTYPES[name].nbytes(values.size), np.uint8)
        for kind, weights in (("plain", None), ("weighted", importance)):
            pointers = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (values, out, weights)]
            function(
                pointers[0], pointers[1], ctypes.c_int64(len(values)), ctypes.c_int64(values.shape[1]), pointers[2]
            )
            made = quant.dequantise(name, out, values.size).reshape(values.shape)
            golden.setdefault(name, {})[kind] = lost(values, made, np.ones(768) if weights is None else weights)
    TARGET.write_text(json.dumps(golden, indent=1) + "\n")
    note_versions(TARGET, "numpy", **{"llama.cpp": commit})


if __name__ == "__main__":
    main(*sys.argv[1:])
