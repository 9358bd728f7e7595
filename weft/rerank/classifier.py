"""Cross-encoders: a query and a document in one input, scored by the model's classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from weft.errors import FormatError, InputError, UnsupportedError
from weft.rerank.pairs import WithEncoder, excess, sigmoid
from weft.runtime import Checkpoint, Encoder, Head, Tokens, member, read_object

if TYPE_CHECKING:
    import numpy as np


ACTIVATIONS = ("identity", "sigmoid")
SETTINGS = "config_sentence_transformers.json"
LAST_LAYERS = ("classifier.weight", "classifier.out_proj.weight")
MAX_LABELS = 65_536


def is_classifier(checkpoint: Checkpoint) -> bool:
    return any(name in checkpoint.tensors for name in LAST_LAYERS)


class Classifier(WithEncoder):
    """Scores of one label, through the activation that the model's files name: sigmoid where they name none."""

    def __init__(self, checkpoint: Checkpoint, *, label: str | int | None = None, **options: Any) -> None:
        labels = _labels(checkpoint)
        self.label_ids = member(checkpoint.config, "label2id", dict, {}, file="config.json")
        self.label = _chosen(self.label_ids, labels, label)
        settings = _settings(checkpoint)
        self.activation = _activation(checkpoint, settings, labels)
        mean = checkpoint.config.get("classifier_pooling") == "mean"
        self.encoder = Encoder(checkpoint, Head("mean" if mean else "first", labels=labels), **options)
        self.max_tokens = min(self.encoder.max_tokens, _longest(checkpoint))

    @property
    def info(self) -> dict[str, Any]:
        own = {"label": self.label, "label_ids": self.label_ids, "activation": self.activation}
        return {**self.encoder.info, **own}

    def tokens(self, pair: tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """Of a pair that is too long the longer text gives way."""
        import numpy as np

        tokenizer = self.tokenizer
        ids, types = tokenizer.encode_pair(*pair)
        dropped = 0
        if excess(len(ids), self.max_tokens, truncate):
            side: Literal["left", "right"] = "left" if truncate == "tail" else "right"
            fitted = tokenizer.encode_within(self.max_tokens, *pair, side=side)
            ids, types, dropped = fitted.ids, fitted.types, sum(fitted.dropped)
        kinds = getattr(self.encoder.config, "type_vocab_size", 1)  # one kind only: RoBERTa's tokens have no types
        return Tokens(np.asarray(ids, np.int32), np.minimum(np.asarray(types, np.int32), kinds - 1)), dropped

    def score(self, vectors: np.ndarray) -> np.ndarray:
        logits: np.ndarray = vectors[:, self.label]
        return logits

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        wanted = self.activation if activation is None else activation
        if wanted not in ACTIVATIONS:
            raise InputError("rerank", f"activation is {wanted!r:.40}; one of {', '.join(ACTIVATIONS)}")
        return raw if wanted == "identity" else sigmoid(raw)


def _labels(checkpoint: Checkpoint) -> int:
    last = next((checkpoint.tensors[name] for name in LAST_LAYERS if name in checkpoint.tensors), None)
    if last is None:
        raise UnsupportedError(
            "rerank",
            f"{checkpoint.path.name} has no classifier; it is no cross-encoder. "
            "weft.Embedder compares texts by their vectors",
        )
    shape = last.view.shape
    if len(shape) != 2 or not 0 < shape[0] <= MAX_LABELS:
        raise FormatError("rerank", f"the classifier has shape {shape}; labels by channels are wanted")
    return int(shape[0])


def _chosen(names: Mapping[str, Any], labels: int, label: str | int | None) -> int:
    """Which label's score is meant."""
    if label is None and labels == 1:
        return 0
    if isinstance(label, str):
        label = names.get(label)
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < labels:
        return label
    known = ", ".join(map(str, names))[:200] or f"0 to {labels - 1}"
    raise InputError("rerank", f"the model tells {labels} labels apart: {known}; give the one that scores, label=…")


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What sentence-transformers keeps beside the model; it looks there only where modules.json lists the parts."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if checkpoint.format != "safetensors" or not (folder / "modules.json").is_file():
        return {}
    settings: Mapping[str, Any] = read_object(folder / SETTINGS, missing={})
    default = member(settings, "default_prompt_name", str, None, file=SETTINGS)
    if default is not None and member(settings, "prompts", dict, {}, file=SETTINGS).get(default):
        raise UnsupportedError(SETTINGS, f"default_prompt_name is {default[:80]!r}; weft puts no prompt before a pair")
    return settings


def _activation(checkpoint: Checkpoint, settings: Mapping[str, Any], labels: int) -> str:
    """What sentence-transformers puts behind the classifier: newer files first."""
    config: Mapping[str, Any] = checkpoint.config
    inner = member(config, "sentence_transformers", dict, {}, file="config.json")
    found = [
        member(settings, "activation_fn", str, None, file=SETTINGS),
        member(inner, "activation_fn", str, None, file="config.json"),
        member(config, "sbert_ce_default_activation_function", str, None, file="config.json"),
    ]
    named = next((name for name in found if name is not None), "torch.Sigmoid" if labels == 1 else "torch.Identity")
    activation: str = named.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS or named.partition(".")[0] != "torch":  # others are code of the model's own
        raise UnsupportedError("rerank", f"the activation {named[:80]!r}; known are {', '.join(ACTIVATIONS)}")
    return activation


def _longest(checkpoint: Checkpoint) -> int:
    """The longest pair that the tokenizer's file allows; very large numbers stand for no limit."""
    if not checkpoint.path.is_dir():
        return 1 << 30
    file = "tokenizer_config.json"
    limit = read_object(checkpoint.path / file, missing={}).get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 1 <= limit < 1 << 30 else 1 << 30
