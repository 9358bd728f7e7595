"""Forty bad inputs end in errors that name what was given and say what to do."""

import errno
import json
import os

import numpy as np
import pytest
import tiny
from tiny_chat import TEMPLATE, write_chat_model

from weft import train
from weft.errors import InputError, NotFoundError, WeftError
from weft.train import kept
from weft.train.merge import merge
from weft.weights import open_gguf, open_safetensors, write_gguf, write_safetensors

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
FORGETFUL = (
    "{% for m in messages %}{{ m.role }}: "
    "{{ m.content if loop.last or m.role == 'user' else m.content[:1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LONG = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"}]

ROWS = [  # rows or the text of a file, options, and what the error says
    ([], {}, r"\[train\] data has no rows"),
    ([{"text": ""}], {}, r"\[data\] row 1 must have a text that is not empty in the field 'text': got ''"),
    ([{"text": 7}], {}, r"row 1 must have a text that is not empty in the field 'text': got 7"),
    ([{"words": "a"}], {}, r"row 1 has none of 'messages', 'prompt' with 'completion', 'text'; its fields are 'words'"),
    ([{"prompt": "a"}], {}, r"row 1 has none of .*; its fields are 'prompt'; rename the fields"),
    (["a"], {}, r"\[data\] row 1 must be an object: got 'a'"),
    ([{"prompt": "a", "completion": ""}], {}, r"row 1 has an empty completion; remove the row"),
    (
        [{"prompt": 1, "completion": "b"}],
        {},
        r"row 1 must have text in the field 'prompt', or messages in both .*: got 1",
    ),
    ([{"prompt": TALK, "completion": "b"}], {}, r"row 1 must have text in the field 'prompt', or messages in both"),
    ([{"messages": []}], {}, r"row 1 must have a list that is not empty in the field 'messages': got \[\]"),
    ([{"messages": "[1"}], {}, r"row 1 has text in the field 'messages' that is not JSON"),
    ([{"messages": ["hi"]}], {}, r"row 1 has no message of the assistant to learn"),
    (
        [{"messages": TALK[:1]}],
        {},
        r"row 1 has no message of the assistant to learn; add one, remove the row, or --loss",
    ),
    ([{"messages": TALK + TALK[:1]}], {"loss": "completion"}, r"row 1 does not end with a message of the assistant"),
    ([{"messages": TALK[1:]}], {}, r"row 1 messages\[0\] is the assistant's, and an answer needs a message before it"),
    ([{"messages": [*TALK, {"content": "x"}]}], {}, r"row 1 messages\[2\] must be an object with a role"),
    ([{"text": "a b"}], {"loss": "assistant"}, r"row 1 is a text, which has no assistant; use --loss all"),
    ([{"prompt": "a", "completion": "b"}], {"loss": "assistant"}, r"row 1 has a prompt and a completion, which are no"),
    (
        [{"chosen": "a", "rejected": "b"}],
        {},
        r"row 1 has chosen and rejected answers; train on preferences: weft train dpo",
    ),
    ([{"text": "a" * 50}], {"max_length": 20}, r"row 1 has 51 tokens, more than 20; raise --max-length, or choose"),
    ([{"text": "abc"}], {"max_length": 1}, r"max_length must be at least 2: got 1"),
    ([{"text": "abc"}], {"too_long": "shrug"}, r"too_long must be one of error, cut, split, drop: got 'shrug'"),
    ([{"text": "abc"}], {"loss": "some"}, r"loss must be one of assistant, completion, all: got 'some'"),
    ([{"text": "abc"}], {"targets": "w_proj"}, r"targets must fit modules of the model: got 'w_proj'; did you mean"),
    ([{"text": "abc"}], {"targets": "conv"}, r"targets must fit .*: got 'conv'; this model has down_proj, gate_proj"),
    ([{"text": "abc"}], {"targets": ""}, r"targets must name at least one module: got ''; give all-linear, names"),
    ([{"text": "abc"}], {"targets": "(["}, r"targets is not a regular expression"),
    (
        [{"text": "abc"}],
        {"modules_to_save": "norm"},
        r"modules_to_save must be a list of names of modules, such as emb",
    ),
    ([{"text": "abc"}], {"modules_to_save": ["norm"]}, r"modules_to_save is a norm: .* cannot be served: got 'norm'; "),
    ([{"text": "abc"}], {"modules_to_save": ["lm_head"]}, r"modules_to_save is the head, and cannot .*: got 'lm_head'"),
    (
        [{"text": "abc"}],
        {"modules_to_save": ["wq"]},
        r"is not a matrix or table .*: got 'wq'; this model has down_proj,",
    ),
    (
        [{"text": "abc"}],
        {"modules_to_save": ["q_proj"], "targets": "q_proj"},
        r"modules_to_save names every target, so that nothing is left to adapt: got \['q_proj'\]",
    ),
    ([{"text": "abc"}], {"rank": 0}, r"rank must be at least 1: got 0"),
    ([{"text": "abc"}], {"rank": 1000}, r"rank must be at most 256: got 1000"),
    ([{"text": "abc"}], {"alpha": float("nan")}, r"alpha must be above zero: got nan"),
    ([{"text": "abc"}], {"rate": -1.0}, r"rate must be above zero: got -1.0"),
    ([{"text": "abc"}], {"warmup": 2.0}, r"warmup must be 0 to 1, a part of all steps: got 2.0"),
    ([{"text": "abc"}], {"schedule": "sine"}, r"schedule must be one of constant, linear, cosine: got 'sine'"),
    ([{"text": "abc"}], {"dropout": 1.0}, r"dropout must be 0 or more, and below 1: got 1.0"),
    ([{"text": "abc"}], {"leaning_rate": 1.0}, r"there is no option leaning_rate; options are rank, alpha"),
    ([{"text": "abc"}], {"valid": 1.5}, r"valid must be a file, or a part between 0 and 1: got 1.5"),
    ([{"text": "abc"}], {"valid": 0.5}, r"valid must leave rows on both sides, and there is 1: got 0.5"),
    (
        [{"text": "abc"}],
        {"memory": 1000},
        r"a row of \d+ tokens needs at least .* MB \(weights .*\), and 0.01 MB may be used; give --memory [\d.]+MB, or",
    ),
    ([{"text": "abc"}], {"resume": True}, r"resume needs the folder of the run; give output"),
    ([{"text": "abc"}], {"start": "no-such-folder"}, r"no such folder: no-such-folder; name the folder that holds"),
]

FILES = [  # name, content, and what the error says
    ("rows.jsonl", '{"text": "a"}\n{"text": \n', r"\[rows.jsonl\] line 2 is not JSON"),
    ("rows.jsonl", '{"text": "a"}\n[1]\n', r"\[rows.jsonl\] line 2 must be an object: got \[1\]"),
    ("rows.jsonl", '\n{"text": "a"}\n\n{"txt": "b"}\n', r"\[rows.jsonl\] line 4 has none of .*; its fields are 'txt'"),
    ("rows.csv", "text\na\nb,c\n", r"\[rows.csv\] line 3 has more or fewer values than the first line has names"),
    (
        "rows.txt",
        "a\n",
        r"the name must end in .jsonl, .ndjson, .csv, .tsv, .parquet: got 'rows.txt'; write one object",
    ),
    ("rows.parquet", "PAR1", r"rows.parquet is not a Parquet file|need pyarrow, which is not installed; pip install"),
    (None, None, r"there is no such file; name a .jsonl, .csv or .parquet file"),
]


@pytest.mark.parametrize("rows, options, what", ROWS, ids=range(len(ROWS)))
def test_bad_rows_and_options(chatty, rows, options, what):
    with pytest.raises(WeftError, match=what):
        list(train.lora(chatty, rows, **options))


@pytest.mark.parametrize("name, content, what", FILES)
def test_bad_files(chatty, tmp_path, name, content, what):
    path = tmp_path / (name or "missing.jsonl")
    if content is not None:
        path.write_text(content)
    with pytest.raises(WeftError, match=what):
        train.lora(chatty, path)


def test_templates_that_cannot_be_learnt_from(tmp_path):
    forgetful = write_chat_model(tmp_path / "f.gguf", template=FORGETFUL)
    rows = [{"messages": [*LONG, *LONG]}]
    with pytest.raises(InputError, match=r"\[data\] row 1 messages\[1\], an answer, is not written as when .*--loss"):
        train.lora(forgetful, rows)
    assert train.lora(forgetful, rows, loss="completion").data.targets == len("one") + 1
    plain = write_chat_model(tmp_path / "p.gguf", template=None)
    with pytest.raises(
        WeftError, match=r"\[data\] row 1 the model has no chat template for messages; give rows with a"
    ):
        train.lora(plain, rows)
    strict = write_chat_model(tmp_path / "s.gguf", template="{{ raise_exception('only users') }}" + TEMPLATE)
    with pytest.raises(WeftError, match=r"\[data\] row 1 the template rejects these messages: only users"):
        train.lora(strict, rows)


def test_a_model_that_does_not_generate(tmp_path):
    name = next(name for name, cfg in tiny.CONFIGS.items() if cfg["model_type"] == "bert")
    folder = tiny.write_folder(tmp_path / "bert", tiny.CONFIGS[name])
    with pytest.raises(WeftError, match="bert does not generate text, so it has no loss of the next token; choose"):
        train.lora(folder, [{"text": "a"}])
    bare = tiny.write_folder(tmp_path / "bare", tiny.LLAMA)
    with pytest.raises(NotFoundError, match="bare has no tokenizer files"):
        train.lora(bare, [{"text": "a"}])


def test_pairs_that_cannot_be_preferred(chatty):
    for row, what in (
        ({"prompt": "a", "chosen": "b"}, r"row 1 has no field 'rejected'; its fields are 'prompt', 'chosen'"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, r"row 1 has the same answer as chosen and as rejected"),
        ({"chosen": "b", "rejected": "c"}, r"row 1 must have a 'prompt' beside texts in 'chosen' and 'rejected'"),
        ({"chosen": TALK, "rejected": TALK[::-1]}, r"row 1 has conversations that do not begin with the same message"),
        (
            {"prompt": "a", "chosen": "b" * 90, "rejected": "c"},
            r"row 1 has 92 tokens in the field 'chosen', more than 50",
        ),
    ):
        with pytest.raises(WeftError, match=what):
            train.dpo(chatty, [row], max_length=50)
    with pytest.raises(
        InputError, match="too_long must be one of error, drop: a part of an answer cannot be preferred"
    ):
        train.dpo(chatty, [{"prompt": "a", "chosen": "b", "rejected": "c"}], too_long="cut")


def test_numbers_that_are_not_finite(chatty, tmp_path):
    """A base with NaN, and a rate that makes the loss overflow."""
    opened = open_gguf(chatty)
    broken = {name: view.numpy().copy() for name, view in opened.tensors.items()}
    broken["blk.0.ffn_up.weight"][0, 0] = np.nan
    write_gguf(tmp_path / "nan.gguf", broken, opened.metadata.stored())
    with pytest.raises(WeftError, match="the gradient is not finite; use a smaller rate, or look for broken rows"):
        list(train.lora(tmp_path / "nan.gguf", [{"text": "abc"}]))
    with pytest.raises(WeftError, match="the gradient is not finite"):
        list(train.lora(chatty, [{"text": "abcdef"}], rate=1e30, steps=5, warmup=0.0, schedule="constant"))


def test_an_adapter_that_does_not_fit(chatty, tmp_path):
    training = train.lora(chatty, [{"text": "abc"}], output=tmp_path / "a", rate=0.01)
    list(training)
    tensors = {
        name: view.numpy() for name, view in open_safetensors(tmp_path / "a/adapter_model.safetensors").tensors.items()
    }
    name = next(name for name in tensors if name.endswith("q_proj.lora_A.weight"))
    for changed, what in (
        ({name: tensors[name][:, :-1]}, r"q_proj is for a matrix \[48, 47\], the model's is \[48, 48\]"),
        ({name: tensors[name] * np.float32(np.inf)}, "q_proj holds numbers that are not finite"),
    ):
        write_safetensors(tmp_path / "a/adapter_model.safetensors", {**tensors, **changed})
        with pytest.raises(WeftError, match=what):
            train.lora(chatty, [{"text": "abc"}], start=tmp_path / "a")


def test_folders_and_runs_that_cannot_be_written_or_taken_up(chatty, tmp_path, monkeypatch):
    rows = [{"text": "abc"}]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; name a folder"):
        train.lora(chatty, rows, output=tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(InputError, match="is not empty; name a new folder, or remove what is there"):
        train.lora(chatty, rows, output=tmp_path / "full")
    with pytest.raises(NotFoundError, match=f"has no run to go on with: there is no {kept.FILE}; leave out --resume"):
        train.lora(chatty, rows, output=tmp_path / "none", resume=True)
    write_safetensors(tmp_path / "full" / kept.FILE, {"a": np.zeros(1)}, {"weft": "{}"})
    with pytest.raises(WeftError, match="the file is not a run of weft"):
        train.lora(chatty, rows, output=tmp_path / "full", resume=True)
    (tmp_path / "full" / kept.FILE).write_bytes(b"12345678")
    with pytest.raises(WeftError, match=kept.FILE):
        train.lora(chatty, rows, output=tmp_path / "full", resume=True)

    def no_room(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    training = train.lora(chatty, rows, output=tmp_path / "disk", save_every=0.0)
    monkeypatch.setattr("weft.weights.files.os.fsync", no_room)
    with pytest.raises(
        WeftError, match=r"cannot write to .*disk: No space left on device; make room or choose another"
    ):
        list(training)
    assert not list((tmp_path / "disk").iterdir())  # nothing that is half written


def test_merges_that_cannot_be(chatty, tmp_path):
    list(train.lora(chatty, [{"text": "abc"}], output=tmp_path / "a", rate=0.01))
    (tmp_path / "there.gguf").write_text("")
    for output, options, what in (
        ("m.gguf", {"type": "q4_k"}, "type cannot be written: got 'q4_k'; use one of f32, f16, bf16, q8_0"),
        ("there.gguf", {}, "there.gguf exists; name a new file or folder"),
        ("no/m.gguf", {}, "is not a folder; create it"),
        ("folder", {}, "output must end in .gguf, as the base does: got 'folder'"),
    ):
        with pytest.raises(WeftError, match=what):
            merge(chatty, tmp_path / "a", tmp_path / output, **options)
    (tmp_path / "a" / "sample.jsonl").write_text(json.dumps({"ids": [1, 9999], "shares": [0, 1]}) + "\n")
    with pytest.raises(InputError, match=r"\[sample.jsonl\] line 1 does not fit the model; is this adapter of another"):
        merge(chatty, tmp_path / "a", tmp_path / "m.gguf")
    (tmp_path / "a" / "sample.jsonl").unlink()
    with pytest.raises(InputError, match=r"there is nothing to measure the loss on.*give rows with --data"):
        merge(chatty, tmp_path / "a", tmp_path / "m.gguf")
