"""Classifiers of several labels score as transformers' pipeline does, the same in any batch."""

from pathlib import Path

import numpy as np
import pytest
from tiny_rerank import DOCUMENTS, LABELLED, PAIRS, THREE, write_cross

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.rerank import Reranker, TextClassifier

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "rerank" / "tiny-classify.npz")


@pytest.mark.parametrize("name", LABELLED)
def test_scores_are_transformers_own(tmp_path: Path, name: str) -> None:
    classifier = TextClassifier(str(write_cross(tmp_path / name, name)), threads=1)
    assert classifier.labels == list(THREE["label2id"])
    for what, inputs in (("texts", DOCUMENTS), ("pairs", PAIRS)):
        found = classifier.classify(inputs)
        scores = np.array([list(one.scores.values()) for one in found], np.float32)
        assert np.allclose(scores, GOLDEN[f"{name}.{what}"], rtol=2e-4, atol=1e-6)
        for one, row in zip(found, scores):
            assert one.label == classifier.labels[int(row.argmax())] and one.score == row.max()
        assert found == [classifier.classify([text])[0] for text in inputs]  # in any batch


def test_activations_are_those_of_the_problem_type(tmp_path: Path) -> None:
    names = {"bert-three": "softmax", "bert-several": "sigmoid", "bert-numbers": "identity", "bert": "sigmoid"}
    for name, activation in names.items():
        assert TextClassifier(str(write_cross(tmp_path / name, name))).activation == activation


def test_what_cannot_be_classified_is_refused(tmp_path: Path) -> None:
    classifier = TextClassifier(str(write_cross(tmp_path / "bert", "bert-three")), threads=1)
    with pytest.raises(InputError, match=r"text 1 must be a string or two strings"):
        classifier.classify(["a", ("a", "b", "c")])
    with pytest.raises(InputError, match="must be a list, not str"):
        classifier.classify("a")
    with pytest.raises(TooLongError, match=r"\[classify\] text 1 has"):
        classifier.classify(["a", "the cat sat " * 400])
    assert len(classifier.classify(["the cat sat " * 400], truncate="head")) == 1
    folder = write_cross(tmp_path / "odd", "bert-three")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"model_type"', '"problem_type": "guess", "model_type"'))
    with pytest.raises(UnsupportedError, match="problem_type must be one of regression"):
        TextClassifier(str(folder))


def test_a_reranker_of_one_label_takes_single_texts(tmp_path: Path) -> None:
    reranker = Reranker(str(write_cross(tmp_path / "bert", "bert")), threads=1)
    assert reranker.labels == ["LABEL_0"]
    pairs = reranker.token_texts(PAIRS)
    assert np.array_equal(reranker.score_tokens(pairs), reranker.scores(PAIRS))
    assert len(reranker.token_texts(["a"]).tokens[0]) == 3
