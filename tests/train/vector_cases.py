"""What gradients of vectors are compared on: tiny encoders with several heads, and what is trained of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.graph.passes.learn import LowRank
from weft.nn.pooling import DenseLayer, Head
from weft.runtime import open_checkpoint
from weft.runtime.checkpoint import Checkpoint, Tensor
from weft.runtime.encoder import Encoder, Tokens
from weft.train.vectors.learner import VectorLearner, matrices, weights
from weft.weights.files import TensorView

RANK, SCALE = 2, 0.5
LENGTHS = (9, 1, 45, 23)  # beyond the windows of 37
DENSE = DenseLayer("2_Dense", 24, True, "tanh")

HEADS = {
    "bert": Head("mean", normalise=True),
    "bert-tanh": Head("mean_sqrt_len"),
    "roberta": Head("first"),
    "xlm_roberta": Head("mean", dense=(DENSE,), normalise=True),
    "modernbert": Head("first", dense=(DENSE,)),
    "modernbert-listed-bias": Head("mean", skips=True, normalise=True),
    "nomic_bert": Head("mean", normalise=True),
    "distilbert": Head("max"),
    "mpnet": Head("mean", normalise=True),
    "eurobert": Head("weightedmean"),
    "qwen3": Head("last", normalise=True),
    "qwen2-embed": Head("mean"),
    "gemma3_text-both-ways": Head("mean", dense=(DENSE,), normalise=True),
}
KINDS = ("changes", "weights")  # of low rank beside every matrix; all that can be trained itself


def config(name: str) -> dict[str, Any]:
    return tiny.CONFIGS[name.removesuffix("-embed")]


def dense() -> dict[str, np.ndarray]:
    """The layer after pooling, by the names of its tensors; the inputs are 48."""
    made = {"weight": (24, 48), "bias": (24,)}
    return {
        f"{DENSE.name}.linear.{part}": tiny.uniform(31 + seed, int(np.prod(shape))).reshape(shape) * np.float32(0.4)
        for seed, (part, shape) in enumerate(made.items())
    }


def checkpoint_of(folder: Path, name: str) -> Checkpoint:
    opened = open_checkpoint(tiny.write_folder(folder, config(name)))
    if not HEADS[name].dense:
        return opened
    shape = (24, opened.config["hidden_size"])
    more = {key: value[:, : shape[1]].copy() if value.ndim == 2 else value for key, value in dense().items()}
    tensors = {key: Tensor(TensorView.of(value)) for key, value in more.items()}
    return replace(opened, tensors={**opened.tensors, **tensors})


def learner_of(folder: Path, name: str, kind: str, **options: Any) -> VectorLearner:
    dropout = options.pop("dropout", 0.0)
    encoder = Encoder(checkpoint_of(folder, name), HEADS[name], **options)
    if kind == "weights":
        return VectorLearner(encoder, {}, list(weights(encoder)))
    return VectorLearner(encoder, dict.fromkeys(matrices(encoder), LowRank(RANK, SCALE)), dropout=dropout)


def sequences(name: str) -> list[Tokens]:
    """Those of a model with types have some of either; those of a head that skips, a prompt."""
    made = []
    for number, length in enumerate(LENGTHS):
        ids = tiny.token_ids(config(name), length, seed=11 + number).astype(np.int32)
        types = None
        if config(name).get("type_vocab_size", 1) > 1:
            types = (np.arange(length) > length // 2).astype(np.int32)
        made.append(Tokens(ids, types, skip=min(3, length - 1) if HEADS[name].skips else 0))
    return made


def parameters(learner: VectorLearner) -> dict[str, np.ndarray]:
    """Those that are trained themselves a little beside the checkpoint's; norms' and tables' too."""
    start = learner.start
    made = {}
    for seed, (name, shape) in enumerate(sorted(learner.shapes.items()), 1):
        drawn = tiny.uniform(7919 * seed, int(np.prod(shape))).reshape(shape)
        made[name] = start[name] + np.float32(0.03) * drawn if name in start else drawn * np.float32(0.3)
    return made


def seeds(name: str, count: int) -> np.ndarray:
    """The gradient of the loss at the vectors."""
    return tiny.uniform(977, len(LENGTHS) * count).reshape(len(LENGTHS), count)
