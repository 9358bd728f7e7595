"""`weft.tiny.TextClassifier` on Banking77 beside scikit-learn's logistic regression on the same vectors.

python benchmarks/text_heads.py weft TRAIN.csv TEST.csv VECTORS.npz [--model FOLDER] [--c 1]
PEER_PYTHON benchmarks/text_heads.py sklearn TRAIN.csv TEST.csv VECTORS.npz [--c 1]

The first run writes the vectors of all texts to VECTORS.npz; times are those of the training after that.
"""

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def read(path: str) -> tuple[list[str], list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [row["text"] for row in rows], [row["category"] for row in rows]


class Kept:
    """An embedder that gives vectors it was given."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.vectors = vectors

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.vectors[text] for text in texts])


def vectors_of(path: Path, texts: list[str], model: str) -> dict[str, np.ndarray]:
    """Vectors by text, from the file or made and written there."""
    if not path.exists():
        from weft import Embedder

        different = sorted(set(texts))
        np.savez(path, texts=np.array(different), vectors=Embedder(model).encode(different, progress=True))
    with np.load(path) as file:
        return dict(zip(file["texts"].tolist(), file["vectors"]))


def by_weft(vectors: dict[str, np.ndarray], train: Any, test: Any, c: float) -> dict[str, Any]:
    from weft.classify.measures import calibration_error
    from weft.tiny import TextClassifier
    from weft.tiny.logistic import fit_head

    x, (names, y) = Kept(vectors).encode(train[0]), np.unique(train[1], return_inverse=True)
    began = time.perf_counter()
    fit_head(x, y, len(names), c=c)
    head = time.perf_counter() - began
    began = time.perf_counter()
    made = TextClassifier(Kept(vectors), c=c).fit(*train)
    seconds = time.perf_counter() - began
    found = made.predict_proba(test[0])
    right = made.classes[found.argmax(1)] == np.asarray(test[1])
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for int8 in (False, True):
            path = Path(folder) / "made.tiny"
            made.save(path, int8=int8)
            again = TextClassifier.load(path, Kept(vectors))
            sizes["int8" if int8 else "f32"] = {"bytes": path.stat().st_size, "accuracy": again.score(*test)}
    return {
        "accuracy": float(right.mean()),
        "calibration": calibration_error(found.max(1), right),
        "head_seconds": head,
        "fit_seconds": seconds,
        "files": sizes,
    }


def by_sklearn(vectors: dict[str, np.ndarray], train: Any, test: Any, c: float) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    kept = Kept(vectors)
    x, tested = kept.encode(train[0]), kept.encode(test[0])
    began = time.perf_counter()
    made = LogisticRegression(C=c, max_iter=1000).fit(x, train[1])
    seconds = time.perf_counter() - began
    return {"accuracy": float(made.score(tested, test[1])), "fit_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["weft", "sklearn"])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--c", type=float, default=1.0)
    given = parser.parse_args()
    train, test = read(given.train), read(given.test)
    vectors = vectors_of(given.vectors, [*train[0], *test[0]], given.model)
    made = by_weft if given.who == "weft" else by_sklearn
    print(json.dumps({"who": given.who, "c": given.c, "rows": len(train[0]), **made(vectors, train, test, given.c)}))


if __name__ == "__main__":
    main()
