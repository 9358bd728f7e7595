"""A classifier from rows to labels: in Python, on the command line and in a server, with the same numbers."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from tiny_st import write_st_folder

import weft
from weft.classify import Classifier, train_classifier
from weft.classify.training import evaluate, read_examples
from weft.errors import FingerprintError, FormatError, InputError, NotFoundError, TooLongError

WORDS = {"animals": "cat dog bird fish", "numbers": "one two three four", "colours": "red blue green black"}


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        label = list(WORDS)[number % 3]
        words = rng.choice(WORDS[label].split(), 5).tolist()
        made.append({"text": f"the {' '.join(words)} {number}", "label": label})
    return made


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("classify") / "model")


@pytest.fixture(scope="module")
def folder(embedder, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("classify") / "made"
    train_classifier(embedder, rows(90), made, threads=1)
    return made


def test_a_classifier_learns_and_says_how_sure_it_is(embedder, folder, tmp_path):
    classifier = weft.Classifier(folder, threads=1)
    assert classifier.labels == sorted(WORDS)
    texts = rows(30, seed=9)
    found = classifier.classify([row["text"] for row in texts])
    right = np.mean([one.label == row["label"] for one, row in zip(found, texts)])
    assert right >= 0.8  # random weights, and words that tell
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
    assert all(one.probability == max(one.probabilities.values()) for one in found)
    assert evaluate(classifier, texts).accuracy == right
    again = train_classifier(embedder, rows(90), tmp_path / "again", threads=2)
    assert (tmp_path / "again" / "head.safetensors").read_bytes() == (folder / "head.safetensors").read_bytes()
    fixed = train_classifier(embedder, rows(90), tmp_path / "fixed", threads=1, c=again.c)
    assert fixed.temperature == again.temperature and fixed.measures == again.measures
    assert (tmp_path / "fixed" / "head.safetensors").read_bytes() == (folder / "head.safetensors").read_bytes()
    assert again.held_out == "8 folds" and again.measures.rows == 90
    assert sum(map(sum, again.measures.confusion)) == 90


def test_texts_below_the_threshold_get_no_label(embedder, folder, tmp_path):
    found = train_classifier(embedder, rows(90), tmp_path / "sure", precision=0.97, threads=1)
    assert found.threshold > 0 and found.measures.answered_accuracy >= 0.97
    classifier = Classifier(tmp_path / "sure", threads=1)
    assert classifier.threshold == found.threshold
    strict = Classifier(folder, threshold=1.0, threads=1).classify(["the cat", "red two"])
    assert [one.label for one in strict] == [None, None] and all(one.best in WORDS for one in strict)
    noise = [{"text": f"the cat {n}", "label": "ab"[n // 2 % 2]} for n in range(40)]
    with pytest.raises(InputError, match="cannot be reached"):
        train_classifier(embedder, noise, tmp_path / "no", precision=1.0, threads=1)


def test_a_text_has_the_same_bits_alone_and_among_others(folder):
    classifier = Classifier(folder, threads=1)
    texts = [row["text"] for row in rows(12, seed=3)]
    assert [classifier.classify([text])[0] for text in texts] == classifier.classify(texts)


def test_the_command_line_and_a_server_say_the_same(folder, embedder, tmp_path):
    from weft.cli.app import app
    from weft.serve import BackgroundServer, ModelSpec, Settings

    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(60)))
    run = CliRunner()
    made = run.invoke(app, ["train", "classifier", str(embedder), str(data), "-o", str(tmp_path / "own"), "--json"])
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["labels"] == sorted(WORDS)
    told = run.invoke(
        app, ["train", "classifier", str(embedder), str(data), "-o", str(tmp_path / "two"), "--valid", str(data)]
    )
    assert "accuracy" in told.stdout and "weft classify" in told.stdout
    texts = ["the cat dog", "one two", "blue"]
    printed = run.invoke(app, ["classify", str(folder), *texts, "--all"])
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    expected = Classifier(folder, threads=1).classify(texts)
    assert [line["label"] for line in lines] == [one.label for one in expected]
    assert lines[0]["probabilities"] == pytest.approx(expected[0].probabilities, abs=1e-6)
    spec = ModelSpec("intents", str(folder), {"threads": 1})
    with BackgroundServer(Settings(models=(spec,), port=0)) as server, httpx.Client(base_url=server.url) as client:
        client.timeout = httpx.Timeout(60)
        assert client.get("/v1/models").json()["data"][0]["kind"] == "classify"
        found = client.post("/v1/classify", json={"model": "intents", "input": texts}).json()["data"]
        assert [one["label"] for one in found] == [one.label for one in expected]
        for one, wanted in zip(found, expected):
            assert one["probs"] == pytest.approx(list(wanted.probabilities.values()), abs=1e-6)
        pair = client.post("/predict", json={"inputs": [["a", "b"]], "model": "intents"})
        assert pair.status_code == 400 and "pairs" in pair.text


def test_a_classifier_that_abstains_says_null_in_a_server(folder, tmp_path):
    import shutil

    from weft.serve import BackgroundServer, ModelSpec, Settings

    strict = tmp_path / "strict"
    shutil.copytree(folder, strict)
    about = json.loads((strict / "classifier.json").read_text())
    (strict / "classifier.json").write_text(json.dumps({**about, "threshold": 1.0}))
    settings = Settings(models=(ModelSpec("strict", str(strict), {"threads": 1}),), port=0)
    with BackgroundServer(settings) as server, httpx.Client(base_url=server.url) as client:
        client.timeout = httpx.Timeout(60)
        found = client.post("/v1/classify", json={"input": "the cat"}).json()["data"][0]
        assert found["label"] is None and len(found["probs"]) == 3


def test_another_embedder_is_refused(folder, tmp_path):
    other = write_st_folder(tmp_path / "other")
    config = json.loads((other / "1_Pooling" / "config.json").read_text())
    config |= {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (other / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FingerprintError, match="other vectors"):
        Classifier(folder, base=str(other), threads=1)


@pytest.mark.parametrize(
    "data, said",
    [
        ([], "no row"),
        ([{"text": "a", "label": "x"}], "at least two labels"),
        ([{"text": "a"}], "has no label"),
        ([{"label": "a"}], "has no text"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "too few"),
    ],
)
def test_rows_that_cannot_be_learnt_are_refused(embedder, tmp_path, data, said):
    with pytest.raises(InputError, match=said):
        train_classifier(embedder, data, tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()


def test_bad_folders_and_options_are_refused(embedder, folder, tmp_path):
    with pytest.raises(NotFoundError, match="not a classifier"):
        Classifier(tmp_path)
    with pytest.raises(InputError, match="not empty"):
        train_classifier(embedder, rows(30), folder)
    for wrong in ("many", 0.0, float("nan")):
        with pytest.raises(InputError, match="c must be a number above 0, or auto"):
            train_classifier(embedder, rows(30), tmp_path / "c", c=wrong)
    with pytest.raises(InputError, match="threshold must be"):
        Classifier(folder, threshold=2)
    with pytest.raises(InputError, match="a list"):
        Classifier(folder, threads=1).classify("the cat")
    with pytest.raises(TooLongError):
        Classifier(folder, threads=1).classify(["cat " * 500], truncate="error")
    for changed in ({"format": "x"}, {"labels": ["a"]}, {"temperature": 0}, {"threshold": "1"}, {"labels": ["a", "b"]}):
        bad = tmp_path / str(len(list(tmp_path.iterdir())))
        bad.mkdir()
        about = json.loads((folder / "classifier.json").read_text())
        (bad / "classifier.json").write_text(json.dumps({**about, **changed}))
        (bad / "head.safetensors").write_bytes((folder / "head.safetensors").read_bytes())
        with pytest.raises(FormatError):
            Classifier(bad, threads=1)
    assert read_examples([{"sentence": "a", "category": 3}]).labels == ["3"]
