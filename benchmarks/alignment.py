"""Recall of a search through a map beside embedding everything again, on Cranfield.

python benchmarks/alignment.py FOLDER_OF_CRANFIELD --old MODEL --new MODEL [--old-pooling first] [--learn 300 700 1400]

A store has the old model's vectors of all abstracts; questions are asked of the new model. `found` is the part of the
ten abstracts that a search finds after all of them were embedded again; `relevant` the part of those that people
judged relevant (grades 1 to 4) that is among the first ten.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np


def records(path: Path) -> list[dict[str, str]]:
    """Records of Cranfield's files: .I number, then fields .T, .A, .B, .W."""
    found = []
    for part in re.split(r"^\.I +", path.read_text(encoding="latin-1"), flags=re.M)[1:]:
        number, *rest = re.split(r"^\.([TABW])\n", part, flags=re.M)
        fields = dict(zip(rest[::2], rest[1::2], strict=True))
        found.append({"id": number.strip(), "text": " ".join(fields.get("W", "").split())})
    return found


def judged(path: Path, questions: int) -> list[set[int]]:
    """The relevant abstracts of every question: questions are numbered in their order."""
    found: list[set[int]] = [set() for _ in range(questions)]
    for line in path.read_text().splitlines():
        question, abstract, grade = (int(word) for word in line.split())
        if 1 <= grade <= 4:
            found[question - 1].add(abstract - 1)
    return found


def best(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :10]


def vectors(texts: list[str], keep: Path | None, name: str, model: str, pooling: str | None) -> np.ndarray:
    from weft import Embedder

    file = None if keep is None else keep / f"{name}.npy"
    if file is not None and file.is_file():
        return np.load(file)
    made = Embedder(model, pooling=pooling, truncate="head").encode(texts)
    if file is not None:
        np.save(file, made)
    return made


def main() -> None:
    from weft.transport.drift import align

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--old-pooling")
    parser.add_argument("--new-pooling")
    parser.add_argument("--learn", type=int, nargs="+", default=[300, 700, 1400])
    parser.add_argument("--keep", type=Path, help="keep vectors in this folder, and read those that are there")
    given = parser.parse_args()
    texts = [one["text"] or "-" for one in records(given.folder / "cran.all.1400")]
    questions = [one["text"] for one in records(given.folder / "cran.qry")]
    relevant = judged(given.folder / "cranqrel", len(questions))

    old, new = (
        vectors(texts + questions, given.keep, name, model, pooling)
        for name, model, pooling in (("old", given.old, given.old_pooling), ("new", given.new, given.new_pooling))
    )
    count = len(texts)
    documents, again, asked = old[:count], new[:count], new[count:]
    wanted = best(asked, again)

    def told(way: str, found: np.ndarray, **more: float) -> None:
        same = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)])
        shares = [
            len(set(row) & good) / min(10, len(good))
            for row, good in zip(found.tolist(), relevant, strict=True)
            if good
        ]
        print(
            json.dumps(
                {"way": way, "found": round(float(same), 4), "relevant": round(float(np.mean(shares)), 4), **more}
            )
        )

    told("embedded again", wanted)
    told("old model for both", best(old[count:], documents))
    if old.shape[1] == new.shape[1]:
        told("no map", best(asked, documents))
    order = np.random.default_rng(0).permutation(count)
    for learnt in given.learn:
        some = order[:learnt]
        for method in ("procrustes", "linear"):
            found = align(documents[some], again[some], method=method)
            told(
                f"{method}, abstracts mapped",
                best(asked, found(documents)),
                learnt_from=learnt,
                said=round(found.recall, 4),
            )
            told(
                f"{method}, questions mapped", best(found.queries(asked), documents), learnt_from=learnt,
                said=round(found.query_recall, 4),
            )  # fmt: skip


if __name__ == "__main__":
    main()
