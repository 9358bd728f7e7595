"""`TinyClassifier` keeps scikit-learn's conventions; `tests/golden/tiny_estimator_checks.py` runs scikit-learn's own
checks."""

import copy
import inspect
import pickle

import numpy as np
import pytest

from weft.errors import InputError, ShapeError
from weft.tiny import TinyClassifier


def blobs(count=60, seed=0):
    """Three clouds of points, and their names."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(count) % 3
    return rng.normal(size=(count, 4)) + 4 * np.eye(4)[numbers], np.array(["dog", "cat", "ape"])[numbers]


def test_parameters_are_those_of_the_constructor_and_make_a_clone():
    made = TinyClassifier((8, 4), "tanh", rate=0.02, class_weight={"a": 2.0})
    given = made.get_params()
    assert [*given] == [*inspect.signature(TinyClassifier).parameters]
    assert all(given[name] is getattr(made, name) for name in given)
    assert TinyClassifier(**given).get_params() == given
    assert made.set_params(epochs=3, hidden=()) is made and (made.epochs, made.hidden) == (3, ())
    with pytest.raises(InputError, match="no parameter of TinyClassifier"):
        made.set_params(depth=2)
    assert repr(TinyClassifier(epochs=7)) == "TinyClassifier(epochs=7)"


def test_nothing_is_checked_or_changed_before_fit():
    odd = {"hidden": [8], "epochs": -1, "activation": "none"}
    made = TinyClassifier(**odd)
    assert made.hidden is odd["hidden"]
    x, y = blobs()
    for wrong in ({"epochs": -1}, {"activation": "softmax"}, {"valid": 2.0}, {"class_weight": {"cow": 1.0}}):
        with pytest.raises(InputError):
            TinyClassifier(**wrong).fit(x, y)


def test_fit_learns_classes_by_name_and_leaves_the_data_alone():
    x, y = blobs()
    before = x.copy()
    made = TinyClassifier((16,), epochs=40, rate=0.02, class_weight={"cat": 2.0})
    assert made.fit(x, y) is made
    assert np.array_equal(x, before)
    assert made.classes_.tolist() == ["ape", "cat", "dog"] and made.n_features_in_ == 4 and made.n_iter_ == 40
    other, wanted = blobs(90, seed=1)
    chances = made.predict_proba(other)
    assert chances.shape == (90, 3) and np.allclose(chances.sum(1), 1, atol=1e-6)
    assert np.array_equal(made.predict(other), made.classes_[chances.argmax(1)])
    assert made.score(other, wanted) == np.mean(made.predict(other) == wanted) > 0.95
    again = pickle.loads(pickle.dumps(made))
    assert np.array_equal(again.predict_proba(other), chances)
    assert np.array_equal(copy.deepcopy(made).predict_proba(other), chances)
    assert np.array_equal(made.fit(x, y).predict_proba(other), chances)  # nothing is left of the first time


def test_wrong_data_are_refused_in_words():
    x, y = blobs(12)
    made = TinyClassifier((), epochs=1)
    with pytest.raises(InputError, match="not fitted"):
        made.predict(x)
    for rows, labels, said in (
        (x[0], y, "Expected 2D array"),
        (x[:, :0], y, r"0 feature\(s\)"),
        (x[:0], y[:0], r"0 sample\(s\)"),
        (x, y[:5], "one label for each of 12 rows"),
        (x, None, "y is None"),
        (x, ["one"] * 12, "at least two classes"),
        (x, np.linspace(0, 1, 12), "continuous"),
        (x * 1j, y, "Complex"),
        (np.where(x > 3, np.nan, x), y, "NaN"),
        (np.where(x > 3, 1e300, x), y, "infinity"),
        (x.astype(str).astype(object) + "z", y, "must be numbers"),
    ):
        with pytest.raises(InputError, match=said):
            made.fit(rows, labels)
    made.fit(x, y)
    with pytest.raises(ShapeError, match="X has 3 features, but TinyClassifier is expecting 4 features as input"):
        made.predict(x[:, :3])
