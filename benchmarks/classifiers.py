"""A classifier on a sentence encoder, with all rows or N of each label, beside SetFit in its own interpreter.

python benchmarks/classifiers.py weft TRAIN.csv TEST.csv --shots 8 [--few-shot --pairs 20] --model FOLDER
PEER_PYTHON benchmarks/classifiers.py setfit TRAIN.csv TEST.csv --shots 8 --pairs 20 --model FOLDER

`setfit` is SetFit where it is installed (`--method setfit`), or else its method by sentence-transformers on the very
pairs that weft learns and scikit-learn's LogisticRegression (`--method plain`). Nothing is fetched: MODEL is a folder.
"""

import argparse
import csv
import json
import random
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.remove(str(ROOT / "benchmarks"))  # its tokenizers.py is not the library that peers import

Rows = list[dict[str, str]]


def read(path: str) -> Rows:
    with open(path, encoding="utf-8", newline="") as file:
        return [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]


def few(rows: Rows, shots: int, seed: int) -> Rows:
    """`shots` rows of each label, drawn by a seed; all of them for 0."""
    if not shots:
        return rows
    mixed = random.Random(seed).sample(rows, len(rows))
    return [
        row
        for label in sorted({row["label"] for row in rows})
        for row in [r for r in mixed if r["label"] == label][:shots]
    ]


def weft_accuracy(train: Rows, test: Rows, given: Any) -> dict[str, object]:
    from weft.classify import Classifier, FewShot, train_classifier
    from weft.classify.training import evaluate

    c = given.c if given.c == "auto" else float(given.c)
    with tempfile.TemporaryDirectory() as folder:
        began, output = time.perf_counter(), Path(folder) / "made"
        if given.few_shot:
            learning = {"steps": given.steps} if given.steps else {}
            options = {"pairs": given.pairs, "seed": given.seed, "threads": given.threads, "c": c}
            run = FewShot(given.model, train, output, **options, **learning)
            for training in run.trainings():
                for step in training:
                    if step.number % 50 == 0:
                        print(f"{step.number} of {training.run.steps}, loss {step.loss:.4f}", file=sys.stderr)
            made = run.finish()
        else:
            made = train_classifier(given.model, train, output, c=c, threads=given.threads)
        seconds = time.perf_counter() - began
        found = evaluate(Classifier(output, threads=given.threads), test)
        if given.few_shot:  # the head that SetFit would train on the same vectors
            classifier = Classifier(output, threads=given.threads)
            plain = plain_head(classifier.embedder.encode, train, test)
    facts = {"size_bytes": made.size_bytes, "parts": made.seconds, "temperature": made.temperature, "c": made.c}
    facts |= {"measured": made.measures.accuracy, "measured_calibration": made.measures.calibration}
    facts |= {"accuracy_c1": plain} if given.few_shot else {}
    return {"accuracy": found.accuracy, "calibration": found.calibration, "seconds": seconds, **facts}


def plain_head(encode: Any, train: Rows, test: Rows) -> float:
    """Accuracy of weft's head with scikit-learn's default C."""
    import numpy as np

    from weft.classify import fit_head

    names, y = np.unique([row["label"] for row in train], return_inverse=True)
    head = fit_head(encode([row["text"] for row in train]), y, len(names), c=1.0)
    found = head.logits(encode([row["text"] for row in test])).argmax(1)
    return float((names[found] == np.array([row["label"] for row in test])).mean())


def setfit_accuracy(train: Rows, test: Rows, given: Any) -> dict[str, object]:
    """SetFit's own recipe, with `pairs` positive and negative pairs of each row instead of all; 0 leaves the body."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    made = SetFitModel.from_pretrained(given.model)
    texts, labels = [row["text"] for row in train], [row["label"] for row in train]
    began = time.perf_counter()
    if given.pairs:
        limit = {"max_steps": given.steps} if given.steps else {}
        arguments = TrainingArguments(
            batch_size=16, num_iterations=given.pairs, num_epochs=1, report_to="none", seed=given.seed, **limit
        )
        Trainer(made, args=arguments, train_dataset=Dataset.from_dict({"text": texts, "label": labels})).train()
    else:
        made.fit(texts, labels, num_epochs=1)
    seconds = time.perf_counter() - began
    given_labels = made.predict([row["text"] for row in test], batch_size=32)
    right = sum(str(one) == row["label"] for one, row in zip(given_labels, test))
    return {"method": "setfit", "accuracy": right / len(test), "seconds": seconds}


def plain_accuracy(train: Rows, test: Rows, given: Any) -> dict[str, object]:
    """SetFit's method without SetFit: sentence-transformers' CosineSimilarityLoss on weft's pairs, with AdamW, a tenth
    of the steps as warm-up, then linear to zero, gradients cut at 1, as its trainer does; then LogisticRegression."""
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    sys.path[:0] = [str(ROOT)]  # weft's pairs need its errors and numpy, not its compiled core
    few_pairs = runpy.run_path(str(ROOT / "weft" / "classify" / "pairs.py"))["few_pairs"]
    torch.manual_seed(given.seed)
    model = SentenceTransformer(given.model, device=given.device)
    texts, (names, y) = [row["text"] for row in train], np.unique([r["label"] for r in train], return_inverse=True)
    made = few_pairs(y.tolist(), given.pairs, given.seed)
    random.Random(given.seed).shuffle(made)
    batches = [made[first : first + 16] for first in range(0, len(made), 16)][: given.steps or None]
    began = time.perf_counter()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0)
    warm = max(1, round(0.1 * len(batches)))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: n / warm if n < warm else (len(batches) - n) / max(1, len(batches) - warm)
    )
    model.train()
    for number, batch in enumerate(batches):
        sides = []
        for side in (0, 1):
            features = model.tokenize([texts[pair[side]] for pair in batch])
            features = {name: value.to(model.device) for name, value in features.items() if hasattr(value, "to")}
            sides.append(model(features)["sentence_embedding"])
        wanted = torch.tensor([pair[2] for pair in batch], device=model.device)
        loss = torch.nn.functional.mse_loss(torch.cosine_similarity(*sides), wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if number % 50 == 0:
            print(f"{number} of {len(batches)}, loss {loss.item():.4f}", file=sys.stderr)
    model.eval()
    head = LogisticRegression(max_iter=1000).fit(model.encode(texts), y)
    seconds = time.perf_counter() - began
    tested = model.encode([row["text"] for row in test])
    wanted = np.searchsorted(names, [row["label"] for row in test])
    ten = LogisticRegression(C=10.0, max_iter=1000).fit(model.encode(texts), y)
    facts = {"accuracy": float(head.score(tested, wanted)), "accuracy_c10": float(ten.score(tested, wanted))}
    return {"method": "plain", "pairs": len(made), **facts, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["weft", "setfit"])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--few-shot", action="store_true", help="with weft: train the encoder too")
    parser.add_argument("--pairs", type=int, default=20, help="of each row and kind")
    parser.add_argument("--steps", type=int, default=0, help="at most so many, for a trial")
    parser.add_argument("--method", choices=["setfit", "plain"], help="default: setfit if it can be imported")
    parser.add_argument("--device", default="cpu", help="of the plain method")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--c", default="auto")
    given = parser.parse_args()
    train, test = few(read(given.train), given.shots, given.seed), read(given.test)
    if given.who == "weft":
        found = weft_accuracy(train, test, given)
    else:
        import importlib.util

        if given.threads:
            import torch

            torch.set_num_threads(given.threads)
        method = given.method or ("setfit" if importlib.util.find_spec("setfit") else "plain")
        found = (setfit_accuracy if method == "setfit" else plain_accuracy)(train, test, given)
    facts = {"who": given.who, "rows": len(train), "tests": len(test), "seed": given.seed, "pairs_each": given.pairs}
    print(json.dumps({**facts, **found}))


if __name__ == "__main__":
    main()
