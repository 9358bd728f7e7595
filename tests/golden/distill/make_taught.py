"""Make taught.npz: what PyTorch computes in float64 for the students of tests/distill/taught_cases.py.

python tests/golden/distill/make_taught.py    (needs torch, transformers and gguf)

A head has its loss in row 0 and its gradient at x below; a model has what tests/golden/train/make_gradients.py keeps.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE.parent, HERE.parent / "train", *(HERE.parents[1] / part for part in ("train", "models", "distill")))
sys.path[:0] = [*map(str, FOLDERS), str(HERE.parents[2])]
import gradient_cases  # noqa: E402
import make_gradients as plain  # noqa: E402
import taught_cases  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
from made_with import note_versions  # noqa: E402
from torch.nn import functional  # noqa: E402

from weft.train import Learner  # noqa: E402


def losses(logits: Any, targets: Any, words: Any, logs: Any, temperature: float, soft: float) -> Any:
    """Of each row: cross-entropy and divergence as PyTorch has them, the teacher's distribution over all words."""
    hard = functional.cross_entropy(logits, targets, reduction="none")
    teacher = torch.zeros_like(logits)
    known = torch.isfinite(logs).any(dim=1)
    chances = torch.softmax(torch.where(known[:, None], logs, torch.zeros_like(logs)) / temperature, dim=1)
    teacher = teacher.scatter(1, words, chances)
    apart = functional.kl_div(functional.log_softmax(logits / temperature, dim=1), teacher, reduction="none").sum(dim=1)
    return torch.where(known, (1 - soft) * hard + soft * temperature**2 * apart, hard)


def head(name: str) -> np.ndarray:
    temperature, soft, scale, softcap = taught_cases.HEADS[name]
    given = {key: torch.from_numpy(value) for key, value in taught_cases.head(name).items()}
    x = given["x"].requires_grad_()
    logits = x @ given["weight"].T * scale
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    found = losses(logits, given["targets"], given["words"], given["logs"], temperature, soft)
    found.sum().backward()
    first = np.zeros(x.shape[1])
    first[: len(found)] = found.detach().numpy()
    return np.concatenate([first[None], x.grad.numpy()])


def model(name: str) -> np.ndarray:
    temperature, soft = taught_cases.MODELS[name]
    cfg = tiny.CONFIGS[name]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = gradient_cases.checkpoint_of(Path(folder), cfg, "f32")
        learner = Learner(checkpoint, gradient_cases.changes(checkpoint), context=256, backend="reference")
        given = gradient_cases.parameters(learner.shapes)
    trained = {key: torch.from_numpy(value).double().requires_grad_() for key, value in given.items()}
    made = plain.model_of(cfg, "f32")
    plain.changed(made, trained)
    total = torch.zeros((), dtype=torch.float64)
    for lesson in taught_cases.lessons(cfg):
        ids = torch.from_numpy(lesson.ids.astype(np.int64))
        logits = made(input_ids=ids[None], use_cache=False).logits[0][:-1]
        words, logs = torch.from_numpy(lesson.words[1:].astype(np.int64)), torch.from_numpy(lesson.logs[1:]).double()
        each = losses(logits, ids[1:], words, logs, temperature, soft)
        total = total + (each * torch.from_numpy(lesson.shares[1:]).double()).sum()
    total.backward()
    kept = gradient_cases.kept({key: value.grad.numpy() for key, value in trained.items()})
    return np.concatenate([np.full((1, kept.shape[1]), float(total.detach())), kept])


def main() -> None:
    torch.set_num_threads(1)
    arrays = {f"head {name}": head(name) for name in taught_cases.HEADS}
    arrays |= {f"model {name}": model(name) for name in taught_cases.MODELS}
    np.savez_compressed(HERE / "taught.npz", **arrays)  # type: ignore[arg-type]
    note_versions(HERE / "taught.npz", "numpy", "torch", "transformers")


if __name__ == "__main__":
    main()
