"""weft train embedder, reranker and mine: what they print and write, what is refused; kill -9 loses nothing; stores and
indexes do not mix what was learnt with what was not."""

import hashlib
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Run, start
from soaking import times
from tiny_rerank import CROSS, LABELLED, write_cross

import weft
from weft.errors import WeftError

WORDS = ["red", "blue", "green", "cat", "dog", "fish", "sun", "moon", "star", "tree", "leaf", "root"]
PAIRS = [{"anchor": f"{a} {b}", "positive": f"{b} the {a}"} for a in WORDS[:6] for b in WORDS[6:]]
SCORED = [
    {"sentence1": a, "sentence2": b, "score": float(i // 3 == j // 3)}
    for i, a in enumerate(WORDS)
    for j, b in enumerate(WORDS)
    if i != j
]
FAST = ("--lr", "2e-3", "--batch", "8", "--threads", "1")


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("rows")
    return {
        "pairs": written(folder / "pairs.jsonl", PAIRS),
        "scored": written(folder / "scored.jsonl", SCORED),
        "valid": written(folder / "valid.jsonl", SCORED[::5]),
    }


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> str:
    name = next(name for name in CROSS if name not in LABELLED)
    return str(write_cross(tmp_path_factory.mktemp("cross") / "model", name))


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_an_embedder_is_trained_told_and_used(run: Run, embedder: Path, data: dict[str, str], tmp_path: Path) -> None:
    made = str(tmp_path / "made")
    given = ("--loss", "cosine", "--valid", data["valid"], "--epochs", "2")
    done = run("train", "embedder", str(embedder), data["scored"], "-o", made, *given, *FAST)
    assert done.exit_code == 0, done.stderr
    for told in ("trained: all weights", "rows: 132", "loss: cosine", "measured by spearman", "compute: f32", "best"):
        assert told in done.stderr
    assert done.stdout.splitlines()[0] == f"weft embed -m {made} --input texts.txt --output vectors.npy"
    assert {"model.safetensors", "modules.json", "report.html"} <= {path.name for path in Path(made).iterdir()}
    vectors = run("embed", "red", "-m", made, "--output", "-")
    base = run("embed", "red", "-m", str(embedder), "--output", "-")
    assert vectors.exit_code == base.exit_code == 0 and vectors.stdout != base.stdout


def test_an_adapter_is_trained_and_used_from_the_command_line(
    run: Run, embedder: Path, data: dict[str, str], tmp_path: Path
) -> None:
    made = str(tmp_path / "made")
    given = ("--lora", "4", "--merged", "--dims", "16,8", "--compute", "auto")
    done = run("train", "embedder", str(embedder), data["pairs"], "-o", made, *given, *FAST)
    assert done.exit_code == 0, done.stderr
    assert "matrices" in done.stderr and "vectors of 16, 8 numbers" in done.stderr
    assert done.stdout.splitlines()[0].startswith(f"weft embed -m {embedder} --adapter {made} ")
    used = {"adapter": ("-m", str(embedder), "--adapter", made), "merged": ("-m", f"{made}/merged")}
    for name, model in used.items():
        done = run("embed", "red", "blue cat", *model, "--output", str(tmp_path / f"{name}.npy"))
        assert done.exit_code == 0, done.stderr
    left, right = (np.load(tmp_path / f"{name}.npy") for name in used)
    assert np.abs(left - right).max() < 1e-5


def test_a_dry_run_says_what_would_be_and_writes_nothing(
    run: Run, embedder: Path, data: dict[str, str], tmp_path: Path
) -> None:
    done = run("train", "embedder", str(embedder), data["pairs"], "-o", str(tmp_path / "no"), "--dry-run", *FAST)
    assert done.exit_code == 0, done.stderr
    for told in ("all weights", "36", "ranking", "memory", "tokens/s", "compute"):
        assert told in done.stdout
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (("--full", "--lora", "4", "-o", "no"), 2, "give one of them"),
        (("--dims", "8,x", "-o", "no"), 2, "give whole numbers"),
        ((), 2, "no folder for the model"),
        (("--steps", "0", "-o", "no"), 2, "0 is not in the range x>=1"),
        (("--compute", "bf16", "-o", "no"), 2, "where all weights are trained, none is frozen"),
        (("--loss", "triplet", "-o", "no"), 2, "takes 'anchor', 'positive' and 'negative'"),
    ],
)
def test_what_is_mistaken_is_told(
    run: Run, embedder: Path, data: dict[str, str], given: tuple[str, ...], code: int, message: str
) -> None:
    done = run("train", "embedder", str(embedder), data["pairs"], *given)
    assert done.exit_code == code and message in done.stderr, done.stderr


def test_negatives_are_mined_and_learnt(run: Run, embedder: Path, data: dict[str, str], tmp_path: Path) -> None:
    triplets, made = tmp_path / "triplets.jsonl", str(tmp_path / "made")
    done = run("train", "mine", str(embedder), data["pairs"], "-o", str(triplets), "--negatives", "2", "--threads", "1")
    assert done.exit_code == 0 and "72 rows of 36 pairs" in done.stderr, done.stderr
    rows = [json.loads(line) for line in triplets.read_text().splitlines()]
    positives = {row["anchor"]: row["positive"] for row in PAIRS}
    # The two positives of others that are nearest, computed here from the vectors alone.
    model = weft.Embedder(str(embedder), threads=1)
    asked = model.embed(list(positives), prompt_name="query").vectors
    found = model.embed(list(positives.values()), prompt_name=model.document_prompt_name).vectors
    near = (asked @ found.T) / np.linalg.norm(asked, axis=1)[:, None] / np.linalg.norm(found, axis=1)
    for at, anchor in enumerate(positives):
        others = [(-near[at, j], text) for j, text in enumerate(positives.values()) if text != positives[anchor]]
        expected = {text for _, text in sorted(others)[:2]}
        assert {row["negative"] for row in rows if row["anchor"] == anchor} == expected
    learnt = run("train", "embedder", str(embedder), str(triplets), "-o", made, "--loss", "triplet", *FAST)
    assert learnt.exit_code == 0, learnt.stderr


def test_a_reranker_is_trained_on_mined_pairs_and_used(
    run: Run, embedder: Path, cross: str, data: dict[str, str], tmp_path: Path
) -> None:
    labelled, made = tmp_path / "labelled.jsonl", str(tmp_path / "made")
    mined = run(
        "train", "mine", str(embedder), data["pairs"], "-o", str(labelled), "--form", "pair", "--negatives", "1"
    )
    assert mined.exit_code == 0, mined.stderr
    done = run("train", "reranker", cross, str(labelled), "-o", made, "--valid", "0.2", *FAST)
    assert done.exit_code == 0 and "average_precision" in done.stderr, done.stderr
    texts = tmp_path / "documents.txt"
    texts.write_text("red here\nblue there\n")
    assert done.stdout.splitlines()[0] == f'weft rerank {made} "a question" documents.txt'
    used = run("rerank", made, "red", str(texts))
    assert used.exit_code == 0 and "red here" in used.stdout, used.stderr


def test_stores_and_indexes_do_not_mix_and_migrate(
    run: Run, embedder: Path, data: dict[str, str], tmp_path: Path
) -> None:
    made, base = str(tmp_path / "made"), str(embedder)
    trained = run("train", "embedder", base, data["pairs"], "-o", made, "--steps", "2", *FAST)
    assert trained.exit_code == 0, trained.stderr
    assert str(weft.Embedder(made).fingerprint) != str(weft.Embedder(base).fingerprint)
    index = weft.Index.from_embedder(weft.Embedder(base))
    index.add(["a"], weft.Embedder(base).embed(["red"]))
    with pytest.raises(WeftError, match="fingerprint"):
        index.add(["b"], weft.Embedder(made).embed(["blue"]))
    store = str(tmp_path / "notes.db")
    texts = written(tmp_path / "notes.jsonl", [{"id": f"d{i}", "text": f"{word} note"} for i, word in enumerate(WORDS)])
    assert run("store", "add", store, texts).exit_code == 0
    for model in (base, made):
        moved = run("migrate", store, "--to", model)
        assert moved.exit_code == 0 and "12 of 12 documents embedded" in moved.stderr, moved.stderr
    back = run("migrate", "rollback", store)
    assert back.exit_code == 0 and "rolled back" in back.stderr.lower(), back.stderr


def command(embedder: Path, data: dict[str, str], folder: Path, *more: str) -> list[str]:
    given = ["--loss", "cosine", "--valid", data["valid"], "--valid-every", "7", "--steps", "40", "--save-every", "0"]
    return ["train", "embedder", str(embedder), data["scored"], "-o", str(folder), *given, *FAST, *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, embedder: Path, data: dict[str, str]) -> str:
    folder = tmp_path_factory.mktemp("undisturbed") / "made"
    process = start(*command(embedder, data, folder))
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return digest(folder)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(times(30, 2)))
def test_a_run_that_was_killed_goes_on_bit_for_bit(
    embedder: Path, data: dict[str, str], undisturbed: str, tmp_path: Path, seed: int
) -> None:
    chance, folder = random.Random(seed), tmp_path / "made"
    process = start(*command(embedder, data, folder))
    until = time.monotonic() + 300
    while process.poll() is None and not (folder / "training.safetensors").is_file() and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if not (folder / "report.html").is_file():  # else it had ended
        again = start(*command(embedder, data, folder, "--resume"))
        _, said = again.communicate(timeout=600)
        assert again.returncode == 0, said
    assert digest(folder) == undisturbed
    assert not (folder / "training.safetensors").exists()
