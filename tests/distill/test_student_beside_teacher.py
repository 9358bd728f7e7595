"""Done-when 7: a student within two points of its teacher, on messages that benchmarks/distillation.py makes."""

import importlib.util
import json
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner
from tiny_st import write_st_folder

from weft import Classifier, distill
from weft.classify import train_classifier
from weft.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("weft_distillation", ROOT / "benchmarks" / "distillation.py")
assert spec and spec.loader
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)


def test_messages_are_the_same_every_time_and_of_all_intents():
    rows = made.messages(0, 300)
    assert rows == made.messages(0, 300) and rows != made.messages(0, 300, seed=1)
    assert {row["label"] for row in rows} == set(made.INTENTS)
    assert len({row["text"] for row in rows}) > 200


def write_embedder(folder: Path, width: int) -> Path:
    """Random weights; the mean of one layer's tokens, by which words can be told apart."""
    write_st_folder(folder)
    cfg = {**tiny.BERT, "vocab_size": 221, "hidden_size": width, "num_attention_heads": 4, "num_hidden_layers": 1}
    tiny.write_folder(folder, cfg)
    pooling = {"word_embedding_dimension": width, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [one for one in json.loads((folder / "modules.json").read_text()) if not one["type"].endswith("Dense")]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_a_student_is_within_two_points_of_its_teacher(tmp_path):
    """The teacher is a classifier that has learnt true labels; its file of labels and probabilities is all that the
    student, on other vectors, learns from."""
    own, left, valid = made.messages(0, 500), made.messages(10**6, 1000), made.messages(3 * 10**6, 200)
    seen = {row["text"] for row in (*own, *left, *valid)}
    tests = made.messages(4 * 10**6, 500)
    tests = [row for row in tests if row["text"] not in seen]
    assert len(tests) > 150
    how = {"c": 300.0, "valid": valid}
    train_classifier(write_embedder(tmp_path / "base", 64), own, tmp_path / "teacher", **how)
    (tmp_path / "left.jsonl").write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in left))
    given = ["classify", str(tmp_path / "teacher"), "-f", str(tmp_path / "left.jsonl"), "--all"]
    said = CliRunner().invoke(app, given, prog_name="weft")
    assert said.exit_code == 0, said.output
    (tmp_path / "answers.jsonl").write_text(said.stdout)
    asked = distill.Prompting(labels=tuple(made.INTENTS))
    done = distill.label(
        tmp_path / "left.jsonl", f"file:{tmp_path / 'answers.jsonl'}", tmp_path / "labelled", prompting=asked
    )
    assert done.labelled == len(left) and not done.failed
    first = json.loads((tmp_path / "labelled" / "labels.jsonl").read_text().splitlines()[0])
    assert set(first["probabilities"]) == set(made.INTENTS)
    base = write_embedder(tmp_path / "other", 96)
    distill.train("classifier", base, tmp_path / "labelled", output=tmp_path / "student", **{**how, "c": 3000.0})
    right = {}
    for name in ("teacher", "student"):
        found = Classifier(tmp_path / name).classify([row["text"] for row in tests])
        right[name] = made.accuracy([one.best for one in found], tests)
    assert right["teacher"] > 0.6  # it has learnt something; one in six is chance
    assert right["student"] >= right["teacher"] - 0.02, right


@pytest.mark.parametrize("key", ["id", "text"])
def test_a_file_teacher_is_known_by_id_or_text(tmp_path, key):
    rows = [{"id": n, "text": f"text {n}"} for n in range(4)]
    answers = [{key: row[key], "label": "Even." if n % 2 == 0 else "odd"} for n, row in enumerate(rows)][:3]
    answers[1]["probabilities"] = {"odd": 0.8, "even": 0.2}
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    asked = distill.Prompting(labels=("even", "odd"))
    done = distill.label(rows, f"file:{tmp_path / 'answers.jsonl'}", tmp_path / "out", prompting=asked)
    assert (done.labelled, done.failed, done.sent, done.cost) == (3, {"not asked": 1}, 0, 0)
    found = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [row["label"] for row in found] == ["even", "odd", "even"]
    assert [row.get("probabilities") for row in found] == [None, {"odd": 0.8, "even": 0.2}, None]
    again = distill.label(rows, f"file:{tmp_path / 'answers.jsonl'}", tmp_path / "out", prompting=asked)
    assert again.labelled == 3
