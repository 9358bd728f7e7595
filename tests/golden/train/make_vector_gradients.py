"""Make vector-gradients.npz: what PyTorch computes in float64 for the cases of tests/train/vector_cases.py.

python tests/golden/train/make_vector_gradients.py [NAME ...]    (needs torch and transformers; the package needs none)

Every case's array has in its first row what is kept of the vectors, and then a row for each trained tensor.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
sys.path[:0] = [str(path) for path in (HERE, HERE.parent, TESTS / "train", TESTS / "models", TESTS.parent)]
import gradient_cases  # noqa: E402
import make_gradients  # noqa: E402
import vector_cases  # noqa: E402
from made_with import note_versions  # noqa: E402

POSITIONS = ("roberta", "mpnet")  # their own rule gives padding no position; weft counts every token
SIZES = {"mean": lambda n: n, "mean_sqrt_len": lambda n: n**0.5}


def stored_part(model: Any, name: str) -> tuple[torch.nn.Parameter, Any]:
    """The parameter that a weight of weft is a part of, and its rows, None for all."""
    base, _, part = name.partition(":")
    rows = None
    if part and part != "plus1":
        first, end, *period, total = map(int, re.split("[-/]", part))
        every = range(0, total, period[0]) if period else (0,)
        rows = torch.tensor([start + row for start in every for row in range(first, end)])
    return model.get_parameter(base), rows


def pooled(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode in ("first", "last"):
        return x[0 if mode == "first" else -1]
    if mode == "max":
        return x.max(dim=0).values
    if mode == "weightedmean":
        shares = torch.arange(1, len(x) + 1, dtype=torch.float64)
        return (shares[:, None] * x).sum(dim=0) / shares.sum()
    return x.sum(dim=0) / SIZES[mode](len(x))


class Model(torch.nn.Module):
    """A trunk of transformers and the layer after pooling, under the names of weft."""

    def __init__(self, name: str) -> None:
        super().__init__()
        cfg = vector_cases.config(name)
        self.head, self.cfg = vector_cases.HEADS[name], cfg
        self.trunk = make_gradients.model_of(cfg, "f32")
        for module in self.trunk.modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None  # PyTorch has no gradient of padding's row, and these ids have that token
        if self.head.dense:
            layer = torch.nn.Linear(cfg["hidden_size"], 24, dtype=torch.float64)
            for part, values in vector_cases.dense().items():
                cut = values[:, : cfg["hidden_size"]] if values.ndim == 2 else values
                getattr(layer, part.rpartition(".")[2]).data = torch.from_numpy(cut.copy()).double()
            self.dense = layer.requires_grad_(False)

    def get_submodule(self, target: str) -> Any:
        if target.startswith("2_Dense"):
            return self.dense
        return self.trunk.get_submodule(target if hasattr(self.trunk, "model") else target.removeprefix("model."))

    def forward(self, text: Any) -> torch.Tensor:
        ids = torch.from_numpy(text.ids.astype(np.int64))[None]
        given: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}
        if any(kind in self.cfg["model_type"] for kind in POSITIONS):
            given["position_ids"] = torch.arange(ids.shape[1])[None] + self.cfg["pad_token_id"] + 1
        if text.types is not None:
            given["token_type_ids"] = torch.from_numpy(text.types.astype(np.int64))[None]
        trunk = getattr(self.trunk, "model", self.trunk) if vector_cases.tiny.decodes(self.cfg) else self.trunk
        y = pooled(trunk(input_ids=ids, **given).last_hidden_state[0][text.skip :], self.head.pooling)
        y = torch.tanh(self.dense(y)) if self.head.dense else y
        assert y.dtype == torch.float64
        return y / y.norm().clamp(min=1e-12) if self.head.normalise else y


def run(name: str, kind: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        learner = vector_cases.learner_of(Path(folder), name, kind, backend="reference")
        texts, given = vector_cases.sequences(name), vector_cases.parameters(learner)
        to_vectors = vector_cases.seeds(name, learner.encoder.dimension)
        vectors = learner.vectors(texts, given)
        found = learner.gradients(texts, given, to_vectors, learner.no_gradient())
    model = Model(name)
    trained = {key: torch.from_numpy(value).double().requires_grad_() for key, value in given.items()}
    if kind == "changes":
        make_gradients.changed(model, trained)
    for key in learner.weights:
        parameter, rows = stored_part(model, key)
        value = trained[key].detach() - (1.0 if key.endswith(":plus1") else 0.0)
        parameter.data[slice(None) if rows is None else rows] = value
        parameter.requires_grad_()
    wanted = torch.stack([model(text) for text in texts])
    (wanted * torch.from_numpy(to_vectors).double()).sum().backward()
    gradients = {key: value.grad.numpy() for key, value in trained.items() if value.grad is not None}
    for key in learner.weights:
        parameter, rows = stored_part(model, key)
        gradients[key] = (parameter.grad if rows is None else parameter.grad[rows]).numpy()
    assert gradients.keys() == found.keys()
    kept = gradient_cases.kept(gradients)
    off = gradient_cases.distance(gradient_cases.kept(found), kept)
    exact = wanted.detach().numpy()
    away = np.abs(vectors - exact).max()
    print(f"{name}/{kind}: vectors off {away:.1e}, {len(gradients)} gradients off {off:.1e}", flush=True)
    assert off < 1e-9 and away < 1e-9
    return np.concatenate([gradient_cases.kept({"vectors": exact}), kept])


def main() -> None:
    """Without names, those that are missing."""
    torch.set_num_threads(1)
    path = HERE / "vector-gradients.npz"
    arrays = dict(np.load(path)) if path.exists() else {}
    names = [(name, kind) for name in vector_cases.HEADS for kind in vector_cases.KINDS]
    for name, kind in names:
        wanted = any(name.startswith(start) for start in sys.argv[1:]) if sys.argv[1:] else True
        if wanted and (sys.argv[1:] or f"{name}/{kind}" not in arrays):
            arrays[f"{name}/{kind}"] = run(name, kind)
            kept = {key: arrays[key] for key in map("/".join, names) if key in arrays}
            np.savez_compressed(path, **kept)  # type: ignore[arg-type]
    note_versions(path, "numpy", "torch", "transformers")


main()
