"""weft bench vs train: the same lessons for every engine, the same loss before the first step, speed and memory."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weft.bench import cases, workloads
from weft.bench.peers import weft_candidates
from weft.bench.versus import agreement
from weft.errors import InputError, UnsupportedError

SIZES = cases.Sizes(prompt=48, chats=3, longest=90, remembered=64)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    from weft.cli.app import app

    monkeypatch.delenv("WEFT_PEER_PYTHON", raising=False)
    monkeypatch.setattr("weft.bench.roofs.SECONDS", 0.001)
    monkeypatch.setattr("weft.bench.roofs.REPEATS", 2)
    monkeypatch.setattr("weft.bench.versus.REST_S", 0.0)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["bench", "vs", "train", "--threads", "1", *arguments], prog_name="weft")

    return call


def test_lessons_have_the_lengths_asked_for_and_only_answers_of_chats_are_learnt(generator: Path) -> None:
    plan = cases.plan("train", str(generator), threads=1, sizes=SIZES)
    text, chats = (workload.check["lessons"] for workload in plan.workloads)
    assert [workload.name for workload in plan.workloads] == ["train_48", "train_ragged"]
    assert len(text) == 1 and len(text[0]["ids"]) == 48 and text[0]["learnt"] == [1] * 48
    lengths = [len(chat["ids"]) for chat in chats]
    assert all(wanted - 8 <= length <= wanted for length, wanted in zip(lengths, [90, 65, 40], strict=True))
    for chat in chats:
        assert len(chat["learnt"]) == len(chat["ids"]) and 0 < sum(chat["learnt"]) < 0.8 * len(chat["ids"])
        assert chat["learnt"][0] == 0
    again = cases.plan("train", str(generator), threads=1, sizes=SIZES)
    assert again.workloads[1].check == plan.workloads[1].check
    assert plan.remembered is not None and len(plan.remembered.workloads[0].check["lessons"][0]["ids"]) == 64


def test_lengths_are_spread_evenly_over_the_range() -> None:
    assert workloads.spread(4, 40, 700) == [700, 480, 260, 40]
    assert workloads.spread(1, 40, 700) == [700]


def test_losses_are_compared_by_their_relative_difference() -> None:
    assert agreement([2.0], [2.0 + 4e-6]) == "2e-06"
    assert agreement([1, 2, 3], [1, 2, 4]) == "2/3"


def test_speed_and_memory_stand_beside_the_peers(
    run: Callable[..., Result], generator: Path, learners: Callable[..., Path]
) -> None:
    result = run("-m", str(generator), "--quick", "--prompt", "32", "--sequences", "2", "--rounds", "2",
                 "--peers", str(learners()), "--peer-python", sys.executable)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    record = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    fast = [own.label for own in weft_candidates("train")][1:]  # what is faster than f32 here, if anything is
    assert fast in ([], ["weft f16"], ["weft bf16"])
    rows = [(row["workload"], row["runner"], row["unit"]) for row in record["rows"]]
    assert [row for row in rows if row[1] in fast] == [
        (name, own, "tokens/s") for name in ("train_32", "train_ragged") for own in fast
    ]
    record["rows"] = [row for row in record["rows"] if row["runner"] not in fast]
    assert [row for row in rows if row[1] not in fast] == [
        ("train_32", "weft f32", "tokens/s"),
        ("train_32", "Steps f32", "tokens/s"),
        ("train_ragged", "weft f32", "tokens/s"),
        ("train_ragged", "Steps f32", "tokens/s"),
        ("train_256 memory", "weft f32", "MB"),
        ("train_256 memory", "Memory f32", "MB"),
    ]
    assert all(row["median"] > 0 for row in record["rows"])
    assert [row.get("agreement") for row in record["rows"][:4]] == [None, "0e+00", None, "0e+00"]
    assert len(record["rows"][0]["values"]) == 2 and len(record["rows"][4]["values"]) == 1
    assert list(record["workloads"]) == ["train_32", "train_ragged", "train_256"]
    assert record["about"]["Steps f32"] == "not weft"


def test_another_loss_before_the_first_step_is_an_error(
    run: Callable[..., Result], generator: Path, learners: Callable[..., Path]
) -> None:
    result = run("-m", str(generator), "--quick", "--prompt", "32", "--rounds", "1", "--peers", str(learners(1.001)),
                 "--peer-python", sys.executable)  # fmt: skip
    assert result.exit_code == 1
    assert "the loss before the first step is" in result.stderr and "Steps" in result.stderr


def test_without_a_peer_it_says_what_to_install(run: Callable[..., Result], generator: Path, peers: Path) -> None:
    result = run("-m", str(generator), "--quick", "--peers", str(peers), "--peer-python", sys.executable)
    assert result.exit_code == 2
    assert "has no peer" in result.stderr and "install torch, transformers, peft, gguf and trl" in result.stderr


def test_packages_that_are_missing_are_named(run: Callable[..., Result], generator: Path) -> None:
    result = run("-m", str(generator), "--quick", "--only", "peft", "--peer-python", sys.executable)
    if result.exit_code == 0:
        pytest.skip("this interpreter has peft")
    assert result.exit_code == 2 and "not installed: PEFT" in result.stderr and "lacks torch" in result.stderr


def test_what_cannot_be_trained_is_an_error(embedder: Path, generator: Path, tmp_path: Path) -> None:
    from tiny_chat import write_chat_model

    with pytest.raises(UnsupportedError, match="does not generate text"):
        cases.plan("train", str(embedder), threads=1)
    with pytest.raises(InputError, match="the workload needs 5000 tokens"):
        cases.plan("train", str(generator), threads=1, sizes=cases.Sizes(remembered=5000))
    with pytest.raises(UnsupportedError, match="no chat template"):
        cases.plan("train", str(write_chat_model(tmp_path / "mute.gguf", template=None)), threads=1, sizes=SIZES)
