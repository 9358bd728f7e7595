"""Classifiers: the logits of a model's labels, for a text or a pair; of one label, for cross-encoders."""

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


class Labels(WithEncoder):
    """The logits of all labels of a model, float32 [n, labels], for texts or pairs of texts."""

    def __init__(self, checkpoint: Checkpoint, *, parse_special: bool = False, **options: Any) -> None:
        self.parse_special = parse_special
        self.count = label_count(checkpoint)
        self.label_ids = member(checkpoint.config, "label2id", dict, {}, file="config.json")
        self.names = _names(checkpoint, self.count)
        mean = checkpoint.config.get("classifier_pooling") == "mean"
        self.encoder = Encoder(checkpoint, Head("mean" if mean else "first", labels=self.count), **options)
        self.max_tokens = min(self.encoder.max_tokens, _longest(checkpoint))

    @property
    def info(self) -> dict[str, Any]:
        return {**self.encoder.info, "label_ids": self.label_ids}

    def tokens(self, texts: tuple[str] | tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """The tokens of a text or a pair, and how many were cut: of a pair that is too long, the longer text is cut."""
        import numpy as np

        tokenizer = self.tokenizer
        if len(texts) == 2:
            ids, types = tokenizer.encode_pair(*texts, parse_special=self.parse_special)
        else:
            ids = tokenizer.encode(*texts, parse_special=self.parse_special)
            types = [0] * len(ids)
        dropped = 0
        if excess(len(ids), self.max_tokens, truncate):
            side: Literal["left", "right"] = "left" if truncate == "tail" else "right"
            fitted = tokenizer.encode_within(self.max_tokens, *texts, side=side, parse_special=self.parse_special)
            ids, types, dropped = fitted.ids, fitted.types, sum(fitted.dropped)
        kinds = getattr(self.encoder.config, "type_vocab_size", 1)  # 1 for RoBERTa, whose tokens have no types
        return Tokens(np.asarray(ids, np.int32), np.minimum(np.asarray(types, np.int32), kinds - 1)), dropped

    def score(self, vectors: np.ndarray) -> np.ndarray:
        return vectors


class Classifier(Labels):
    """Scores of one label, through the activation in the model's files, sigmoid if they have none."""

    def __init__(self, checkpoint: Checkpoint, *, label: str | int | None = None, **options: Any) -> None:
        labels, names = label_count(checkpoint), member(checkpoint.config, "label2id", dict, {}, file="config.json")
        self.label = _chosen(names, labels, label)
        self.activation = _activation(checkpoint, _settings(checkpoint), labels)
        super().__init__(checkpoint, **options)

    @property
    def info(self) -> dict[str, Any]:
        own = {"label": self.label, "label_ids": self.label_ids, "activation": self.activation}
        return {**self.encoder.info, **own}

    def score(self, vectors: np.ndarray) -> np.ndarray:
        logits: np.ndarray = vectors[:, self.label]
        return logits

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        wanted = self.activation if activation is None else activation
        if wanted not in ACTIVATIONS:
            raise InputError("rerank", f"must be one of {', '.join(ACTIVATIONS)}", given=wanted, field="activation")
        return raw if wanted == "identity" else sigmoid(raw)


def _names(checkpoint: Checkpoint, labels: int) -> list[str]:
    """The labels' names in order; as transformers names them where the config does not."""
    named = member(checkpoint.config, "id2label", dict, {}, file="config.json")
    return [str(named.get(str(number), f"LABEL_{number}")) for number in range(labels)]


def label_count(checkpoint: Checkpoint) -> int:
    """The number of labels of the model's classifier; an error if it has none."""
    last = next((checkpoint.tensors[name] for name in LAST_LAYERS if name in checkpoint.tensors), None)
    if last is None:
        raise UnsupportedError(
            "rerank",
            f"{checkpoint.path.name} has no classifier, so it is not a cross-encoder",
            advice="for an embedding model use weft.Embedder, which ranks by vectors",
        )
    shape = last.view.shape
    if len(shape) != 2 or not 0 < shape[0] <= MAX_LABELS:
        raise FormatError("rerank", "the classifier's weight must have shape [labels, channels]", given=shape)
    return int(shape[0])


def _chosen(names: Mapping[str, Any], labels: int, label: str | int | None) -> int:
    """The number of the label whose score is used."""
    if label is None and labels == 1:
        return 0
    number = names.get(label) if isinstance(label, str) else label
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < labels:
        return number
    known = ", ".join(map(str, names))[:200] or f"0 to {labels - 1}"
    what = f"must be one of the model's {labels} labels ({known})"
    raise InputError("rerank", what, given=label, field="label")


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """sentence-transformers' settings of the model, which it reads only if there is a modules.json."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if checkpoint.format != "safetensors" or not (folder / "modules.json").is_file():
        return {}
    settings: Mapping[str, Any] = read_object(folder / SETTINGS, missing={})
    default = member(settings, "default_prompt_name", str, None, file=SETTINGS)
    if default is not None and member(settings, "prompts", dict, {}, file=SETTINGS).get(default):
        what = "is not supported, since weft puts no prompt before a pair"
        raise UnsupportedError(SETTINGS, what, given=default, field="default_prompt_name")
    return settings


def _activation(checkpoint: Checkpoint, settings: Mapping[str, Any], labels: int) -> str:
    """The activation that sentence-transformers applies to the logits: newer settings take precedence."""
    config: Mapping[str, Any] = checkpoint.config
    inner = member(config, "sentence_transformers", dict, {}, file="config.json")
    found = [
        member(settings, "activation_fn", str, None, file=SETTINGS),
        member(inner, "activation_fn", str, None, file="config.json"),
        member(config, "sbert_ce_default_activation_function", str, None, file="config.json"),
    ]
    named = next((name for name in found if name is not None), "torch.Sigmoid" if labels == 1 else "torch.Identity")
    activation: str = named.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS or named.partition(".")[0] != "torch":  # others are the model's own code
        what = f"must be one of torch's {', '.join(ACTIVATIONS)}"
        raise UnsupportedError("rerank", what, given=named, field="activation_fn")
    return activation


def _longest(checkpoint: Checkpoint) -> int:
    """The longest pair that the tokenizer's file allows, in which a very large number means no limit."""
    if not checkpoint.path.is_dir():
        return 1 << 30
    file = "tokenizer_config.json"
    limit = read_object(checkpoint.path / file, missing={}).get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 1 <= limit < 1 << 30 else 1 << 30
