"""weft train, eval and merge: what they print and write; Ctrl-C and kill -9 lose nothing."""

import hashlib
import json
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import Run, start
from soaking import times

FAST = ("--lr", "0.01", "--batch-tokens", "200")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "chats.jsonl"
    talks = [
        [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i}{i}"}] for i in range(24)
    ]
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, generator: Path, rows: Path) -> Path:
    """An adapter that weft has trained."""
    from weft.train import lora

    folder = tmp_path_factory.mktemp("trained") / "adapter"
    list(lora(generator, rows, output=folder, rate=0.01, batch_tokens=200, epochs=4))
    return folder


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_a_training_is_told_and_written(run: Run, generator: Path, rows: Path, tmp_path: Path) -> None:
    done = run("train", "lora", str(generator), str(rows), "-o", str(tmp_path / "a"), "--valid", "0.2", *FAST)
    assert done.exit_code == 0, done.stderr
    told = done.stderr
    assert "trained: 14 matrices, 11.3 k numbers" in told and "learnt tokens:" in told and "tokens/s" in told
    assert "validation" in told and "report.html" in told and "\u28ff" not in told
    assert done.stdout.splitlines()[0] == f"weft chat {generator} --adapter {tmp_path / 'a'}"
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"adapter_config.json", "loss.svg", "report.html"}


def test_a_dry_run_writes_nothing(run: Run, generator: Path, rows: Path, tmp_path: Path) -> None:
    done = run("train", "lora", str(generator), str(rows), "-o", str(tmp_path / "a"), "--dry-run", "--epochs", "3")
    assert done.exit_code == 0, done.stderr
    for what in ("trained", "rows           24", "learnt tokens", "steps          3", "memory", "tokens/s"):
        assert what in done.stdout
    assert not (tmp_path / "a").exists()


def test_too_little_memory_is_refused_with_the_least_and_the_least_is_enough(
    run: Run, generator: Path, rows: Path, tmp_path: Path
) -> None:
    given = ("train", "lora", str(generator), str(rows), *FAST, "--steps", "3", "-o")
    refused = run(*given, str(tmp_path / "no"), "--memory", "1k")
    assert refused.exit_code == 1 and not (tmp_path / "no").exists(), refused.stderr
    found = re.search(
        r"needs at least ([\d.]+) MB \(weights .*work .*\), and 0.01 MB .* --memory (\S+),", refused.stderr
    )
    assert found and found[2] == f"{found[1]}MB", refused.stderr
    least = found[2]
    planned = run(*given, str(tmp_path / "no"), "--memory", least, "--dry-run")
    again = re.search(r"(\d+) of (\d+) parts are computed again", planned.stdout)
    assert again and 0 < int(again[1]) <= int(again[2]), planned.stdout + planned.stderr
    assert "computed again" not in run(*given, str(tmp_path / "no"), "--dry-run").stdout
    for name, more in (("plain", ()), ("least", ("--memory", least))):
        done = run(*given, str(tmp_path / name), *more)
        assert done.exit_code == 0, done.stderr
    assert digest(tmp_path / "plain") == digest(tmp_path / "least")


def test_eval_measures_with_and_without_the_adapter(run: Run, generator: Path, rows: Path, trained: Path) -> None:
    plain = json.loads(run("eval", "rows", str(generator), str(rows), "--json").stdout)
    done = run("eval", "rows", str(generator), str(rows), "--adapter", str(trained), "--rows", "--json")
    lines = done.stdout.splitlines()
    each, whole = [json.loads(line) for line in lines[:24]], json.loads("".join(lines[24:]))
    assert whole["loss"] < 0.5 * plain["loss"] and whole["accuracy"] > plain["accuracy"]
    assert [row["row"] for row in each] == list(range(1, 25))
    assert sum(row["loss"] * row["targets"] for row in each) == pytest.approx(whole["loss"] * whole["targets"])
    assert whole["exact"] == sum(row["right"] == row["targets"] for row in each)
    shown = run("eval", "rows", str(generator), str(rows)).stdout
    assert "perplexity" in shown and "exact" in shown


def test_merge_measures_and_refuses(run: Run, generator: Path, trained: Path, tmp_path: Path) -> None:
    done = run("merge", str(generator), str(trained), "-o", str(tmp_path / "m.gguf"), "--type", "f16", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["base"] > 2 * found["adapted"] and abs(found["lost"]) < 0.01
    again = run("merge", str(generator), str(trained), "-o", str(tmp_path / "n.gguf"), "--max-loss", "-1")
    assert again.exit_code == 2 and "above the adapter's, more than -1" in again.stderr
    assert [path.name for path in tmp_path.rglob("*.gguf")] == ["m.gguf"]
    shown = run("merge", str(generator), str(trained), "-o", str(tmp_path / "o.gguf")).stdout
    assert "base with adapter" in shown and "merged, as served" in shown


def test_an_adapter_is_exported_with_its_base(run: Run, generator: Path, trained: Path, tmp_path: Path) -> None:
    def weights(name: str, *given: str) -> bytes:
        done = run("export", *given, "-o", str(tmp_path / name), "--compute", "f32")
        assert done.exit_code == 0, done.stderr
        return (tmp_path / name / "weights-00001.bin").read_bytes()

    adapted = weights("adapted", str(generator), "--adapter", str(trained), "--type", "f16")
    assert run("merge", str(generator), str(trained), "-o", str(tmp_path / "m.gguf"), "--type", "f16").exit_code == 0
    assert adapted == weights("merged", str(tmp_path / "m.gguf")) != weights("base", str(generator))
    name = json.loads((tmp_path / "adapted" / "manifest.json").read_text())["name"]
    assert generator.stem in name and trained.name in name
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".merged-")]
    refused = run("export", str(generator), "-o", str(tmp_path / "none"), "--type", "f16")
    assert refused.exit_code == 2 and "--adapter" in refused.stderr


def test_an_adapter_is_exported_alone(run: Run, generator: Path, trained: Path, tmp_path: Path) -> None:
    bundle = run("export", str(generator), "-o", str(tmp_path / "b.weft"), "--adapters", "--json")
    assert bundle.exit_code == 0, bundle.stderr
    alone = ("export", str(generator), "-o", str(tmp_path / "a.safetensors"), "--adapter", str(trained), "--alone")
    done = run(*alone, "--json")
    assert done.exit_code == 0, done.stderr
    manifest = json.loads((tmp_path / "b.weft" / "manifest.json").read_text())
    assert json.loads(done.stdout)["base"] == manifest["adapters"]["base"]
    assert "logits_adapted" in manifest["programs"]
    assert run(*alone).exit_code == 2
    assert "rank" in run(*alone, "--force").stdout
    wrong = ((("--alone",), "--adapter"), ((*alone[4:], "--type", "f16"), "--type"))
    wrong += (((*alone[4:], "--shard-mb", "9"), "--shard-mb"),)
    for given, named in (*wrong, *(((*alone[4:], gpu), gpu) for gpu in ("--gpu", "--no-gpu"))):
        refused = run("export", str(generator), "-o", str(tmp_path / "x"), *given)
        assert refused.exit_code == 2 and named in refused.stderr


def test_preferences_from_the_command_line(run: Run, generator: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    made = [{"prompt": f"say {i}", "chosen": f"it is {i}", "rejected": "no idea"} for i in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in made))
    done = run("train", "dpo", str(generator), str(pairs), "-o", str(tmp_path / "a"), "--beta", "0.2", *FAST)
    assert done.exit_code == 0, done.stderr
    assert "% preferred" in done.stderr and (tmp_path / "a" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("steps, code", [(1, 0), (2, 1)])
def test_a_run_that_is_stopped_after_its_last_step_has_ended(
    run: Run,
    generator: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    code: int,
) -> None:
    from weft.cli import counting

    @contextmanager
    def at_once() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr(counting, "_stopping", at_once)
    done = run("train", "lora", str(generator), str(rows), "-o", str(tmp_path / "a"), "--steps", str(steps), *FAST)
    written = {path.name for path in (tmp_path / "a").iterdir()}
    assert ("training.safetensors" in written, "report.html" in written) == ((False, True), (True, False))[code]
    assert done.exit_code == (130 if code else 0), done.stderr


def command(generator: Path, rows: Path, folder: Path, *more: str) -> list[str]:
    return [
        "train",
        "lora",
        str(generator),
        str(rows),
        "-o",
        str(folder),
        "--steps",
        "15",
        *FAST,
        "--save-every",
        "0",
        *more,
    ]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, generator: Path, rows: Path) -> str:
    folder = tmp_path_factory.mktemp("undisturbed") / "a"
    assert start(*command(generator, rows, folder)).wait() == 0
    return digest(folder)


def wait_for_state(process: object, folder: Path, end: float = 120.0) -> None:
    until = time.monotonic() + end
    while not (folder / "training.safetensors").is_file() and time.monotonic() < until:
        assert process.poll() is None, process.stderr.read()  # type: ignore[attr-defined]
        time.sleep(0.005)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(times(100, 1)))
def test_a_run_that_was_killed_goes_on_bit_for_bit(
    generator: Path, rows: Path, undisturbed: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "a"
    process = start(*command(generator, rows, folder))
    wait_for_state(process, folder)
    time.sleep(chance.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if (folder / "training.safetensors").is_file():  # else it had ended
        again = start(*command(generator, rows, folder, "--resume"))
        assert again.wait() == 0, again.stderr.read()
    assert digest(folder) == undisturbed
    assert not (folder / "training.safetensors").exists()
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_saves_and_says_how_to_go_on(
    generator: Path, rows: Path, undisturbed: str, tmp_path: Path, number: int, code: int
) -> None:
    folder = tmp_path / "a"
    process = start(*command(generator, rows, folder))
    wait_for_state(process, folder)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == code, told
    assert b"go on with the same command and --resume" in told
    again = start(*command(generator, rows, folder, "--resume"))
    _, told = again.communicate()
    assert again.returncode == 0 and b"going on after step" in told
    assert digest(folder) == undisturbed
