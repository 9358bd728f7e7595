"""A network as scikit-learn wants its estimators: the width is found by `fit`, and all settings are parameters.

scikit-learn is not imported here. Where a program has imported it, its own words are used: tags, and the error of an
estimator that was not fitted.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.tiny.layers import NAMES
from weft.tiny.network import Tiny
from weft.tiny.training import Recipe


class TinyClassifier:
    """A classifier with layers of the widths `hidden`, each with the same activation, and a softmax.

    `fit`, `predict`, `predict_proba` and `score` follow scikit-learn's conventions, so that it works in pipelines and
    searches. `network_` is the fitted `Tiny`; the other parameters are those of `Recipe`.
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (64,),
        activation: str = "relu",
        *,
        optimiser: str = "adam",
        rate: float | None = None,
        decay: float = 0.0,
        epochs: int = 100,
        batch: int = 32,
        valid: float = 0.0,
        patience: int = 10,
        class_weight: Any = None,
        smoothing: float = 0.0,
        calibrate: bool = False,
        seed: int = 0,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.optimiser = optimiser
        self.rate = rate
        self.decay = decay
        self.epochs = epochs
        self.batch = batch
        self.valid = valid
        self.patience = patience
        self.class_weight = class_weight
        self.smoothing = smoothing
        self.calibrate = calibrate
        self.seed = seed

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls).parameters]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **given: Any) -> TinyClassifier:
        """Set parameters by name; the estimator itself."""
        for name, value in given.items():
            if name not in self._names():
                advice = f"use {', '.join(self._names())}"
                raise InputError("tiny", f"is no parameter of {type(self).__name__}", field=name, advice=advice)
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        first = inspect.signature(type(self)).parameters
        set_to = {name: value for name, value in self.get_params().items() if value != first[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in set_to.items())})"

    def __sklearn_tags__(self) -> Any:
        words = sys.modules["sklearn.utils"]  # only scikit-learn asks
        return words.Tags(
            estimator_type="classifier",
            target_tags=words.TargetTags(required=True),
            classifier_tags=words.ClassifierTags(),
            input_tags=words.InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def fit(self, X: Any, y: Any) -> TinyClassifier:
        """Learn rows X [n, features] of the classes y [n]."""
        recipe = Recipe(
            optimiser=self.optimiser, rate=self.rate, decay=self.decay, epochs=self.epochs, batch=self.batch,
            valid=self.valid, patience=self.patience, class_weight=self.class_weight, smoothing=self.smoothing,
            calibrate=self.calibrate, seed=self.seed,
        )  # fmt: skip
        if self.activation not in NAMES or self.activation == "softmax":
            what = f"must be one of {', '.join(name for name in NAMES if name != 'softmax')}"
            raise InputError("tiny", what, field="activation", given=self.activation)
        rows = _rows(X)
        labels = _labels(y, len(rows))
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            what = f"needs examples of at least two classes: y has one class, {classes.tolist()}"
            raise InputError("tiny", what, field="y")
        net = Tiny(rows.shape[1], seed=self.seed)
        for width in self.hidden:
            net = getattr(net, self.activation)(width)
        weights = recipe.class_weight
        if isinstance(weights, dict):  # of labels, and the network learns their numbers
            unknown = [one for one in weights if one not in classes.tolist()]
            if unknown:
                raise InputError("tiny", f"has {unknown[0]!r}, which is no class", field="class_weight")
            weights = {classes.tolist().index(one): value for one, value in weights.items()}
        self.network_ = net.softmax(len(classes)).fit(rows, numbers, recipe, class_weight=weights)
        self.classes_, self.n_features_in_ = classes, rows.shape[1]
        self.n_iter_ = len(self.network_.history)
        _keep_names(self, X)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of `classes_`.  [n, features] -> [n, classes]"""
        self._check_fitted()
        rows = _rows(X)
        if rows.shape[1] != self.n_features_in_:
            name, wanted = type(self).__name__, self.n_features_in_
            what = f"X has {rows.shape[1]} features, but {name} is expecting {wanted} features as input"
            raise ShapeError("tiny", what)
        return self.network_.predict_proba(rows)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row."""
        found = self.predict_proba(X)
        return np.asarray(self.classes_[found.argmax(axis=1)])

    def score(self, X: Any, y: Any) -> float:
        """The part of rows whose class is right."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            what = f"this {type(self).__name__} is not fitted yet"
            raise _not_fitted()("tiny", what, advice="call fit first")


def _not_fitted() -> type[InputError]:
    """InputError, and scikit-learn's own error where that is imported: what it catches is then caught."""
    theirs = sys.modules.get("sklearn.exceptions")
    return InputError if theirs is None else type("NotFittedError", (InputError, theirs.NotFittedError), {})


def _rows(X: Any) -> np.ndarray:
    """X as float32 [n, features]; an error that says what it is otherwise."""
    if hasattr(X, "tocsr"):
        what = "is a sparse matrix, and dense data is required"
        raise _type_error(what, "X", "use X.toarray()")
    found = np.asarray(X)
    if found.dtype.kind == "c":
        raise InputError("tiny", "Complex data not supported: X has complex numbers", field="X")
    if found.ndim != 2:
        advice = (
            "Reshape your data either using array.reshape(-1, 1) for one feature or array.reshape(1, -1) for one row"
        )
        what = f"Expected 2D array, got {found.ndim}D array instead"
        raise ShapeError("tiny", what, given=list(found.shape), advice=advice)
    if not found.shape[0] or not found.shape[1]:
        what = f"0 sample(s) (shape={found.shape}) while a minimum of 1 is required."
        if found.shape[0]:
            what = f"0 feature(s) (shape={found.shape}) while a minimum of 1 is required."
        raise ShapeError("tiny", what)
    if found.dtype.kind not in "fiub":
        try:
            found = found.astype(np.float64)
        except TypeError as error:
            raise _type_error(f"argument must be a string or a number: {error}", "X") from None
        except ValueError as error:
            raise InputError("tiny", f"must be numbers: {error}", field="X") from None
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        rows = np.ascontiguousarray(found, np.float32)
    if not np.isfinite(rows).all():
        what = "Input X contains NaN" if np.isnan(rows).any() else "Input X contains infinity"
        raise InputError("tiny", what, advice="all numbers must be finite")
    return rows


def _labels(y: Any, count: int) -> np.ndarray:
    if y is None:
        raise InputError("tiny", "requires y to be passed, but the target y is None", field="fit")
    found = np.asarray(y)
    if found.ndim == 2 and found.shape[1] == 1:
        _warn_of_column()
        found = found.ravel()
    if found.ndim != 1 or len(found) != count:
        what = f"must be one label for each of {count} rows"
        raise ShapeError("tiny", what, field="y", given=list(found.shape))
    if found.dtype.kind == "f":
        if not np.isfinite(found).all():
            raise InputError("tiny", "Input y contains NaN or infinity", field="y")
        if (found != np.floor(found)).any():
            what = "Unknown label type: continuous numbers are not classes"
            raise InputError("tiny", what, field="y", advice="give labels, or use a network that ends in .linear")
    return found


def _warn_of_column() -> None:
    import warnings

    theirs = sys.modules.get("sklearn.exceptions")
    kind: type[Warning] = UserWarning if theirs is None else theirs.DataConversionWarning
    said = "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,)"
    warnings.warn(said, kind, stacklevel=4)


def _type_error(what: str, field: str, advice: str | None = None) -> InputError:
    """An InputError that is a TypeError too, which is what others raise and expect."""
    return type("InputTypeError", (InputError, TypeError), {})("tiny", what, field=field, advice=advice)


def _keep_names(estimator: TinyClassifier, X: Any) -> None:
    """`feature_names_in_`, where X is a table with names."""
    names = getattr(X, "columns", None)
    if names is not None and all(isinstance(name, str) for name in names):
        estimator.feature_names_in_ = np.asarray(names, object)  # type: ignore[attr-defined]
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
