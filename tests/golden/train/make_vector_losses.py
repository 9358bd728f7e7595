"""Make vector-losses.npz: losses and gradients by sentence-transformers, in float64, for tests/train/loss_cases.py.

python tests/golden/train/make_vector_losses.py    (needs sentence-transformers; the package does not)
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer import losses

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "train")]
import loss_cases as cases  # noqa: E402
from made_with import note_versions  # noqa: E402


class Given(torch.nn.Module):
    """A model whose vectors are given."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        return cases.WIDTH


def loss_of(name: str, options: dict[str, float]) -> Any:
    model: Any = Given()
    if name == "triplet":
        return losses.TripletLoss(model, **{f"triplet_{key}": value for key, value in options.items()})
    kinds = {
        "ranking": losses.MultipleNegativesRankingLoss,
        "cosine": losses.CosineSimilarityLoss,
        "cosent": losses.CoSENTLoss,
        "mse": losses.MSELoss,
    }
    return kinds[name](model, **options)


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, (kind, _, _, options) in cases.CASES.items():
        columns, labels = cases.case(name)
        for suffix in ("", "-short"):
            loss = loss_of(kind, options)
            if suffix:
                loss = losses.MatryoshkaLoss(loss.model, loss, list(cases.DIMS))
            given = [torch.from_numpy(column).requires_grad_() for column in columns]
            wanted = None if labels is None else torch.from_numpy(labels)
            value = loss([{"vectors": column} for column in given], wanted)
            value.backward()
            arrays[f"{name}{suffix}"] = value.detach().numpy()
            arrays[f"{name}{suffix}.grad"] = np.stack([column.grad.numpy() for column in given])
    logits = torch.from_numpy(cases.logits()).requires_grad_()
    # What a cross-encoder's BinaryCrossEntropyLoss calls with its logits.
    value = torch.nn.BCEWithLogitsLoss()(logits[:, 0], torch.from_numpy(cases.labels("binary")))
    value.backward()
    arrays["binary"], arrays["binary.grad"] = value.detach().numpy(), logits.grad.numpy()
    np.savez_compressed(HERE / "vector-losses.npz", **arrays)
    note_versions(HERE / "vector-losses.npz", "sentence-transformers", "torch", "numpy")


if __name__ == "__main__":
    main()
