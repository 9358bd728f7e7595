"""`Tiny`: a network of a few dense layers."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedError
from weft.tiny import fann, files
from weft.tiny.compiled import Compiled
from weft.tiny.consolidation import Consolidation, consolidated
from weft.tiny.layers import NAMES, Layer, check_chain, check_inside, checked_rows, classifies
from weft.tiny.training import Epoch, Recipe, fit

MAX_WIDTH = 1 << 24


class Tiny:
    """Layers are added in a line, and each call gives a new network: `Tiny(784).relu(128).relu(64).softmax(10)`.

    The first weights are normal with variance 2 / (inputs + outputs), biases zero; the same layers and the same `seed`
    have the same weights. `softmax` is for the last layer. A network with a softmax at its end classifies, and one
    without predicts numbers.
    """

    def __init__(self, inputs: int, *, seed: int = 0) -> None:
        self.inputs = _width("inputs", inputs)
        if type(seed) is not int or seed < 0:
            raise InputError("tiny", "must be a whole number from 0", field="seed", given=seed)
        self.seed = seed
        self.layers: tuple[Layer, ...] = ()
        self.classes: np.ndarray | None = None  # what the outputs stand for, once it was fitted
        self.temperature = 1.0  # by which logits are divided before the softmax
        self.history: list[Epoch] = []
        self._compiled: tuple[tuple[Layer, ...], float, Compiled] | None = None  # and what it was made of

    @classmethod
    def of(cls, layers: Any, *, classes: Any = None, temperature: float = 1.0) -> Tiny:
        """A network of layers that there are already."""
        found = tuple(layers)
        if not found:
            raise InputError("tiny", "there are no layers", field="layers")
        made = cls(found[0].inputs)
        made.layers = found
        made.classes = None if classes is None else np.asarray(classes)
        made.temperature = float(temperature)
        check_chain(found)
        return made

    def linear(self, width: int) -> Tiny:
        return self._with(width, "linear")

    def sigmoid(self, width: int) -> Tiny:
        return self._with(width, "sigmoid")

    def tanh(self, width: int) -> Tiny:
        return self._with(width, "tanh")

    def relu(self, width: int) -> Tiny:
        return self._with(width, "relu")

    def leaky_relu(self, width: int, slope: float = 0.01) -> Tiny:
        if not (isinstance(slope, (int, float)) and math.isfinite(slope)):
            raise InputError("tiny", "must be a finite number", field="slope", given=slope)
        return self._with(width, "leaky_relu", slope=float(slope))

    def gelu(self, width: int) -> Tiny:
        return self._with(width, "gelu")

    def softmax(self, width: int) -> Tiny:
        return self._with(width, "softmax")

    def _with(self, width: int, kind: str, **more: Any) -> Tiny:
        outputs = _width("width", width)
        inputs = self.layers[-1].outputs if self.layers else self.inputs
        if self.layers:
            check_inside(self.layers[-1], len(self.layers) - 1)
        own = int.from_bytes(sha256(f"{self.seed} {len(self.layers)}".encode()).digest()[:8], "big")
        draws = np.random.Generator(np.random.PCG64(own)).standard_normal((outputs, inputs))
        weight = (draws * math.sqrt(2.0 / (inputs + outputs))).astype(np.float32)
        made = Tiny(self.inputs, seed=self.seed)
        made.layers = (*self.layers, Layer(weight, np.zeros(outputs, np.float32), kind, **more))
        return made

    @property
    def outputs(self) -> int:
        return self._built()[-1].outputs

    @property
    def classifies(self) -> bool:
        return classifies(self._built())

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(layer.weight.size + layer.bias.size for layer in self.layers)

    @property
    def architecture(self) -> str:
        """Such as `784 -> ReLU(128) -> Softmax(10)`."""
        return " -> ".join(
            [str(self.inputs), *(f"{NAMES[layer.activation]}({layer.outputs})" for layer in self.layers)]
        )

    def __repr__(self) -> str:
        return f"Tiny({self.architecture}, {self.parameters:,} parameters)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}  # a copy compiles its own

    def __call__(self, rows: Any) -> np.ndarray:
        """The outputs for a row [inputs], or for rows [n, inputs]."""
        found = self.compiled()(rows)
        return found[0] if np.ndim(rows) == 1 else found

    def logits(self, rows: Any) -> np.ndarray:
        """The outputs before the last activation, and before the temperature.  [n, inputs] -> [n, outputs]"""
        return self.compiled()(rows, raw=True)

    def compiled(self, *, int8: bool = False, threads: int | None = None) -> Compiled:
        """The network as it is now in native code: `compiled().row(x)` is the quickest answer to one row. With `int8`,
        weights take a quarter of the memory, and products are of integers."""
        layers = self._built()
        kept = self._compiled
        if int8 or threads is not None or kept is None or kept[0] is not layers or kept[1] != self.temperature:
            made = Compiled(layers, self.temperature, int8, threads)
            if int8 or threads is not None:
                return made
            kept = self._compiled = (layers, self.temperature, made)
        return kept[2]

    def fit(self, rows: Any, targets: Any, recipe: Recipe | None = None, **options: Any) -> Tiny:
        """Learn: `targets` are classes (any values that can be compared), or, for soft labels and for networks without
        a softmax, one row of numbers each. Options are those of `Recipe`. The network itself, for chaining."""
        made = Recipe(**options) if recipe is None else replace(recipe, **options)
        found = fit(self._built(), checked_rows(rows, self.inputs), targets, self.classes, made)
        self.layers, self.classes, self.temperature, self.history = found
        return self

    def consolidation(self, rows: Any, strength: float = 1.0) -> Consolidation:
        """What the network needs for what it says about `rows`, to be given to `fit` of a later task."""
        return consolidated(self._built(), checked_rows(rows, self.inputs), strength)

    def predict(self, rows: Any) -> np.ndarray:
        """The class of each row; the outputs where the network does not classify."""
        found = self(np.atleast_2d(np.asarray(rows)))
        if not self.classifies:
            return found
        best = found.argmax(axis=1)
        return best if self.classes is None else self.classes[best]

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of each class.  [n, inputs] -> [n, classes]"""
        if not self.classifies:
            what = f"{self.architecture} has no softmax at its end"
            raise InputError("tiny", what, advice="use predict, or build it with .softmax(classes)")
        return self(np.atleast_2d(np.asarray(rows)))

    def score(self, rows: Any, targets: Any) -> float:
        """The part of rows whose class is right; without classes, R²."""
        wanted, found = np.asarray(targets), self.predict(rows)
        if self.classifies:
            return float(np.mean(found == wanted))
        wanted = wanted.reshape(found.shape)
        spread = float(np.sum((wanted - wanted.mean(axis=0)) ** 2))
        return 1.0 - float(np.sum((wanted - found) ** 2)) / spread if spread else 0.0

    def save(self, path: str | os.PathLike[str], *, int8: bool = False) -> None:
        """Write it: to `NAME.fann` in the founding format, to any other name in weft's own; with `int8`, there only,
        weights take a byte each."""
        if Path(path).suffix != ".fann":
            files.write(Path(path), self._built(), self.classes, self.temperature, int8=int8)
            return
        if int8:
            what = "the format has no weights of int8"
            raise UnsupportedError("fann", what, advice="save it under a name that does not end in .fann")
        named = self.classes is not None and not np.array_equal(self.classes, np.arange(self.outputs))
        if named or self.temperature != 1.0:
            what = "the format has no names of classes" if named else "the format has no temperature"
            raise UnsupportedError("fann", what, advice="save it under a name that does not end in .fann")
        fann.write(Path(path), self._built())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tiny:
        """A network that was saved, in either format."""
        if fann.is_fann(Path(path)):
            return cls.of(fann.read(Path(path)))
        layers, classes, temperature = files.read(Path(path))
        return cls.of(layers, classes=classes, temperature=temperature)

    def _built(self) -> tuple[Layer, ...]:
        if not self.layers:
            raise InputError("tiny", "the network has no layers", advice="add some, as in Tiny(4).relu(8).softmax(3)")
        return self.layers


def _width(field: str, width: Any) -> int:
    if isinstance(width, np.integer):
        width = int(width)
    if type(width) is not int or not 1 <= width <= MAX_WIDTH:
        raise InputError("tiny", f"must be a whole number from 1 to {MAX_WIDTH:,}", field=field, given=width)
    return width
