"""An embedding model trained on Cranfield's judgements, and how well it finds documents for queries it never saw.

Every fifth query is held out. The others and their relevant documents become pairs; `mine` finds hard negatives for
them among all documents, and the ranking loss learns both. A line of JSON before and after has nDCG@10, recall@10 and
recall@100 of the held-out queries among all documents. Judgements of 1 (a complete answer) to 4 (of little interest)
have gains of 4 to 1.

    python benchmarks/cranfield_training.py MODEL_FOLDER CRANFIELD_FOLDER --threads 16

CRANFIELD_FOLDER has cran.all.1400, cran.qry and cranqrel.
"""

import argparse
import json
import math
import re
import tempfile
import time
from pathlib import Path

import weft
from weft import train
from weft.train.vectors.evaluation import retrieval
from weft.train.vectors.mining import mine

HELD = 5  # every such query
BEST = 5  # less the judgement: its gain


def texts(path: Path) -> list[str]:
    """The text of each entry, in the order of the file; judgements count queries so, whatever their numbers."""
    entries = path.read_text(encoding="latin-1").split("\n.I ")
    return [re.sub(r"\s+", " ", re.split(r"\n\.W(?:\s|$)", entry)[1]).strip() for entry in entries]


def judgements(path: Path, documents: list[str], queries: int) -> list[dict[int, float]]:
    """For each query the gains of its relevant documents."""
    found: list[dict[int, float]] = [{} for _ in range(queries)]
    for line in path.read_text().splitlines():
        query, document, grade = map(int, line.split())
        if 1 <= grade < BEST and documents[document - 1]:
            found[query - 1][document - 1] = float(BEST - grade)
    return found


def measured(embedder: weft.Embedder, queries: list[str], documents: list[str], relevant: list[dict[int, float]]):
    asked = embedder.encode(queries, prompt_name="query", truncate="head")
    found = retrieval(asked, embedder.encode(documents, prompt_name="document", truncate="head"), relevant)
    return {name: round(found[name], 4) for name in ("ndcg@10", "recall@10", "recall@100", "mrr@10")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder")
    parser.add_argument("data", help="the folder of Cranfield")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--negatives", type=int, default=3)
    parser.add_argument("--relative-margin", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=0, help="train an adapter")
    parser.add_argument("--compute", default="f32", help="with --rank, of the frozen base")
    parser.add_argument("--max-length", type=int, default=0, help="tokens of the texts that are learnt")
    parser.add_argument("--steps", type=int, default=0, help="so many steps only, to try it")
    given = parser.parse_args()
    folder = Path(given.data)
    documents, queries = texts(folder / "cran.all.1400"), texts(folder / "cran.qry")
    relevant = judgements(folder / "cranqrel", documents, len(queries))
    known = [place for place, wanted in enumerate(relevant) if wanted]
    held = known[::HELD]
    learnt = [place for place in known if place not in set(held)]

    def of_held(embedder: weft.Embedder):
        return measured(embedder, [queries[at] for at in held], documents, [relevant[at] for at in held])

    base = weft.Embedder(given.model, truncate="head", threads=given.threads)
    print(json.dumps({"when": "before", "queries": len(held), **of_held(base)}), flush=True)
    pairs = [{"query": queries[at], "positive": documents[row]} for at in learnt for row in relevant[at]]
    how = {"negatives": given.negatives, "relative_margin": given.relative_margin}
    rows = [
        row
        for found in mine(base, pairs, corpus=[text for text in documents if text], progress=False, **how)
        for row in found.rows("tuple", given.negatives)
    ]
    print(json.dumps({"pairs": len(pairs), "with_negatives": len(rows), **how}), flush=True)
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as place:
            made = Path(place) / "made"
            training = train.embedder(given.model, rows, output=made, batch=given.batch, rate=given.rate, seed=seed,
                                      epochs=given.epochs, steps=given.steps, rank=given.rank, merged=bool(given.rank),
                                      compute=given.compute, max_length=given.max_length, save_every=math.inf,
                                      threads=given.threads)  # fmt: skip
            began = time.perf_counter()
            losses = [step.loss for step in training]
            seconds = time.perf_counter() - began
            folder = str(made / ("merged" if given.rank else ""))
            after = weft.Embedder(folder, truncate="head", threads=given.threads)
            facts = {"seed": seed, "steps": len(losses), "loss": [losses[0], losses[-1]], "seconds": seconds}
            print(json.dumps({"when": "after", **of_held(after), **facts, "rank": given.rank}), flush=True)


if __name__ == "__main__":
    main()
