"""A classifier on all-MiniLM-L6-v2's vectors, with all rows or N of each label, beside SetFit in its own interpreter.

python benchmarks/classifiers.py weft TRAIN.csv TEST.csv [--shots 8] [--seed 0]
PEER_PYTHON benchmarks/classifiers.py setfit TRAIN.csv TEST.csv --shots 8 --model FOLDER
"""

import argparse
import csv
import json
import random
import tempfile
import time
from pathlib import Path


def read(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]


def few(rows: list[dict[str, str]], shots: int, seed: int) -> list[dict[str, str]]:
    """`shots` rows of each label, drawn by a seed; all of them for 0."""
    if not shots:
        return rows
    mixed = random.Random(seed).sample(rows, len(rows))
    return [
        row
        for label in sorted({row["label"] for row in rows})
        for row in [r for r in mixed if r["label"] == label][:shots]
    ]


def weft_accuracy(train: list[dict[str, str]], test: list[dict[str, str]], model: str, c: float) -> dict[str, object]:
    from weft.classify import Classifier, train_classifier
    from weft.classify.training import evaluate

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        made = train_classifier(model, train, Path(folder) / "made", c=c)
        seconds = time.perf_counter() - began
        found = evaluate(Classifier(Path(folder) / "made"), test)
    facts = {"size_bytes": made.size_bytes, "parts": made.seconds, "temperature": made.temperature}
    return {"accuracy": found.accuracy, "calibration": found.calibration, "seconds": seconds, **facts}


def setfit_accuracy(
    train: list[dict[str, str]], test: list[dict[str, str]], model: str, pairs: int
) -> dict[str, object]:
    """SetFit's own recipe, with `pairs` positive and negative pairs of each row instead of all; 0 leaves the body."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    made = SetFitModel.from_pretrained(model)
    texts, labels = [row["text"] for row in train], [row["label"] for row in train]
    began = time.perf_counter()
    if pairs:
        arguments = TrainingArguments(batch_size=16, num_iterations=pairs, num_epochs=1, report_to="none", seed=0)
        Trainer(made, args=arguments, train_dataset=Dataset.from_dict({"text": texts, "label": labels})).train()
    else:
        made.fit(texts, labels, num_epochs=1)
    seconds = time.perf_counter() - began
    given = made.predict([row["text"] for row in test], batch_size=32)
    right = sum(str(one) == row["label"] for one, row in zip(given, test))
    return {"accuracy": right / len(test), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["weft", "setfit"])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--pairs", type=int, default=5, help="of each row and kind, for SetFit")
    parser.add_argument("--c", type=float, default=1.0)
    given = parser.parse_args()
    train, test = few(read(given.train), given.shots, given.seed), read(given.test)
    if given.who == "weft":
        found = weft_accuracy(train, test, given.model, given.c)
    else:
        found = setfit_accuracy(train, test, given.model, given.pairs)
    print(json.dumps({"who": given.who, "rows": len(train), "tests": len(test), "seed": given.seed, **found}))


if __name__ == "__main__":
    main()
