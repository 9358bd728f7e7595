"""A new classifier of one label on an encoder that has none: what makes a base model a cross-encoder that can learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.models import model_module
from weft.nn import read_config
from weft.runtime.checkpoint import Checkpoint, Tensor
from weft.weights.files import TensorView

if TYPE_CHECKING:
    import numpy as np

SPREAD = 0.02  # transformers' standard deviation of new weights, where the config has none


@frozen
class Kind:
    """Names of transformers: the trunk's prefix, the class, and the layers of the classifier in order."""

    prefix: str
    architecture: str
    layers: tuple[str, ...]
    inside: tuple[str, ...] = ()  # layers that are below the prefix too

    def file_name(self, name: str) -> str:
        """The name in a file of a tensor that weft calls `name`."""
        own = name.startswith(tuple(f"{layer}." for layer in self.layers if layer not in self.inside))
        return name if own else self.prefix + name


KINDS = {
    "bert": Kind("bert.", "BertForSequenceClassification", ("pooler.dense", "classifier"), ("pooler.dense",)),
    "roberta": Kind("roberta.", "RobertaForSequenceClassification", ("classifier.dense", "classifier.out_proj")),
    "xlm-roberta": Kind("roberta.", "XLMRobertaForSequenceClassification", ("classifier.dense", "classifier.out_proj")),
    "distilbert": Kind("distilbert.", "DistilBertForSequenceClassification", ("pre_classifier", "classifier")),
    "mpnet": Kind("mpnet.", "MPNetForSequenceClassification", ("classifier.dense", "classifier.out_proj")),
    "modernbert": Kind("model.", "ModernBertForSequenceClassification", ("head.dense", "head.norm", "classifier")),
}


@frozen(eq=False)
class NewHead:
    """The classifier that an encoder was given: its kind, and its weights before they learn, by weft's names."""

    kind: Kind
    weights: Mapping[str, np.ndarray]

    @property
    def settings(self) -> dict[str, Any]:
        """What config.json says of it."""
        names = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        return {"architectures": [self.kind.architecture], **names}


def with_new_head(checkpoint: Checkpoint, seed: int) -> tuple[Checkpoint, NewHead]:
    """The encoder with a classifier of one label, drawn from `seed` as transformers draws one: small normal weights,
    no biases. A layer that the encoder has already, as BERT's pooler, stays."""
    kind = KINDS.get(checkpoint.model_type)
    if kind is None:
        what = f"{checkpoint.path.name} has no classifier, and models of type {checkpoint.model_type} get none here"
        raise UnsupportedError("train", what, advice=f"begin with a cross-encoder, or one of {', '.join(KINDS)}")
    weights = {}
    for name, shape in _shapes(checkpoint, kind).items():
        if name not in checkpoint.tensors:
            weights[name] = _drawn(name, shape, seed, float(checkpoint.config.get("initializer_range", SPREAD)))
    tensors = {**checkpoint.tensors, **{name: Tensor(TensorView.of(value)) for name, value in weights.items()}}
    head = NewHead(kind, weights)
    return replace(checkpoint, tensors=tensors, config={**checkpoint.config, **head.settings}), head


def _shapes(checkpoint: Checkpoint, kind: Kind) -> dict[str, tuple[int, ...]]:
    with checkpoint.naming():
        config = read_config(model_module(checkpoint.model_type).Config, checkpoint.config)
    hidden = config.hidden_size
    found: dict[str, tuple[int, ...]] = {}
    for layer in kind.layers:
        if layer.endswith("norm"):
            found[f"{layer}.weight"] = (hidden,)
            biased = getattr(config, "norm_bias", True)
        else:
            found[f"{layer}.weight"] = (1 if layer == kind.layers[-1] else hidden, hidden)
            biased = layer == kind.layers[-1] or getattr(config, "classifier_bias", True)
        if biased:
            found[f"{layer}.bias"] = found[f"{layer}.weight"][:1]
    return found


def _drawn(name: str, shape: tuple[int, ...], seed: int, spread: float) -> np.ndarray:
    import numpy as np

    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    if len(shape) == 1:  # a norm's
        return np.ones(shape, np.float32)
    own = int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:8], "big")
    return (np.random.Generator(np.random.PCG64(own)).standard_normal(shape) * spread).astype(np.float32)
