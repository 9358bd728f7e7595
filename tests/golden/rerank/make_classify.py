"""Make tiny-classify.npz: what transformers' pipeline computes for the classifiers of tests/models/tiny_rerank.py.

PYTHONPATH=. python tests/golden/rerank/make_classify.py       (needs transformers and the built package)
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_rerank import DOCUMENTS, LABELLED, PAIRS, THREE, write_cross  # noqa: E402


def main() -> None:
    arrays = {}
    names = list(THREE["label2id"])
    with tempfile.TemporaryDirectory() as scratch:
        for name in LABELLED:
            folder = write_cross(Path(scratch) / name, name)
            classify = transformers.pipeline("text-classification", model=str(folder), device="cpu", dtype="float32")
            for what, inputs in (
                ("texts", [{"text": text} for text in DOCUMENTS]),
                ("pairs", [{"text": first, "text_pair": second} for first, second in PAIRS]),
            ):
                rows = []
                for one in inputs:
                    found = {row["label"]: row["score"] for row in classify(one, top_k=None)}
                    rows.append([found[label] for label in names])
                arrays[f"{name}.{what}"] = np.asarray(rows, np.float32)
    np.savez_compressed(HERE / "tiny-classify.npz", **arrays)
    note_versions(HERE / "tiny-classify.npz", "transformers", "torch", "numpy")
    print(json.dumps({key: value.round(3).tolist() for key, value in arrays.items()}))


main()
