"""A classifier: a head on the vectors of an embedder, in a folder of its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed import Embedder
from weft.errors import FingerprintError, FormatError, InputError, NotFoundError
from weft.frozen import frozen
from weft.rerank.pairs import Pairs
from weft.tiny.logistic import Head, log_softmax
from weft.weights.files import replacing
from weft.weights.safetensors import open_safetensors, write_safetensors

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

FILE, HEAD = "classifier.json", "head.safetensors"
FORMAT = "weft-classifier 1"
INSIDE = "./"  # before the name of an embedder that is in the classifier's own folder


@frozen
class Label:
    """The most probable label of a text with its probability, and that of every label. `label` is None where the
    probability is below the classifier's threshold: it abstains, and `best` has the label all the same."""

    label: str | None
    best: str
    probability: float
    probabilities: dict[str, float]


def is_classifier(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a classifier of weft's."""
    return (Path(path) / FILE).is_file()


class Classifier:
    """A classifier that `weft train classifier` has made: `classify` gives each text's label and probabilities.

    `threshold` overrides the folder's own: a text whose best label is less probable gets none. Options are those of the
    Embedder (compute, threads, truncate, cache). The embedder must be the one that the head was trained with.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, threshold: float | None = None, base: str | None = None, **options: Any
    ) -> None:
        self.folder = Path(folder)
        about = read_about(self.folder)
        self.labels: list[str] = about["labels"]
        self.temperature: float = about["temperature"]
        self.threshold = about["threshold"] if threshold is None else check_threshold(threshold)
        self.about = about
        self.head = _read_head(self.folder, len(self.labels))
        self.embedder = Embedder(about["base"] if base is None else base, **{**about["options"], **options})
        found = str(self.embedder.fingerprint)
        if found != about["fingerprint"]:
            what = f"{self.folder} was trained on other vectors than {self.embedder.lasting_name} gives now"
            advice = "load the model and compute that it was trained with, or train it again"
            raise FingerprintError("classify", what, given=found, advice=advice)

    @property
    def max_tokens(self) -> int:
        """The longest text in tokens, special tokens included."""
        return self.embedder.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self.embedder.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """How labels are made: embedder, labels, temperature, threshold."""
        own = {"model": str(self.folder), "base": self.about["base"], "labels": list(self.labels)}
        own |= {"activation": "softmax", "temperature": self.temperature, "threshold": self.threshold}
        return {**self.embedder.info, **own, "max_tokens": self.max_tokens}

    def classify(
        self, texts: Iterable[str], *, truncate: str | None = None, progress: bool | None = None
    ) -> list[Label]:
        """The label of each text."""
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InputError("classify", f"must be a list, not {type(texts).__name__}", field="texts")
        vectors = self.embedder.encode(list(texts), truncate=truncate, progress=progress)
        return [self._labelled(row) for row in self.probabilities(vectors).tolist()]

    def probabilities(self, vectors: np.ndarray) -> np.ndarray:
        """The calibrated probabilities of the labels of vectors, float64 [n, labels]."""
        import numpy as np

        return np.exp(log_softmax(self.head.logits(vectors) / self.temperature))

    def _labelled(self, row: list[float]) -> Label:
        best = max(range(len(row)), key=lambda i: row[i])
        name = self.labels[best]
        return Label(name if row[best] >= self.threshold else None, name, row[best], dict(zip(self.labels, row)))

    def token_texts(self, texts: Sequence[Any], *, truncate: str | None = None) -> Pairs:
        """The tokens of each text, and how many were cut off."""
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                what = "must be one string: this classifier does not take pairs"
                raise InputError("classify", what, given=text, field="text", index=index)
        found = self.embedder.token_ids(list(texts), truncate=truncate)
        return Pairs(found.ids, found.dropped)  # type: ignore[arg-type]

    def logits(self, tokens: Sequence[Any], *, progress: bool | None = None) -> np.ndarray:
        """The logits of all labels, divided by the temperature, float32 [len(tokens), labels]."""
        import numpy as np

        vectors = self.embedder.encode_ids(list(tokens), progress=progress)
        return (self.head.logits(vectors) / self.temperature).astype(np.float32)


def save(folder: Path, head: Head, about: dict[str, Any]) -> None:
    """Write a classifier; its description last, so that a folder without one is not taken for a classifier."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / HEAD, {"weight": head.weight, "bias": head.bias})
    with replacing(folder / FILE) as out:
        made = {"format": FORMAT, **about}
        out.write(json.dumps(made, indent=2, ensure_ascii=False).encode() + b"\n")


def check_threshold(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise InputError("classify", "must be from 0 to 1", field="threshold", given=given)
    return float(given)


def read_about(folder: Path) -> dict[str, Any]:
    """The description of a classifier, checked; an embedder inside its folder by its path."""
    path = folder / FILE
    if not path.is_file():
        what = f"{folder} is not a classifier: it has no {FILE}"
        raise NotFoundError("classify", what, advice="make one with `weft train classifier`")
    try:
        about = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(FILE, f"is not JSON: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        given = about.get("format") if isinstance(about, dict) else about
        raise FormatError(FILE, f"must be {FORMAT!r}", field="format", given=given)
    labels, kinds = about.get("labels"), {"base": str, "fingerprint": str, "options": dict}
    named = isinstance(labels, list) and len(labels) > 1 and all(isinstance(one, str) for one in labels)
    if not named or not isinstance(labels, list) or len(set(labels)) < len(labels):
        raise FormatError(FILE, "must be two or more names that differ", field="labels", given=labels)
    for name, kind in kinds.items():
        if not isinstance(about.get(name), kind):
            raise FormatError(FILE, f"must be {kind.__name__}", field=name, given=about.get(name))
    for name, most in (("temperature", math.inf), ("threshold", 1.0)):
        value = about.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise FormatError(FILE, "must be a number from 0 on", field=name, given=value)
    if about["base"].startswith(INSIDE):  # an encoder that was trained with the head
        about["base"] = str(folder / about["base"])
    if not 0 < about["temperature"] < math.inf:
        raise FormatError(FILE, "must be above 0", field="temperature", given=about["temperature"])
    return about


def _read_head(folder: Path, count: int) -> Head:
    if not (folder / HEAD).is_file():
        raise NotFoundError("classify", f"{folder} has no {HEAD}")
    with open_safetensors(folder / HEAD) as opened:
        if set(opened.tensors) != {"weight", "bias"}:
            raise FormatError(HEAD, "must have the tensors weight and bias", given=sorted(opened.tensors))
        weight, bias = (opened[name].numpy().copy() for name in ("weight", "bias"))
    if weight.ndim != 2 or weight.shape[0] != count or bias.shape != (count,) or weight.dtype != "f4":
        what = f"weight {weight.shape} and bias {bias.shape} do not fit {count} labels"
        raise FormatError(HEAD, what)
    return Head(weight, bias)
