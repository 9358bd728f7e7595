"""list, pull, inspect, show, doctor and ops say what is there, and read no more than they must."""

import json
from pathlib import Path

import pytest
import tiny
from running import Run
from tiny_chat import CONFIG, TEMPLATE, write_chat_model

from weft.backends import backends_present
from weft.graph.text import from_text
from weft.ops.registry import catalogue
from weft.weights import open_weights
from weft.weights.sources.catalog import entries


def test_list_says_so_when_there_is_nothing(run: Run) -> None:
    result = run("list")
    assert result.exit_code == 0 and result.stdout == "" and "weft list --catalog" in result.stderr


def test_the_catalogue_is_listed_whole(run: Run) -> None:
    text = run("list", "--catalog").stdout
    for entry in entries():
        assert entry.name in text and entry.licence in text and entry.origin in text
    rows = json.loads(run("list", "--catalog", "--json").stdout)
    assert [row["size"] for row in rows] == [entry.bytes or None for entry in entries()]
    gated = [row["name"] for row in rows if "licence to accept" in row["from"]]
    assert gated == [entry.name for entry in entries() if entry.gated] and "unknown" in text


def test_the_model_types_are_the_files_of_models(run: Run) -> None:
    rows = {row["model type"]: row["kind"] for row in json.loads(run("list", "--models", "--json").stdout)}
    assert rows["bert"] == "encoder" and rows["llama"] == "decoder"


def test_pull_offline_fails_with_one_line(run: Run) -> None:
    result = run("pull", "all-MiniLM-L6-v2")
    assert result.exit_code == 1 and result.stdout == ""
    assert "WEFT_OFFLINE" in result.stderr and result.stderr.count("\n") == 1


def test_pull_says_where_a_model_is(run: Run, generator: Path) -> None:
    result = run("pull", str(generator))
    assert result.exit_code == 0 and str(generator) in result.stdout and "licence" in result.stdout


def test_inspect_counts_what_the_file_holds(run: Run, generator: Path) -> None:
    report = json.loads(run("inspect", str(generator), "--json", "--tensors").stdout)
    with open_weights(generator) as opened:
        assert report["format"] == "gguf" and report["architecture"] == "llama"
        assert report["tensor_count"] == len(opened.tensors) == len(report["tensors"])
        assert report["bytes"] == opened.nbytes == sum(t["bytes"] for t in report["tensors"])
        assert report["types"] == [
            {"dtype": "f32", "tensors": len(opened.tensors), "elements": opened.nbytes // 4, "bytes": opened.nbytes}
            | {"bits_per_weight": 32.0}
        ]
        assert "258 elements" in report["metadata"]["tokenizer.ggml.tokens"]


def test_inspect_shows_metadata_in_full_when_asked(run: Run, generator: Path) -> None:
    metadata = json.loads(run("inspect", str(generator), "--json", "--metadata").stdout)["metadata"]
    assert len(metadata["tokenizer.ggml.tokens"]) == 258 and metadata["tokenizer.chat_template"] == TEMPLATE


def test_inspect_reads_a_safetensors_folder(run: Run, embedder: Path) -> None:
    text = run("inspect", str(embedder), "--tensors").stdout
    assert "safetensors" in text and "bert" in text and "embeddings.word_embeddings.weight" in text


def test_what_a_file_says_does_not_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "evil.gguf", general__name="a\x1b[2Jb\x9b \u200d")
    text = run("inspect", str(path)).stdout
    assert "\x1b" not in text and "a\ufffd[2Jb\ufffd \u200d" in text


def test_inspect_of_a_broken_file_is_the_model_s_fault(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    result = run("inspect", str(path))
    assert result.exit_code == 1 and result.stderr.startswith("weft: [broken.gguf] the tensor count")


@pytest.mark.parametrize("option", ["--weights", "--program", "--template", "--config", None])
def test_show_reads_no_weight(run: Run, generator: Path, monkeypatch: pytest.MonkeyPatch, option: str | None) -> None:
    def refuse(self: object, *arguments: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr("weft.weights.files.TensorInfo.bytes", refuse)
    assert run("show", str(generator), *([option] if option else [])).exit_code == 0


def test_show_prints_a_description_that_runs(run: Run, tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "olmo2", tiny.CONFIGS["olmo2"])
    text = run("show", str(folder), "--config").stdout
    assert json.loads(text)["made_from"] == "olmo2"
    (folder / "weft.json").write_text(text)
    shown = run("show", str(folder))
    assert shown.exit_code == 0 and "generic" in shown.stdout and "pattern" in shown.stdout
    assert run("show", str(folder), "--config").stdout == text


def test_show_says_why_a_model_has_no_description(run: Run, tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "lfm2", tiny.CONFIGS["lfm2"])
    result = run("show", str(folder), "--config")
    assert result.exit_code == 1 and result.stderr == (
        "weft: [describe] a lfm2 does not fit a description: its program has the ops causal_conv\n"
    )


def test_show_prints_a_program_that_parses(run: Run, generator: Path) -> None:
    program = from_text(run("show", str(generator), "--program").stdout)
    assert program.name == "llama" and len(program.states) == CONFIG["num_hidden_layers"]


def test_show_lists_the_parameters_by_their_checkpoint_names(run: Run, generator: Path) -> None:
    text = run("show", str(generator), "--weights").stdout
    assert "model.layers.1.mlp.down_proj.weight" in text and "[48, 80]" in text


def test_show_says_how_texts_become_vectors(run: Run, embedder: Path) -> None:
    text = run("show", str(embedder)).stdout
    for said in ("text embedder", "first", "36 to 24, tanh", "48 tokens", "query: ", "hidden_size"):
        assert said in text


def test_show_prints_the_chat_template(run: Run, generator: Path) -> None:
    assert run("show", str(generator), "--template").stdout == TEMPLATE
    assert "<|im_start|>" in run("show", str(generator)).stdout


def test_doctor_explains_threads_levels_and_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_THREADS", "3")
    monkeypatch.setenv("WEFT_ISA", "scalar")
    report = json.loads(run("doctor", "--json").stdout)
    assert report["processor"]["threads"] == 3 and "WEFT_THREADS" in " ".join(report["processor"]["threads_reasons"])
    assert report["processor"]["level"] == "scalar" and "WEFT_ISA" in report["processor"]["level_reason"]
    assert report["memory"]["usable_bytes"] < report["memory"]["available_bytes"]
    assert report["offline"] == {"on": True, "reason": "WEFT_OFFLINE"}
    text = run("doctor").stdout
    assert "[scalar]" in text and "huge pages" in text and "numpy" in text
    assert report["gpu"]["device"] == "cpu" and "auto is" in report["gpu"]["reason"] and "auto is" in text


def test_doctor_works_where_packages_were_unpacked_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(package: str) -> str:
        if package == "numpy":
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    result = run("doctor", "--json")
    assert result.exit_code == 0 and "unknown" in json.loads(result.stdout)["software"]["numpy"]


def test_doctor_says_that_a_context_is_for_a_model(run: Run) -> None:
    found = run("doctor", "--context", "64")
    assert found.exit_code == 2 and "--context is for a MODEL" in found.stderr


def test_doctor_counts_a_model_before_it_is_loaded(run: Run, generator: Path, embedder: Path) -> None:
    costs = {}
    for context in (32, 64):
        report = json.loads(run("doctor", str(generator), "--context", str(context), "--json").stdout)["model"]
        assert report["fits"] and report["total_bytes"] == sum(report["bytes"].values())
        costs[context] = report["bytes"]["kv"]
    # sixteen contexts of 64 tokens, 2 layers, key and value, 2 heads of 8 channels, 4 bytes
    assert costs[64] == 2 * costs[32] == 16 * 64 * 2 * 2 * 2 * 8 * 4
    assert "working memory" in run("doctor", str(embedder)).stdout


def test_ops_is_the_catalogue_on_every_backend_here(run: Run) -> None:
    rows = json.loads(run("ops", "--json").stdout)
    assert [row["op"] for row in rows] == list(catalogue())
    assert set(rows[0]["backends"]) == {backend.name for backend in backends_present()} | {"gpu"}
    assert all(row["backends"]["reference"] == "kernel" and row["meaning"] for row in rows)
    lines = run("ops", "--markdown").stdout.splitlines()
    assert len(lines) == len(rows) + 2 and len({line.replace("\\|", "").count("|") for line in lines}) == 1
