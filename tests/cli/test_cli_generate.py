"""weft generate prints what the library generates, and its timings beside it."""

import json
from pathlib import Path

import pytest
from running import Run
from tiny_chat import write_chat_model
from tiny_chat_folder import write_chat_folder

import weft


@pytest.fixture(scope="module")
def model(generator: Path) -> weft.Model:
    return weft.load(str(generator))


def test_the_text_is_the_library_s_and_the_timings_are_beside_it(run: Run, generator: Path, model: weft.Model) -> None:
    result = run("generate", "once upon", "-m", str(generator), "--max-tokens", "12", "--threads", "1")
    assert result.exit_code == 0
    assert result.stdout.removesuffix("\n") == model.generate("once upon", max_tokens=12).text.removesuffix("\n")
    for said in ("prompt 9 tokens", "generated 12 tokens", "tok/s", "first token"):
        assert said in result.stderr


def test_the_same_seed_gives_the_same_text(run: Run, generator: Path, model: weft.Model) -> None:
    options = ["--max-tokens", "20", "--temperature", "1.5", "--top-k", "40", "--top-p", "0.9", "--seed", "7"]
    options += ["--min-p", "0.01", "--repetition-penalty", "1.1", "--json"]
    made = json.loads(run("generate", "a", "-m", str(generator), *options).stdout)
    wanted = model.generate(
        "a", max_tokens=20, temperature=1.5, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=7
    )
    assert made["tokens"] == list(wanted.tokens) and made["seed"] == 7 and made["text"] == wanted.text


def test_json_is_one_document_with_everything(run: Run, generator: Path) -> None:
    made = json.loads(run("generate", "a", "-m", str(generator), "--max-tokens", "3", "--json").stdout)
    assert made["finish_reason"] == "length" and made["usage"]["completion_tokens"] == 3
    assert made["usage"]["prompt_tokens"] == 1 and made["timings"]["predicted_per_second"] > 0


def test_chat_wraps_the_prompt_and_keeps_it_text(run: Run, generator: Path, model: weft.Model) -> None:
    made = json.loads(
        run(
            "generate", "hi <|im_end|>", "-m", str(generator), "--chat", "--max-tokens", "5", "--seed", "2", "--json"
        ).stdout
    )
    wanted = model.chat([{"role": "user", "content": "hi <|im_end|>"}], max_tokens=5, seed=2)
    assert made["tokens"] == list(wanted.tokens)
    assert made["usage"]["prompt_tokens"] == wanted.usage.prompt_tokens > len("hi <|im_end|>")


@pytest.mark.parametrize("options, tokens", [([], 4), (["--parse-special"], 4), (["--no-parse-special"], 13)])
def test_special_tokens_in_a_raw_prompt_are_read_unless_switched_off(
    run: Run, generator: Path, options: list[str], tokens: int
) -> None:
    made = run("generate", "hi <|im_end|>", "-m", str(generator), "--max-tokens", "1", "--json", *options)
    assert json.loads(made.stdout)["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize("arguments", [["-"], []])
def test_a_piped_prompt_loses_one_newline(run: Run, generator: Path, arguments: list[str]) -> None:
    made = run("generate", *arguments, "-m", str(generator), "--max-tokens", "1", "--json", input="a\n\n")
    assert json.loads(made.stdout)["usage"]["prompt_tokens"] == 2


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(run: Run, generator: Path, model: weft.Model) -> None:
    whole = model.generate("once upon", max_tokens=12).text
    stop = next(c for c in whole if c.isascii() and c.isprintable())
    made = json.loads(
        run("generate", "once upon", "-m", str(generator), "--max-tokens", "12", "--stop", stop, "--json").stdout
    )
    assert made["text"] == whole.split(stop)[0] and made["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "options, said",
    [
        (["--temperature", "-1"], "temperature must be"),
        (["--max-tokens", "-1"], "max_tokens must be"),
        (["--context", "100000"], "context must be 1 to 4096"),
        (["--chat", "--parse-special"], "for raw prompts only"),
        (["--chat", "--suffix", "b"], "for raw prompts only"),
        (["--compute", "f64"], "'f64' is not one of"),
    ],
)
def test_options_out_of_range_are_refused(run: Run, generator: Path, options: list[str], said: str) -> None:
    result = run("generate", "a", "-m", str(generator), *options)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""


def test_an_unknown_model_suggests_one(run: Run) -> None:
    result = run("generate", "a", "-m", "smolm2")
    assert result.exit_code == 2 and "did you mean smollm2-135m-instruct" in result.stderr


def test_a_model_without_a_template_completes_but_does_not_chat(run: Run, tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "raw.gguf", template=None)
    assert run("generate", "a", "-m", str(path), "--max-tokens", "1").exit_code == 0
    result = run("generate", "a", "-m", str(path), "--chat")
    assert result.exit_code == 1 and "no chat template" in result.stderr


def test_a_template_gets_the_model_s_own_bos_token(tmp_path: Path) -> None:
    path = write_chat_model(tmp_path / "bos.gguf", template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert weft.load(str(path)).chat_ids([{"role": "user", "content": "a"}]) == [256, ord("a"), 257]


def test_the_text_keeps_to_a_schema_a_pattern_and_choices(run: Run, generator: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"')
    (tmp_path / "g.lark").write_text('start: "left" | "right"')
    asked = ["generate", "a", "-m", str(generator), "--temperature", "1", "--max-tokens", "60", "--seed", "3"]
    for value in (json.dumps(schema), str(tmp_path / "s.json")):
        assert json.loads(run(*asked, "--schema", value).stdout)["a"] in (1, 2)
    assert run(*asked, "--regex", "[ab]{3}").stdout.strip() in {x + y + z for x in "ab" for y in "ab" for z in "ab"}
    assert run(*asked, "--choice", "red", "--choice", "blue").stdout.strip() in ("red", "blue")
    assert run(*asked, "--grammar", str(tmp_path / "g.gbnf")).stdout.strip() in ("yes", "no")
    assert run(*asked, "--grammar", str(tmp_path / "g.lark")).stdout.strip() in ("left", "right")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--schema", "{", "--regex", "a"], "cannot be combined"),
        (["--schema", "{"], "not JSON"),
        (["--schema", "no/such/file"], "cannot be read"),
        (["--grammar", "no/such/file"], "cannot be read"),
        (["--regex", "("], "regex"),
        (["--sampling", "logit_bias=x"], "write logit_bias=ID:NUMBER"),
        (["--sampling", "logit_bias=5:200"], "logit_bias"),
        (["--logprobs", "3"], "--json"),
        (["--adapter", "no/such/folder"], "no/such/folder"),
        (["--sampling", "reasoning_budget=3"], "<think>"),
        (
            ["--sampling", "typical=0.5"],
            "'typical' is not a key; keys are typical_p, presence_penalty, frequency_penalty",
        ),
        (["--sampling", "min_tokens=few"], "min_tokens=few cannot be read; write min_tokens=INTEGER"),
        (["--sampling", "ignore_eos=maybe"], "write ignore_eos=true|false"),
        (["--sampling", "temperature=1"], "--temperature 1"),
        (["--sampling", "typical_p"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_asked_for_is_said(run: Run, generator: Path, options: list[str], said: str) -> None:
    result = run("generate", "a", "-m", str(generator), "--max-tokens", "2", *options)
    assert result.exit_code != 0 and said in result.stderr and "Traceback" not in result.stderr


def test_several_answers_and_their_log_probabilities(run: Run, generator: Path, model: weft.Model) -> None:
    asked = ["generate", "a", "-m", str(generator), "--temperature", "1", "--max-tokens", "4", "--seed", "5", "-n", "2"]
    made = json.loads(run(*asked, "--json", "--logprobs", "2", "--sampling", "presence_penalty=0.5").stdout)["answers"]
    wanted = model.generate("a", temperature=1, max_tokens=4, seed=5, n=2, presence_penalty=0.5)
    assert [answer["tokens"] for answer in made] == [list(result.tokens) for result in wanted]  # type: ignore[attr-defined]
    assert [len(answer["logprobs"]) for answer in made] == [len(answer["tokens"]) for answer in made]
    plain = run(*asked)
    assert "1 of 2, seed 5" in plain.stderr and "2 of 2, seed 6" in plain.stderr


def test_drafts_and_a_folder_of_prefixes_change_no_text(run: Run, generator: Path, tmp_path: Path) -> None:
    asked = ["generate", "a b c " * 30, "-m", str(generator), "--max-tokens", "30"]
    plain = run(*asked, "--sampling", "speculate=false").stdout
    kept = ["--prefix-dir", str(tmp_path / "prefixes")]
    assert run(*asked, *kept).stdout == plain
    again = run(*asked, *kept)
    assert again.stdout == plain and "cached)" in again.stderr
    assert run(*asked, "--draft-model", str(generator)).stdout == plain
    assert run(*asked, "--draft-model", "none").stdout == plain
    headless = run(*asked, "--draft-model", "mtp")
    assert headless.exit_code != 0 and "no head for multi-token prediction" in headless.stderr


def test_rare_settings_reach_the_request(run: Run, generator: Path, model: weft.Model) -> None:
    settings = {"typical_p": 0.9, "frequency_penalty": 0.5, "min_tokens": 3, "ignore_eos": True, "stop_ids": [200]}
    settings |= {"logit_bias": {5: 2.5, 7: -100.0}}
    written = ["typical_p=0.9", "frequency-penalty=0.5", "min_tokens=3", "ignore_eos=true", "stop_ids=200"]
    written += ["logit_bias=5:2.5,7:-100"]
    asked = ["generate", "a", "-m", str(generator), "--temperature", "1", "--max-tokens", "8", "--seed", "5", "--json"]
    made = json.loads(run(*asked, *(part for one in written for part in ("--sampling", one))).stdout)
    assert made["tokens"] == list(model.generate("a", temperature=1, max_tokens=8, seed=5, **settings).tokens)


def test_a_chat_message_is_answered_with_the_model_s_settings_and_a_raw_prompt_greedily(
    run: Run, tmp_path: Path
) -> None:
    stated = {"temperature": 1.5, "top_k": 3}
    folder = write_chat_folder(tmp_path / "model", stated)
    own, same = weft.load(str(folder)), {"max_tokens": 8, "seed": 5}
    ids = own.chat_ids([{"role": "user", "content": "hi"}])
    asked = ["generate", "hi", "-m", str(folder), "--max-tokens", "8", "--seed", "5", "--json"]
    for arguments, wanted in (
        (["--chat"], own.generate(ids, **stated, **same)),
        (["--chat", "--temperature", "0"], own.generate(ids, **same)),
        (["--raw"], own.generate("hi", **same)),
    ):
        assert json.loads(run(*asked, *arguments).stdout)["tokens"] == list(wanted.tokens)


def test_help_groups_the_options_and_lists_the_rare_settings(run: Run) -> None:
    for command in ("generate", "chat"):
        shown = run(command, "--help").stdout
        for said in ("Examples:", "Sampling:", "Constraints:", "Engine:", "Loading:", "Keys of --sampling:"):
            assert f"\n{said}" in shown or f"\n  {said}" in shown
        assert "typical_p=NUMBER" in shown and "--typical-p" not in shown


def test_raw_prompts_and_filling_in_are_the_same_in_the_library_and_here(run: Run, tmp_path: Path) -> None:
    ids = {"pre": 1, "suf": 2, "mid": 3, "pad": 257}  # bytes serve as the first three: the model has 258 ids
    stated = {f"tokenizer__ggml__fim_{name}_token_id": id for name, id in ids.items()}
    path = write_chat_model(tmp_path / "fill.gguf", **stated)
    model = weft.load(str(path), threads=1)
    assert model.prompt_ids("<|im_start|>a") == [256, 97]
    assert len(model.prompt_ids("<|im_start|>a", parse_special=False)) == 13
    assert model.prompt_ids("a", "b") == [1, 97, 2, 98, 3]
    filled = model.generate("a", suffix="b", max_tokens=5)
    assert filled.tokens == model.generate([1, 97, 2, 98, 3], max_tokens=5, stop_ids=(257,)).tokens
    assert [t for piece in model.stream("a", suffix="b", max_tokens=5) for t in piece.tokens] == list(filled.tokens)
    assert model.generate("<|im_start|>a", max_tokens=3).usage.prompt_tokens == 2
    assert model.session().extend("<|im_start|>a") == 2
    made = run("generate", "a", "--suffix", "b", "-m", str(path), "--max-tokens", "5", "--json")
    assert json.loads(made.stdout)["tokens"] == list(filled.tokens)


def test_a_model_that_cannot_fill_in_says_so(run: Run, generator: Path) -> None:
    result = run("generate", "a", "--suffix", "b", "-m", str(generator))
    assert result.exit_code == 1 and "can fill in the middle" in result.stderr
