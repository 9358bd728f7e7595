"""weft embed writes the library's vectors, whole and in order, in every format, and nothing else to stdout."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import tiny_adapters
from click.testing import CliRunner
from running import Run
from tiny_st import OUTPUTS, PROMPTS

import weft
from weft.cli.app import app

TEXTS = ["the cat sat", "", "one two three", "Hello, WORLD!"]


@pytest.fixture(scope="module")
def expected(embedder: Path) -> np.ndarray:
    return weft.Embedder(str(embedder)).encode(TEXTS)


def test_arguments_print_a_table_that_compares_them(run: Run, embedder: Path, expected: np.ndarray) -> None:
    result = run("embed", TEXTS[0], TEXTS[2], "-m", str(embedder))
    similarity = f"{expected[0] @ expected[2]:.3f}"
    assert result.exit_code == 0 and result.stdout.count(similarity) == 2 and result.stdout.count("1.000") >= 2
    assert "cosine" in result.stdout and f"{expected[0][0]:.3f}" in result.stdout
    assert "2 texts" in result.stderr and f"{OUTPUTS} dimensions" in result.stderr


def test_one_argument_prints_its_whole_vector(run: Run, embedder: Path, expected: np.ndarray) -> None:
    line = run("embed", TEXTS[0], "-m", str(embedder)).stdout
    assert np.array_equal(np.array(line.split(), np.float32), expected[0])  # all digits that a float32 has


@pytest.mark.parametrize("ending", ["txt", "jsonl", "npy"])
def test_a_file_s_lines_become_rows_in_order_empty_ones_included(
    run: Run, embedder: Path, expected: np.ndarray, tmp_path: Path, ending: str
) -> None:
    source, target = tmp_path / "in.txt", tmp_path / f"out.{ending}"
    source.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    result = run("embed", "-m", str(embedder), "--input", str(source), "--output", str(target))
    assert result.exit_code == 0 and result.stdout == ""
    assert np.array_equal(_read(target.read_bytes(), ending), expected)


@pytest.mark.parametrize("form, ending", [("text", "txt"), ("jsonl", "jsonl"), ("npy", "npy")])
def test_standard_input_to_standard_output_is_clean(
    embedder: Path, expected: np.ndarray, form: str, ending: str
) -> None:
    arguments = ["embed", "-m", str(embedder), "--format", form]
    result = CliRunner().invoke(app, arguments, input="\n".join(TEXTS))
    assert result.exit_code == 0, result.stderr
    assert np.array_equal(_read(result.stdout_bytes, ending), expected)


def _read(content: bytes, ending: str) -> np.ndarray:
    if ending == "npy":
        return np.load(io.BytesIO(content), allow_pickle=False)
    lines = content.decode().splitlines()
    rows = [json.loads(line)["embedding"] for line in lines] if ending == "jsonl" else [line.split() for line in lines]
    return np.array(rows, np.float32)


def test_json_lines_keep_their_other_fields(run: Run, embedder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps({"id": i, "body": text}) + "\n\n" for i, text in enumerate(TEXTS)))
    result = run("embed", "-m", str(embedder), "--input", str(source), "--field", "body", "--format", "jsonl")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["id"], row["body"]) for row in rows] == list(enumerate(TEXTS))
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)


def test_a_field_says_that_standard_input_is_json_lines(run: Run, embedder: Path, expected: np.ndarray) -> None:
    lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    result = run("embed", "-m", str(embedder), "--field", "body", "--format", "jsonl", "--output", "-", input=lines)
    rows = [json.loads(line)["embedding"] for line in result.stdout.splitlines()]
    assert np.array_equal(np.array(rows, np.float32), expected)


def test_a_line_separator_inside_a_text_does_not_split_it(run: Run, embedder: Path) -> None:
    result = run("embed", "-m", str(embedder), "--format", "jsonl", input="a\u2028b\x0bc\r\nd\n")
    assert [json.loads(line)["text"] for line in result.stdout[:-1].split("\n")] == ["a\u2028b\x0bc", "d"]


@pytest.mark.parametrize("name", ["query", "document"])
def test_a_prompt_is_put_before_each_text(run: Run, embedder: Path, name: str) -> None:
    line = run("embed", "the cat", "-m", str(embedder), "--prompt-name", name).stdout
    wanted = weft.Embedder(str(embedder)).encode(PROMPTS[name] + "the cat")
    assert np.array_equal(np.array(line.split(), np.float32), wanted)


def test_vectors_may_keep_their_length(run: Run, embedder: Path) -> None:
    line = run("embed", "the cat", "-m", str(embedder), "--no-normalise").stdout
    assert abs(np.linalg.norm(np.array(line.split(), np.float32)) - 1) > 0.01


def test_a_long_text_is_refused_unless_a_cut_is_asked_for(run: Run, embedder: Path) -> None:
    text = "cat " * 100
    refused = run("embed", text, "-m", str(embedder))
    assert refused.exit_code == 2 and "the model takes 48" in refused.stderr and refused.stdout == ""
    assert run("embed", text, "-m", str(embedder), "--truncate", "head").exit_code == 0


@pytest.mark.parametrize(
    "content, said, written",
    [
        (b'{"text": "a"}\n{"text": 1}\n', "line 2 has no text in the field 'text'", 1),
        (b'{"text": "a"}\nnonsense\n', "line 2 is not JSON", 1),
        (b"[1]\n", "line 1 ", 0),
        (b"\xff\n", "not UTF-8 at byte 0", 0),
    ],
)
def test_a_bad_input_names_the_line_and_what_stands_before_it_is_written(
    run: Run, embedder: Path, tmp_path: Path, content: bytes, said: str, written: int
) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    result = run("embed", "-m", str(embedder), "--input", str(tmp_path / "in.jsonl"))
    assert result.exit_code == 2 and said in result.stderr and result.stdout.count("\n") == written


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["a", "--input", "b"], "give one of them"),
        (["--input", "missing.txt"], "No such file"),
        (["a", "--prompt-name", "qurey"], "one of the model's prompts ('query', 'document')"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, embedder: Path, arguments: list[str], said: str) -> None:
    result = run("embed", "-m", str(embedder), *arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_an_output_that_cannot_be_written_is_one_line(run: Run, embedder: Path, tmp_path: Path) -> None:
    result = run("embed", "a", "-m", str(embedder), "--output", str(tmp_path / "missing" / "out.npy"))
    assert result.exit_code == 2 and result.stderr.startswith("weft: ") and result.stderr.count("\n") == 1
    assert "missing is not a folder; create it, or write elsewhere" in result.stderr and ".part" not in result.stderr


def test_a_generator_embeds_where_the_caller_says_how(run: Run, generator: Path) -> None:
    result = run("embed", "a", "-m", str(generator))
    assert result.exit_code == 1 and "do not say how hidden states are pooled" in result.stderr
    result = run("embed", "a", "-m", str(generator), "--pooling", "last")
    assert result.exit_code == 0 and len(result.stdout.split()) > 8


@pytest.mark.parametrize("weights", [(None,), (0.5,), (0.75, 0.25)])
@pytest.mark.parametrize("prompt_name", [None, "query"])
def test_adapters_are_loaded_and_blended(
    run: Run, embedder: Path, tmp_path: Path, weights: tuple[float | None, ...], prompt_name: str | None
) -> None:
    library, arguments = weft.Embedder(str(embedder)), []
    config = json.loads((embedder / "config.json").read_text())
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": ["query", "value"]}
    for seed, weight in enumerate(weights):
        folder = tiny_adapters.write_adapter(tmp_path / f"a{seed}", config, settings, "f32", seed)
        library.adapters.load(f"{seed}", folder)
        arguments += ["--adapter", str(folder) if weight is None else f"{folder}={weight}"]
    name = "0" if weights == (None,) else "blend"
    if name == "blend":
        library.adapters.blend(name, {f"{seed}": weight for seed, weight in enumerate(weights)})
    wanted = library.encode(TEXTS, prompt_name=prompt_name, adapter=name)
    assert np.abs(wanted - library.encode(TEXTS, prompt_name=prompt_name)).max() > 1e-3
    more = [] if prompt_name is None else ["--prompt-name", prompt_name]
    result = run("embed", *TEXTS, "-m", str(embedder), "--output", str(tmp_path / "out.npy"), *arguments, *more)
    assert result.exit_code == 0, result.stderr
    assert np.array_equal(np.load(tmp_path / "out.npy"), wanted)


def test_an_adapter_that_is_not_there_is_named(run: Run, embedder: Path) -> None:
    result = run("embed", "a", "-m", str(embedder), "--adapter", "no/such/folder")
    assert result.exit_code != 0 and "no/such/folder" in result.stderr


def test_a_table_without_an_output_is_read_as_a_table(
    run: Run, embedder: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,body\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)))
    result = run(
        "embed", "-m", str(embedder), "--input", str(tmp_path / "in.csv"), "--field", "body", "--format", "jsonl"
    )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)


@pytest.mark.parametrize("dtype", ["f16", "int8", "binary"])
def test_smaller_numbers_are_written_as_they_are(run: Run, embedder: Path, tmp_path: Path, dtype: str) -> None:
    target = tmp_path / "out.npy"
    assert run("embed", *TEXTS, "-m", str(embedder), "--output-dtype", dtype, "-o", str(target)).exit_code == 0
    wanted = weft.Embedder(str(embedder)).encode(TEXTS, output_dtype=dtype)
    found = np.load(target)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_every_form_has_the_scales_of_int8_or_is_refused(run: Run, embedder: Path, tmp_path: Path) -> None:
    wanted = weft.Embedder(str(embedder)).embed(TEXTS, output_dtype="int8")
    arguments = ("embed", "-m", str(embedder), "--output-dtype", "int8")
    lines = run(*arguments, "--format", "jsonl", *TEXTS).stdout.splitlines()
    assert np.array_equal(np.array([json.loads(line)["scale"] for line in lines], np.float32), wanted.scales)
    assert run(*arguments, "-o", str(tmp_path / "out.npy"), *TEXTS).exit_code == 0
    assert np.array_equal(np.load(tmp_path / "out.scales.npy"), wanted.scales)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    refused = [
        run(*arguments, "-o", str(tmp_path / "out.txt"), *TEXTS),
        run(*arguments, "-o", str(tmp_path / "out.txt"), "-i", str(tmp_path / "in.txt")),
        run(*arguments, TEXTS[0]),
    ]
    assert all(result.exit_code == 2 and "text cannot hold the scales" in result.stderr for result in refused)
    result = run(*arguments, "--format", "npy", *TEXTS)
    assert result.exit_code == 2 and "give --output" in result.stderr and result.stdout_bytes == b""


@pytest.mark.parametrize("dtype", ["f16", "int8", "binary"])
def test_the_table_compares_vectors_and_not_their_codes(run: Run, embedder: Path, dtype: str) -> None:
    library = weft.Embedder(str(embedder))
    texts = [TEXTS[0], TEXTS[2]]
    vectors = library.encode(texts)
    wanted = float(vectors[0] @ vectors[1])
    if dtype == "binary":
        signs = np.where(vectors >= 0, 1, -1)
        wanted = float((signs[0] * signs[1]).mean())
    table = run("embed", *texts, "-m", str(embedder), "--output-dtype", dtype).stdout.splitlines()
    shown = [float(line.split()[-1]) for line in table if line.startswith("1 ")] + [
        float(line.split()[-2]) for line in table if line.startswith("2 ")
    ]
    assert len(shown) == 2 and all(abs(score - wanted) <= 0.01 for score in shown)


@pytest.mark.parametrize(
    "name, said", [("x.csv", "no known ending (.db"), ("x.db", "sqlite needs an input and an output file")]
)
def test_a_name_means_the_same_for_arguments_as_for_files(run: Run, embedder: Path, name: str, said: str) -> None:
    result = run("embed", "a", "-m", str(embedder), "--output", name)
    assert result.exit_code == 2 and said in result.stderr and not Path(name).exists()


def test_an_ending_in_capitals_is_the_same(run: Run, embedder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    assert run("embed", *TEXTS, "-m", str(embedder), "--output", str(tmp_path / "x.NPY")).exit_code == 0
    assert np.array_equal(np.load(tmp_path / "x.NPY"), expected)


def test_a_server_makes_the_vectors_where_one_is_named(run: Run, server: str, tmp_path: Path) -> None:
    asked = ("embed", "-m", "lengths", "--base-url", server, "--api-key-env", "MY_KEY")
    result = run(*asked, "abc")
    assert result.exit_code == 0 and result.stdout == "3.0 1.0\n", result.stderr
    (tmp_path / "in.txt").write_text("a\nbb\n")
    assert run(*asked, "-i", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy")).exit_code == 0
    assert np.load(tmp_path / "out.npy").tolist() == [[1, 1], [2, 1]]
    assert "cosine similarity" in run(*asked, "a", "bb").stdout
    denied = run(*asked[:-2], "a")
    assert denied.exit_code == 1 and "who are you?" in denied.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--api-key-env", "NO_SUCH"], "'NO_SUCH' is not set"),
        (["--pooling", "mean"], "--pooling works for models on this machine only"),
        (["--compute", "int8"], "--compute works for models on this machine only"),
        (["--adapter", "x"], "--adapter works for models on this machine only"),
    ],
)
def test_a_server_is_not_asked_what_it_cannot_do(run: Run, server: str, arguments: list[str], said: str) -> None:
    result = run("embed", "a", "--base-url", server, *arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_one_text_is_not_told_as_several(run: Run, embedder: Path, tmp_path: Path) -> None:
    assert run("embed", "a", "-m", str(embedder)).stderr.startswith("1 text, ")
    (tmp_path / "a.txt").write_text("a\n")
    made = run("embed", "-m", str(embedder), "-i", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.npy"))
    assert made.stderr.startswith("1 row, "), made.stderr


def test_what_came_from_the_cache_is_told(run: Run, embedder: Path, tmp_path: Path) -> None:
    given = ("embed", "the cat", "a dog", "-m", str(embedder), "--cache", str(tmp_path / "vectors.sqlite"))
    assert "from the cache" not in run(*given).stderr
    assert run(*given).stderr.startswith("2 texts (2 from the cache), ")
    held = json.loads(run("cache", "--file", str(tmp_path / "vectors.sqlite"), "--json").stdout)
    assert held["vectors"] == 2  # and none of a text that nobody gave
