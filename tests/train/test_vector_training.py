"""Embedders and rerankers learn, go on after a stop bit for bit, and are written as models that load."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_rerank import CROSS, LABELLED, write_cross
from tiny_st import write_st_folder

import weft
from weft import train
from weft.errors import InputError, UnsupportedError
from weft.train.vectors.folder import check_writable
from weft.weights import open_safetensors, write_safetensors

WORDS = "red blue green cat dog fish sun moon star tree leaf root car road wheel king queen castle".split()  # noqa: SIM905
PAIRS = [{"anchor": f"{a} {b}", "positive": f"{b} the {a}"} for a in WORDS[:6] for b in WORDS[6:12]]
SCORED = [
    {"sentence1": a, "sentence2": b, "score": 1.0 if i // 3 == j // 3 else 0.0}
    for i, a in enumerate(WORDS)
    for j, b in enumerate(WORDS[:9])
    if i != j
]
FAST = {"rate": 2e-3, "batch": 8, "epochs": 2, "schedule": "constant", "warmup": 0.0}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    return write_st_folder(tmp_path_factory.mktemp("tiny") / "model")


def weights_of(training):
    return {name: value.copy() for name, value in training.run.parameters.items()}


@pytest.mark.parametrize("rank", [0, 4])
def test_the_loss_falls_and_the_model_is_what_was_measured(tiny_folder, tmp_path, rank):
    training = train.embedder(
        tiny_folder,
        SCORED,
        output=tmp_path / "out",
        valid=SCORED[::5],
        loss="cosine",
        rank=rank,
        merged=bool(rank),
        **FAST,
    )
    steps = list(training)
    run = training.run
    assert np.mean([s.loss for s in steps[-5:]]) < 0.8 * np.mean([s.loss for s in steps[:5]])
    assert run.measure_name == "spearman" and run.before is not None and run.best[0].score > run.before["score"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{run.best[0].score:.4f}" in page and f"{run.before['score']:.4f}" in page
    assert not (tmp_path / "out" / "training.safetensors").exists()
    # The folder is the best model, whose vectors are those that were measured.
    made = weft.Embedder(str(tmp_path / "out" / ("merged" if rank else "")))
    lessons = run.valid[:6]
    columns = run.columns(lessons, run.best[1])
    for at in (0, 1):
        found = made.encode([lesson.texts[at] for lesson in lessons])
        assert np.abs(found - columns[at]).max() < 2e-5
    base = weft.Embedder(str(tiny_folder))
    assert str(made.fingerprint) != str(base.fingerprint)
    if rank:
        config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        assert config["task_type"] == "FEATURE_EXTRACTION" and config["r"] == rank
        base.adapters.load("learnt", tmp_path / "out")
        adapted = base.encode([lesson.texts[0] for lesson in lessons], adapter="learnt")
        assert np.abs(adapted - columns[0]).max() < 2e-5


@pytest.mark.parametrize("loss", ["ranking", "triplet", "cosent", "mse"])
def test_every_loss_learns(tiny_folder, loss):
    size = weft.Embedder(str(tiny_folder)).dimension
    rows = {
        "ranking": PAIRS,
        "triplet": [{**row, "negative": PAIRS[-1 - n]["positive"]} for n, row in enumerate(PAIRS[:12])],
        "cosent": SCORED[:40],
        "mse": [{"text": word, "vector": [float(n % 3 == 0)] * size} for n, word in enumerate(WORDS)],
    }[loss]
    training = train.embedder(tiny_folder, rows, loss=loss, **{**FAST, "epochs": 4})
    steps = list(training)
    first, last = (np.mean([step.loss for step in part]) for part in (steps[:3], steps[-3:]))
    assert last < first
    assert all(len({text for i in batch for text in training.lessons[i].texts}) == 2 * len(batch)
               for batch in training.run.batches()) or loss != "ranking"  # fmt: skip


def test_neither_splits_nor_threads_nor_memory_change_a_bit(tiny_folder, monkeypatch):
    found, through = [], []
    for threads, tokens, again in ((1, 10_000, 0), (2, 8, 0), (1, 33, 0), (2, 256, 0), (1, 10_000, 2), (1, 64, 2)):
        training = train.embedder(
            tiny_folder, PAIRS, loss="ranking", dims=(16, 8), threads=threads, **{**FAST, "batch": 32, "epochs": 1}
        )
        training.run.step_tokens, training.learner.again = tokens, again
        training.learner._forget("_gradients")
        twice, learnt = training.learner.first_vectors, len(through)
        monkeypatch.setattr(
            training.learner, "first_vectors", lambda *given, twice=twice: through.append(1) or twice(*given)
        )
        list(training)
        assert (len(through) > learnt) is (tokens < 10_000)  # a batch of one part goes through once
        found.append(weights_of(training))
    for other in found[1:]:
        assert all(np.array_equal(other[name], value) for name, value in found[0].items())


def test_a_run_goes_on_bit_for_bit(tiny_folder, tmp_path):
    given = {"loss": "cosine", "valid": SCORED[::7], **FAST}
    whole = train.embedder(tiny_folder, SCORED, output=tmp_path / "whole", **given)
    list(whole)
    first = train.embedder(tiny_folder, SCORED, output=tmp_path / "cut", save_every=0.0, **given)
    for step in first:
        if step.number == 7:
            break
    again = train.embedder(tiny_folder, SCORED, output=tmp_path / "cut", resume=True, **given)
    assert again.run.done in (6, 7)
    list(again)
    assert all(np.array_equal(again.run.parameters[name], value) for name, value in whole.run.parameters.items())
    assert again.run.history == whole.run.history and again.run.before == whole.run.before
    name = "model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(InputError, match="is not empty"):
        train.embedder(tiny_folder, SCORED, output=tmp_path / "cut", **given)


def test_shorter_vectors_are_allowed_after_training_for_them(tiny_folder, tmp_path):
    list(train.embedder(tiny_folder, PAIRS, output=tmp_path / "out", dims=[24, 16], steps=1))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["matryoshka_dimensions"] == [24, 16] and weft.Embedder(str(tmp_path / "out")).recipe.matryoshka


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "hinge"}, "loss must be one of ranking"),
        ({"dims": (512,)}, "dims must be at most"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"epoch": 2}, "there is no option epoch; did you mean epochs"),
        ({"loss": "binary"}, "loss is of rerankers only"),
        ({"loss": "cosine"}, "row 1 has no label"),
        ({"valid": 1.5}, "valid must be a file, or a part between 0 and 1"),
        ({"valid": PAIRS[:1]}, "valid must have at least two examples"),
        ({"max_length": 10_000}, "max_length must be at most"),
        ({"resume": True}, "resume needs the folder of the run"),
        ({"rank": 4, "targets": "qeury"}, "targets must fit modules"),
    ],
)
def test_what_cannot_be_trained_is_refused(tiny_folder, given, message):
    with pytest.raises(InputError, match=message):
        train.embedder(tiny_folder, PAIRS, **given)


def test_all_weights_of_a_file_without_a_folder_are_refused(tiny_folder):
    checkpoint = train.embedder(tiny_folder, PAIRS, steps=1).base.checkpoint
    with pytest.raises(UnsupportedError, match=r"is not a folder of safetensors.*--lora 8"):
        check_writable(replace(checkpoint, format="gguf"))


@pytest.mark.parametrize("rank", [0, 4])
def test_a_reranker_learns_and_loads(tmp_path, rank):
    name = next(name for name in CROSS if name not in LABELLED)
    base = write_cross(tmp_path / "base", name)
    rows = [{"query": f"find {a}", "document": f"{b} here", "label": int(a == b)} for a in WORDS[:6] for b in WORDS[:6]]
    training = train.reranker(
        base, rows, output=tmp_path / "out", valid=rows, rank=rank, dropout=0.0, **{**FAST, "epochs": 6}
    )
    steps = list(training)
    run = training.run
    assert run.measure_name == "average_precision" and np.isfinite(run.best[0].score)
    assert np.mean([s.loss for s in steps[-3:]]) < np.mean([s.loss for s in steps[:3]])
    made = weft.Reranker(str(tmp_path / "out" / ("merged" if rank else "")))
    some = run.valid[:5]
    logits = run.columns(some, run.best[1])[0][:, 0]
    scores = made.scores([lesson.texts for lesson in some])
    assert min(np.abs(scores - logits).max(), np.abs(scores - 1 / (1 + np.exp(-logits))).max()) < 2e-5


def test_labels_that_no_reranker_has_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has .* labels, and a reranker that learns has one"):
        train.reranker(
            write_cross(tmp_path / "base", next(iter(LABELLED))), [{"query": "a", "document": "b", "label": 1}]
        )


def _spearman(cosines, scores):
    """Pearson's correlation of ranks, for numbers that may be equal."""
    ranks = [[np.mean([np.sum(np.less(v, x)), np.sum(np.less_equal(v, x)) - 1]) for x in v] for v in (cosines, scores)]
    return np.corrcoef(ranks)[0, 1]


def _found_early(near, own):
    """The mean nDCG@10 where each query has one document."""
    places = [int(np.sum(row > row[right])) for row, right in zip(near, own)]
    return np.mean([1 / np.log2(place + 2) if place < 10 else 0.0 for place in places])


@pytest.mark.parametrize("loss", ["cosine", "triplet", "ranking"])
def test_scores_before_during_and_after_are_those_of_the_models(tiny_folder, tmp_path, loss):
    negatives = [row["positive"] for row in PAIRS[7:] + PAIRS[:7]]
    triplets = [{**row, "negative": text} for row, text in zip(PAIRS, negatives)]
    rows = {"cosine": SCORED[:60], "triplet": triplets, "ranking": PAIRS}[loss]
    given = {"loss": loss, "prompts": False, **FAST, "rate": 1e-3}

    def score(folder):
        model = weft.Embedder(str(folder))
        fields = ("sentence1", "sentence2") if loss == "cosine" else ("anchor", "positive", "negative")
        columns = [model.encode([row[name] for row in rows], prompt="") for name in fields if name in rows[0]]
        near = (columns[0] * columns[1]).sum(axis=1)
        if loss == "cosine":
            return _spearman(near.astype("f8"), [row["score"] for row in rows])
        if loss == "triplet":
            return np.mean(near > (columns[0] * columns[2]).sum(axis=1))
        return _found_early(columns[0] @ columns[1].T, range(len(rows)))

    training = train.embedder(tiny_folder, rows, output=tmp_path / "made", valid=rows, valid_every=2, **given)
    steps = [step for step in training if step.score is not None]
    run, near = training.run, 2.5 / len(rows) ** 2 if loss == "cosine" else 1.5 / len(rows)  # a pair may change places
    assert len(steps) >= 3 and run.best[0].score == max(step.score for step in steps)
    assert run.before["score"] == pytest.approx(score(tiny_folder), abs=near)
    assert run.best[0].score == pytest.approx(score(tmp_path / "made"), abs=near)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "distilbert", "modernbert"])
def test_an_encoder_gets_a_classifier_learns_and_loads(tmp_path, name):
    base = write_cross(tmp_path / "base", next(key for key in CROSS if CROSS[key][0]["model_type"] == name))
    opened = open_safetensors(base / "model.safetensors")
    names = list(opened.tensors)
    trunk = {
        key: view for key, view in opened.tensors.items() if not key.startswith(("classifier", "pre_class", "head"))
    }
    bare = {key.partition(".")[2]: view.numpy() for key, view in trunk.items()}  # as an embedder's file has them
    write_safetensors(base / "model.safetensors", bare)
    (base / "1_Pooling").mkdir(exist_ok=True)
    (base / "modules.json").write_text(json.dumps([{"idx": 0, "type": "sentence_transformers.models.Transformer"}]))
    rows = [{"query": f"find {a}", "document": f"{b} here", "label": int(a == b)} for a in WORDS[:6] for b in WORDS[:6]]
    training = train.reranker(base, rows, output=tmp_path / "out", dropout=0.0, **{**FAST, "epochs": 1})
    first = {key: value.copy() for key, value in training.run.parameters.items()}
    assert ("classifier", "new: the model has none") in list(training.facts())
    same = train.reranker(base, rows, dropout=0.0, seed=0, **{**FAST, "epochs": 1}).run.parameters
    assert all(np.array_equal(first[key], same[key]) for key in first)  # drawn from the seed
    list(training)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification") and len(config["id2label"]) == 1
    assert not (tmp_path / "out" / "modules.json").exists()
    written = open_safetensors(tmp_path / "out" / "model.safetensors").tensors
    assert set(written) == set(names)  # those that transformers reads
    found = weft.Reranker(str(tmp_path / "out")).scores([lesson.texts for lesson in training.run.lessons[:5]])
    logits = training.run.columns(training.run.lessons[:5], training.run.parameters)[0][:, 0]
    assert np.abs(found - 1 / (1 + np.exp(-logits))).max() < 2e-5
    with pytest.raises(InputError, match="rank must be 0: the model has no classifier"):
        train.reranker(base, rows, rank=4)
