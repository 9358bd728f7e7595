"""Classifiers of texts by small networks: what they learn, that their probabilities are true, their files, folds."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_st import write_st_folder

from weft.errors import FingerprintError, FormatError, InputError, UnsupportedError
from weft.tiny import TextClassifier, Tiny
from weft.tiny.calibration import folds_of
from weft.tiny.logistic import fit_head, log_softmax
from weft.tiny.texts import embedder_of

WORDS = {"animal": ["cat", "dog", "cow"], "colour": ["red", "blue", "green"], "number": ["one", "two", "six"]}


class Words:
    """An embedder without a model: counts of words, with a little noise by the text."""

    fingerprint = "words-1"
    lasting_name = "words"

    def __init__(self):
        self.words = sorted(word for words in WORDS.values() for word in words)

    def encode(self, texts):
        rows = np.array([[text.split().count(word) for word in self.words] for text in texts], np.float32)
        return rows + np.array([[hash_of(text, i) for i in range(len(self.words))] for text in texts], np.float32)


def hash_of(text, place):
    return 0.45 * np.sin(sum(map(ord, text)) * (place + 1.7))


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    names = list(WORDS)
    labels = [names[n % 3] for n in range(count)]
    other = [names[n] for n in rng.integers(0, 3, count)]
    return [
        f"the {rng.choice(WORDS[one])} {rng.choice(WORDS[two])} {rng.choice(WORDS[one])} {n + seed}"
        for n, (one, two) in enumerate(zip(labels, other))
    ], labels


@pytest.fixture(scope="module")
def fitted():
    return TextClassifier(Words()).fit(*examples(60))


def test_texts_are_labelled_by_logistic_regression_with_calibrated_probabilities(fitted):
    texts, labels = examples(90, seed=5)
    assert fitted.classes.tolist() == sorted(WORDS) and fitted.score(texts, labels) > 0.8
    chances = fitted.predict_proba(texts)
    assert np.allclose(chances.sum(1), 1, atol=1e-6)
    assert np.array_equal(fitted.predict(texts), fitted.classes[chances.argmax(1)])
    learnt, names = examples(60)
    numbers = np.searchsorted(fitted.classes, names)
    logits = fit_head(Words().encode(learnt), numbers, 3).logits(Words().encode(texts))
    np.testing.assert_allclose(chances, np.exp(log_softmax(logits / fitted.network.temperature)), atol=1e-5)
    held_out = [-np.log(chances[i, list(fitted.classes).index(label)]) for i, label in enumerate(labels)]
    plain = -log_softmax(logits)[np.arange(90), np.searchsorted(fitted.classes, labels)]
    assert np.mean(held_out) < plain.mean()  # texts it has not seen are likelier at the temperature that was found


def test_hidden_layers_are_trained_by_a_recipe():
    texts, labels = examples(60)
    made = TextClassifier(Words(), hidden=(16,), epochs=40, rate=0.02, seed=3).fit(texts, labels)
    assert made.network.architecture == "9 -> ReLU(16) -> Softmax(3)" and made.score(*examples(60, seed=8)) > 0.75


@pytest.mark.parametrize("int8", [False, True])
def test_a_file_has_all_of_it(fitted, tmp_path, int8):
    path = tmp_path / "intents.tiny"
    fitted.save(path, int8=int8)
    again = TextClassifier.load(path, Words())
    texts, _ = examples(40, seed=2)
    found, wanted = again.predict_proba(texts), fitted.predict_proba(texts)
    assert np.array_equal(found, wanted) if not int8 else 0 < np.abs(found - wanted).max() < 0.05
    assert again.predict(texts).tolist() == fitted.predict(texts).tolist()
    assert embedder_of(path) == ("words", "words-1")
    assert path.stat().st_size < 1200
    if int8:  # what was rounded once stays as it is
        again.save(tmp_path / "twice.tiny", int8=True)
        assert np.array_equal(TextClassifier.load(tmp_path / "twice.tiny", Words()).predict_proba(texts), found)
        assert np.array_equal(again.network.compiled(int8=True).row(np.zeros(9)), again.network(np.zeros(9)))


def test_what_does_not_fit_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "a.tiny")
    other = Words()
    other.fingerprint = "words-2"
    with pytest.raises(FingerprintError, match="other vectors"):
        TextClassifier.load(tmp_path / "a.tiny", other)
    Tiny(3).softmax(2).save(tmp_path / "numbers.tiny")
    with pytest.raises(FormatError, match="not a classifier of texts"):
        TextClassifier.load(tmp_path / "numbers.tiny", Words())
    with pytest.raises(UnsupportedError, match="int8"):
        Tiny(3).softmax(2).save(tmp_path / "numbers.fann", int8=True)
    for made in (
        lambda: TextClassifier("all-MiniLM-L6-v2"),
        lambda: TextClassifier(Words(), epochs=3),
        lambda: TextClassifier(Words()).predict(["a"]),
        lambda: TextClassifier(Words()).fit(["a", "b"], ["x"]),
        lambda: TextClassifier(Words()).fit(["a", "b"], ["x", "x"]),
        lambda: TextClassifier(Words()).fit([], []),
        lambda: fitted.predict("one text"),
        lambda: fitted.predict(["a", 3]),
    ):
        with pytest.raises(InputError):
            made()


def test_folds_have_a_share_of_every_class_and_do_not_depend_on_the_order():
    texts = [f"text {n}" for n in range(80)]
    y = np.arange(80) % 10
    found = folds_of(texts, y)
    assert all(sorted(found[y == label]) == list(range(8)) for label in range(10))
    order = np.random.default_rng(0).permutation(80)
    assert np.array_equal(folds_of([texts[i] for i in order], y[order]), found[order])
    assert len(set(folds_of(["same"] * 6 + texts[:6], np.arange(12) // 6 * 0)[:6])) == 1
    assert set(folds_of(texts * 20, np.arange(1600) % 2)) == set(range(5))


def test_the_command_line_reads_the_file(tmp_path):
    from weft.cli.app import app
    from weft.embed import Embedder

    model = write_st_folder(tmp_path / "model")
    embedder = Embedder(str(model), threads=1)
    made = TextClassifier(embedder).fit(*examples(30))
    made.save(tmp_path / "a.tiny")
    found = CliRunner().invoke(app, ["classify", str(tmp_path / "a.tiny"), "the cat dog", "--all", "--threads", "1"])
    assert found.exit_code == 0, found.output
    line = json.loads(found.stdout)
    wanted = made.predict_proba(["the cat dog"])[0]
    assert line["label"] == made.predict(["the cat dog"])[0]
    assert list(line["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-6)
