"""`TextClassifier`: labels of texts by a small network on an embedder's vectors, kept in one small file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FingerprintError, FormatError, InputError
from weft.tiny import files
from weft.tiny.calibration import fit_temperature, out_of_fold
from weft.tiny.layers import Layer
from weft.tiny.logistic import fit_head
from weft.tiny.network import Tiny


class TextClassifier:
    """`TextClassifier(embedder).fit(texts, labels)`, then `predict`, `predict_proba` and `score` of other texts.

    `embedder` has `encode(texts) -> vectors`, as `weft.Embedder` has. Without hidden layers the network is logistic
    regression to convergence, with `c` the weight of the data against the penalty, and its probabilities are calibrated
    by texts that were held out. With `hidden`, layers of these widths are trained; options are those of `Recipe`, and
    `calibrate=True` needs a part that is held out (`valid=0.1`).
    """

    def __init__(self, embedder: Any, *, hidden: Sequence[int] = (), c: float = 1.0, **recipe: Any) -> None:
        if isinstance(embedder, str) or not callable(getattr(embedder, "encode", None)):  # a str encodes otherwise
            what = f"must have a method encode(texts), and {type(embedder).__name__} has none"
            raise InputError("tiny", what, field="embedder", advice='give weft.Embedder("all-MiniLM-L6-v2")')
        if recipe and not hidden:
            what = "is for networks with hidden layers: without them there is nothing to choose but c"
            raise InputError("tiny", what, field=next(iter(recipe)), advice="give hidden=(64,), or leave it out")
        self.embedder = embedder
        self.hidden, self.c, self.recipe = tuple(hidden), c, recipe
        self.network: Tiny | None = None

    def fit(self, texts: Sequence[str], labels: Sequence[Any]) -> TextClassifier:
        """Learn texts and their labels; the classifier itself."""
        asked, names = _texts(texts), np.asarray(labels)
        if names.shape != (len(asked),):
            what = f"must be one for each of {len(asked)} texts"
            raise InputError("tiny", what, field="labels", given=list(names.shape))
        classes, y = np.unique(names, return_inverse=True)
        if len(classes) < 2:
            raise InputError("tiny", "must be of at least two classes", field="labels", given=classes.tolist())
        vectors = np.asarray(self.embedder.encode(asked), np.float32)
        if self.hidden:
            net = Tiny(vectors.shape[1], seed=self.recipe.get("seed", 0))
            for width in self.hidden:
                net = net.relu(width)
            self.network = net.softmax(len(classes)).fit(vectors, names, **self.recipe)
            return self
        head = fit_head(vectors, y, len(classes), c=self.c)
        held_out, wanted, _ = out_of_fold(asked, vectors, y, len(classes), self.c)
        layer = Layer(head.weight, head.bias, "softmax")
        self.network = Tiny.of([layer], classes=classes, temperature=fit_temperature(held_out, wanted))
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """The label of each text."""
        return self._fitted().predict(self._vectors(texts))

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """The probability of each of `classes`.  [n, classes]"""
        return self._fitted().predict_proba(self._vectors(texts))

    def score(self, texts: Sequence[str], labels: Sequence[Any]) -> float:
        """The part of texts whose label is right."""
        return float(np.mean(self.predict(texts) == np.asarray(labels)))

    @property
    def classes(self) -> np.ndarray:
        found = self._fitted().classes
        assert found is not None
        return found

    def save(self, path: str | os.PathLike[str], *, int8: bool = False) -> None:
        """Write the network, the labels and the embedder's name to one file; with `int8`, weights of a byte each."""
        net = self._fitted()
        about = {"name": getattr(self.embedder, "lasting_name", None), "fingerprint": _fingerprint(self.embedder)}
        files.write(Path(path), net.layers, net.classes, net.temperature, int8=int8, more={"embedder": about})

    @classmethod
    def load(cls, path: str | os.PathLike[str], embedder: Any) -> TextClassifier:
        """A classifier that was saved, with the embedder it was trained on; `embedder_of` says which that is."""
        name, wanted = embedder_of(path)
        found = _fingerprint(embedder)
        if wanted is not None and found is not None and wanted != found:
            what = f"{os.fspath(path)} was trained on other vectors than this embedder gives"
            advice = f"load {name} as it was then, or train it again"
            raise FingerprintError("tiny", what, given=found, advice=advice)
        made = cls(embedder)
        made.network = Tiny.load(path)
        return made

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self.embedder.encode(_texts(texts)), np.float32)

    def _fitted(self) -> Tiny:
        if self.network is None:
            raise InputError(
                "tiny", "the classifier has learnt nothing", advice="call fit(texts, labels), or load a file"
            )
        return self.network


def embedder_of(path: str | os.PathLike[str]) -> tuple[str | None, str | None]:
    """The name and the fingerprint of the embedder that a saved classifier was trained on."""
    about = files.more(Path(path)).get("embedder")
    if not isinstance(about, dict):
        raise FormatError(Path(path).name, "is a network of numbers, not a classifier of texts")
    return about.get("name"), about.get("fingerprint")


def _fingerprint(embedder: Any) -> str | None:
    found = getattr(embedder, "fingerprint", None)
    return None if found is None else str(found)


def _texts(texts: Any) -> list[str]:
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise InputError("tiny", f"must be a list of texts, not {type(texts).__name__}", field="texts")
    found = list(texts)
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError("tiny", f"must be a text, not {type(text).__name__}", field="texts", index=index)
    if not found:
        raise InputError("tiny", "there are no texts", field="texts")
    return found
