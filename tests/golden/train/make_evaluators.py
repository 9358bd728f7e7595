"""Make evaluators.json: numbers of sentence-transformers' evaluators, and the negatives that it mines.

python tests/golden/train/make_evaluators.py    (needs sentence-transformers and datasets; the package does not)
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import util
from sentence_transformers.sentence_transformer import evaluation as st
from sklearn.metrics import average_precision_score

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "train")]
import text_vectors as cases  # noqa: E402
from made_with import note_versions  # noqa: E402


class Given:
    """A model whose vectors are given."""

    similarity_fn_name = "cosine"
    device = torch.device("cpu")
    truncate_dim = None
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_: None, base_model="")
    similarity = staticmethod(util.cos_sim)
    similarity_pairwise = staticmethod(util.pairwise_cos_sim)

    def encode(self, texts: list[str], *, normalize_embeddings: bool = False, convert_to_tensor: bool = False,
               **_: Any) -> Any:  # fmt: skip
        found = cases.vectors(list(texts))
        if normalize_embeddings:
            found = found / np.linalg.norm(found, axis=1, keepdims=True)
        return torch.from_numpy(found) if convert_to_tensor else found

    encode_query = encode_document = encode


def main() -> None:
    model: Any = Given()
    queries, documents = cases.QUERIES, cases.DOCUMENTS
    found: dict[str, Any] = {}
    found["pairs"] = st.EmbeddingSimilarityEvaluator(queries, documents[:20], cases.scores())(model)
    found["triplets"] = st.TripletEvaluator(queries, documents[:20], documents[21:41])(model)
    found["retrieval"] = st.InformationRetrievalEvaluator(
        {query: query for query in queries},
        {document: document for document in documents},
        cases.relevant(),
        mrr_at_k=[10],
        ndcg_at_k=[10],
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 3, 5, 10],
        map_at_k=[100],
    )(model)
    labels = [float(score > 0.5) for score in cases.scores()]
    scores = [round(float(cases.vector(text)[0]), 1) for text in documents[:20]]
    found["average_precision"] = float(average_precision_score(labels, scores))
    rows = cases.pairs()
    data = Dataset.from_dict({name: [row[name] for row in rows] for name in ("anchor", "positive")})
    for name, options in cases.MININGS.items():
        mined = util.mine_hard_negatives(data, model, corpus=documents, verbose=False, **options)
        found[f"mined {name}"] = [list(row.values()) for row in mined]
    path = HERE / "evaluators.json"
    path.write_text(json.dumps(found, indent=1, default=float) + "\n")
    note_versions(path, "sentence-transformers", "torch", "numpy", "scikit-learn")


if __name__ == "__main__":
    main()
