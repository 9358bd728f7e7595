"""An embedding model trained on STS-B's training part, by weft and by sentence-transformers, under the same recipe.

The recipe is sentence-transformers' own: cosine loss, batches of 16, 4 epochs, AdamW without decay at 2e-5, a rise over
a tenth of the steps, then a line down to zero, gradients clipped to a norm of 1. The peer's loop is written out, so it
needs torch and sentence-transformers only. Each seed prints a line of JSON: Spearman's correlation on the development
and the test part, and the seconds of the training without loading and measuring.

    python benchmarks/sts_training.py weft MODEL_FOLDER STS_FOLDER --seeds 0 1 2 --threads 16
    PEER_PYTHON benchmarks/sts_training.py peer MODEL_FOLDER STS_FOLDER --seeds 0 1 2 --threads 16

STS_FOLDER has sts-train.csv, sts-dev.csv and sts-test.csv, seven columns parted by tabs. The seed -1 measures the model
as it is.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = tuple[str, str, float]
BATCH, RATE, WARMUP, CLIP = 16, 2e-5, 0.1, 1.0
AS_IT_IS = -1  # the seed


def rows(folder: str, part: str) -> list[Row]:
    """Both sentences and their score, 0 to 1."""
    lines = (Path(folder) / f"sts-{part}.csv").read_text(encoding="utf-8").split("\n")
    fields = [line.split("\t") for line in lines if line]
    return [(row[5], row[6].rstrip("\r"), float(row[4]) / 5) for row in fields]


def spearman(encode: Callable[[list[str]], np.ndarray], measured: Sequence[Row]) -> float:
    """The correlation of the ranks of cosines with those of the scores; equal ones share the mean of their ranks."""
    left, right, scores = (list(column) for column in zip(*measured))
    a, b = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (encode(left), encode(right)))

    def ranks(values: Any) -> np.ndarray:
        _, place, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[place]

    return float(np.corrcoef(ranks((a * b).sum(axis=1)), ranks(scores))[0, 1])


def weft_model(given: argparse.Namespace, seed: int, folder: Path) -> tuple[Any, float]:
    """What makes vectors of texts after the training, and the seconds it took."""
    import weft
    from weft import train

    if seed == AS_IT_IS:
        return weft.Embedder(given.model, threads=given.threads).encode, 0.0
    data = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in rows(given.data, "train")]
    options = {"rank": given.rank, "merged": bool(given.rank), "compute": given.compute}
    options["dropout"] = "auto" if given.dropout is None else given.dropout
    training = train.embedder(given.model, data, output=folder / "made", loss="cosine", batch=BATCH, rate=given.rate,
                              warmup=WARMUP, clip=CLIP, epochs=given.epochs, steps=given.steps, seed=seed,
                              save_every=math.inf, threads=given.threads, **options)  # fmt: skip
    began = time.perf_counter()
    for step in training:
        if step.number % 100 == 0:
            print(json.dumps({"step": step.number, "of": training.run.steps, "loss": step.loss}), flush=True)
    seconds = time.perf_counter() - began
    made = folder / "made" / ("merged" if given.rank else "")
    return weft.Embedder(str(made), threads=given.threads).encode, seconds


def peer_model(given: argparse.Namespace, seed: int, folder: Path) -> tuple[Any, float]:
    """The same with sentence-transformers' model and loss, and the loop that its trainer runs."""
    # Files beside this one have names of packages that the peer imports.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(given.threads)
    model = SentenceTransformer(given.model, device="cpu")
    if given.rank:
        raise SystemExit("the peer trains all weights")
    seconds = 0.0
    if seed != AS_IT_IS:
        torch.manual_seed(seed)
        began = time.perf_counter()
        peer_steps(model, rows(given.data, "train"), given, seed)
        seconds = time.perf_counter() - began
    model.eval()
    return lambda texts: model.encode(texts, batch_size=64, show_progress_bar=False), seconds


def peer_steps(model: Any, data: list[Row], given: argparse.Namespace, seed: int) -> None:
    import torch

    loss = cosine_loss()(model)
    for part in model.modules():  # attention reads its rate from such a module too
        if isinstance(part, torch.nn.Dropout) and given.dropout is not None:
            part.p = given.dropout
    steps = given.steps or given.epochs * math.ceil(len(data) / BATCH)
    warmup = math.ceil(WARMUP * steps)
    rule = torch.optim.AdamW(model.parameters(), lr=given.rate, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(
        rule, lambda step: step / warmup if step < warmup else max(0.0, (steps - step) / max(1, steps - warmup))
    )
    narrow = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}[given.compute]
    tokenise = getattr(model, "preprocess", None) or model.tokenize
    model.train()
    done, epoch = 0, 0
    while done < steps:
        order = random.Random(f"{seed} {epoch}").sample(range(len(data)), len(data))
        epoch += 1
        for first in range(0, len(order), BATCH):
            left, right, scores = (list(column) for column in zip(*(data[at] for at in order[first : first + BATCH])))
            with torch.autocast("cpu", narrow or torch.bfloat16, enabled=narrow is not None):
                value = loss([tokenise(left), tokenise(right)], torch.tensor(scores))
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            rule.step()
            rate.step()
            rule.zero_grad()
            done += 1
            if done % 100 == 0:
                print(json.dumps({"step": done, "of": steps, "loss": float(value.detach())}), flush=True)
            if done == steps:
                return


def cosine_loss() -> Any:
    try:  # sentence-transformers 6 moved it
        from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    except ImportError:
        from sentence_transformers.losses import CosineSimilarityLoss
    return CosineSimilarityLoss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["weft", "peer"])
    parser.add_argument("model", help="a folder")
    parser.add_argument("data", help="the folder of STS-B")
    parser.add_argument("--seeds", type=int, nargs="+", default=[AS_IT_IS, 0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compute", default="f32", help="weft: with --rank, of the frozen base; peer: autocast")
    parser.add_argument("--rank", type=int, default=0, help="weft: train an adapter")
    parser.add_argument("--dropout", type=float, help="in place of the rates in the model's config")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="so many steps only, to try it")
    given = parser.parse_args()
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            make = weft_model if given.who == "weft" else peer_model
            encode, seconds = make(given, seed, Path(folder))
            found = {part: spearman(encode, rows(given.data, part)) for part in ("dev", "test")}
        about = {"compute": given.compute, "rank": given.rank, "threads": given.threads, "epochs": given.epochs}
        about |= {"dropout": given.dropout, "steps": given.steps}
        print(json.dumps({"who": given.who, "seed": seed, **found, "seconds": seconds, **about}), flush=True)


if __name__ == "__main__":
    main()
