"""A contrastive step makes labels learnable that frozen vectors do not show; it is repeatable bit for bit and goes on
where it was stopped; the folder is one classifier like any other."""

import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from tiny_st import write_st_folder

from weft.classify import Classifier, FewShot, train_classifier
from weft.classify.pairs import every_pair, few_pairs
from weft.classify.training import evaluate
from weft.cli.app import app
from weft.errors import InputError, NotFoundError

# Words that are one token each.
NOISE = ["the", "of", "and", "to", "do", "run", "see", "old", "small", "quick", "kept", "has", "is", "this", "they"]
TELLING = {"cloth": ["wool", "weaver"], "code": ["brackets", "tokens"]}
FAST = {"rate": 3e-3, "pairs": 3, "threads": 1}


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """One word of five tells the label, and the vectors of random weights are mostly the others."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        label = list(TELLING)[number % 2]
        words = [*rng.choice(NOISE, 4).tolist(), str(rng.choice(TELLING[label]))]
        made.append({"text": " ".join(words[i] for i in rng.permutation(5)), "label": label})
    return made


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("fewshot") / "model")


def made(embedder: Path, folder: Path, count: int = 24, **options):
    run = FewShot(embedder, rows(count, 1), folder, **{**FAST, **options})
    for training in run.trainings():
        for _ in training:
            pass
    return run.finish()


@pytest.fixture(scope="module")
def folder(embedder, tmp_path_factory) -> Path:
    return made(embedder, tmp_path_factory.mktemp("fewshot") / "made").folder


def test_the_encoder_learns_what_frozen_vectors_do_not_show(embedder, tmp_path):
    tests = rows(200, 2)
    frozen = train_classifier(embedder, rows(64, 1), tmp_path / "frozen", threads=1)
    before = evaluate(Classifier(frozen.folder, threads=1), tests).accuracy
    folder = made(embedder, tmp_path / "made", count=64, pairs=8, dropout=0.0).folder
    after = evaluate(Classifier(folder, threads=1), tests).accuracy
    assert before < 0.8 and after > 0.88, (before, after)
    about = json.loads((folder / "classifier.json").read_text())
    assert about["fingerprint"] != str(Classifier(frozen.folder, threads=1).embedder.fingerprint)
    assert about["base"] == "./embedder" and about["trained"]["few_shot"]["pairs"] == 8
    assert about["trained"]["held_out"] == "by an encoder that learnt the others" and about["measures"]["rows"] == 16
    assert sorted(path.name for path in folder.iterdir()) == ["classifier.json", "embedder", "head.safetensors"]


def files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("embedder/model.safetensors", "head.safetensors")]


def test_threads_and_memory_change_no_bit(embedder, folder, tmp_path):
    other = made(embedder, tmp_path / "other", threads=2, memory=8 << 20)
    assert files(other.folder) == files(folder)
    assert files(made(embedder, tmp_path / "seed", seed=1).folder) != files(folder)


@pytest.mark.parametrize("stop", [(0, 3), (1, 5), (1, None)])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(embedder, folder, tmp_path, stop):
    """Stopped in the first training, in the second one, and when both had ended."""
    run = FewShot(embedder, rows(24, 1), tmp_path / "run", **FAST)
    for number, training in enumerate(run.trainings()):
        for _ in islice(training, stop[1] if number == stop[0] else None):
            pass
        if number == stop[0]:
            if stop[1] is not None:
                training.keep()
            break
    with pytest.raises(InputError, match=r"not ended.*--resume"):
        FewShot(embedder, rows(24, 1), tmp_path / "run", **FAST)
    with pytest.raises(InputError, match="data was"):
        FewShot(embedder, rows(24, 9), tmp_path / "run", resume=True, **FAST)
    with pytest.raises(InputError, match="pairs was 3"):
        FewShot(embedder, rows(24, 1), tmp_path / "run", resume=True, **{**FAST, "pairs": 9})
    assert files(made(embedder, tmp_path / "run", resume=True).folder) == files(folder)
    assert not (tmp_path / "run" / "few-shot.json").exists()
    with pytest.raises(InputError, match="has ended"):
        made(embedder, tmp_path / "run", resume=True)


def test_a_run_that_saved_nothing_begins_again(embedder, folder, tmp_path):
    run = FewShot(embedder, rows(24, 1), tmp_path / "run", **FAST)
    for _ in islice(next(iter(run.trainings())), 2):
        pass
    (tmp_path / "run" / "measuring" / "model.safetensors").write_bytes(b"half of it")
    assert files(made(embedder, tmp_path / "run", resume=True).folder) == files(folder)


def test_the_command_line_makes_a_folder_that_can_be_moved_and_served(embedder, folder, tmp_path):
    from weft.serve import BackgroundServer, ModelSpec, Settings

    data, valid = tmp_path / "rows.jsonl", tmp_path / "valid.jsonl"
    for path, some in ((data, rows(24, 1)), (valid, rows(40, 3))):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    run = CliRunner()
    asked = ["train", "classifier", str(embedder), str(data), "--threads", "1", "-o"]
    few = ["--few-shot", "--pairs", "3", "--lr", "3e-3"]
    told = run.invoke(app, [*asked, str(tmp_path / "own"), *few, "--valid", str(valid), "--json"])
    assert told.exit_code == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["held_out"] == "valid" and found["rows"] == 40 and "contrast" in found["seconds"]
    assert (tmp_path / "own" / "embedder" / "model.safetensors").read_bytes() == files(folder)[0]
    shutil.move(tmp_path / "own", tmp_path / "moved")
    texts = [row["text"] for row in rows(6, 4)]
    printed = run.invoke(app, ["classify", str(tmp_path / "moved"), *texts])
    labels = [json.loads(line)["label"] for line in printed.stdout.splitlines()]
    assert labels == [one.label for one in Classifier(tmp_path / "moved", threads=1).classify(texts)]
    settings = Settings(models=(ModelSpec("own", str(tmp_path / "moved"), {"threads": 1}),), port=0)
    with BackgroundServer(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        data = client.post("/v1/classify", json={"input": texts}).json()["data"]
        assert [one["label"] for one in data] == labels
    alone = run.invoke(app, [*asked, str(tmp_path / "no"), "--lr", "1e-4"])
    assert alone.exit_code == 2 and "--lr is for --few-shot" in alone.stderr


def test_a_registry_keeps_it_and_serves_it(folder, tmp_path):
    run, where = CliRunner(), str(tmp_path / "registry")
    added = run.invoke(app, ["registry", "add", "few", str(folder), "1.0.0", "--registry", where])
    assert added.exit_code == 0, added.stderr
    from weft.registry import Registry

    with Registry(where) as registry:
        assert registry.get("few@1.0.0").kind == "classifier"
        kept = registry.path("few@1.0.0")
    texts = [row["text"] for row in rows(6, 4)]
    assert Classifier(kept, threads=1).classify(texts) == Classifier(folder, threads=1).classify(texts)


def test_an_adapter_is_added_to_the_encoder(embedder, tmp_path):
    found = made(embedder, tmp_path / "low", count=64, rank=8, rate=1e-2, pairs=8, dropout=0.0, valid=rows(20, 3))
    assert json.loads((found.folder / "classifier.json").read_text())["base"] == "./embedder/merged"
    assert evaluate(Classifier(found.folder, threads=1), rows(100, 2)).accuracy > 0.82


def test_pairs_are_of_other_texts_and_have_the_right_cosine():
    labels = [0] * 5 + [1] * 3 + [2]
    found = few_pairs(labels, 4, 0)
    assert all((labels[one] == labels[two]) is (score == 1.0) and one != two for one, two, score in found)
    kinds = Counter((one, score) for one, _, score in found)
    assert all(kinds[text, 0.0] == 4 and kinds[text, 1.0] == (4 if text < 8 else 0) for text in range(9))
    assert {two for one, two, score in found if one == 0 and score} == {1, 2, 3, 4}
    assert found == few_pairs(labels, 4, 0) != few_pairs(labels, 4, 1)
    assert sorted(found[: len(found) // 2]) == sorted(few_pairs(labels, 2, 0))  # more pairs are those and others
    alike, all_pairs = 10 + 3, 36
    for sampling, count in (("unique", all_pairs), ("oversampling", 2 * (36 - 13)), ("undersampling", 2 * 13)):
        made = every_pair(labels, sampling, 0)
        assert len(made) == count and all((labels[a] == labels[b]) is (s == 1.0) and a < b for a, b, s in made)
        if sampling != "undersampling":
            assert len(set(made)) == all_pairs
    assert sum(score for _, _, score in every_pair(labels, "unique", 0)) == alike


def test_what_cannot_be_paired_is_refused(embedder, tmp_path):
    few = [{"text": f"text {n}", "label": str(n % 2)} for n in range(2)]
    with pytest.raises(InputError, match=r"too few.*--valid"):
        FewShot(embedder, few, tmp_path / "a", threads=1)
    with pytest.raises(InputError, match="one with two texts"):
        FewShot(embedder, few, tmp_path / "a", valid=few, threads=1)
    with pytest.raises(InputError, match="sampling must be one of"):
        FewShot(embedder, rows(8, 0), tmp_path / "a", sampling="all", threads=1)
    with pytest.raises(InputError, match="pairs must be"):
        FewShot(embedder, rows(8, 0), tmp_path / "a", pairs=0, threads=1)
    with pytest.raises(InputError, match="50,005,000 pairs"):
        every_pair(np.arange(10_001) % 2, "unique", 0)
    with pytest.raises(NotFoundError, match="no run to go on with"):
        FewShot(embedder, rows(8, 0), tmp_path / "a", resume=True, threads=1)
    assert not (tmp_path / "a").exists()
