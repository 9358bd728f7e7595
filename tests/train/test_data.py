"""Rows of every form and file become the same lessons; what is too long is cut, split, dropped or named."""

import csv
import json

import numpy as np
import pytest

from weft.errors import InputError, TooLongError
from weft.graph.passes.learn import LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner
from weft.train.data.encode import Encoder
from weft.train.data.lessons import read_lessons
from weft.train.data.pairs import read_pairs

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}


@pytest.fixture(scope="module")
def checkpoint(chatty):
    return open_checkpoint(chatty)


@pytest.fixture(scope="module")
def make(checkpoint):
    tokenizer = checkpoint.tokenizer()
    return lambda loss=None: Encoder(tokenizer, checkpoint.chat_template, tokenizer.eos_id, loss)


def read(make, rows, loss=None, **options):
    return read_lessons(rows, make(loss), **{"max_length": 500, **options})


def learnt(make, rows, loss=None):
    """The text that is learnt of each row."""
    tokenizer = make().tokenizer
    found = read(make, rows, loss).lessons
    return [tokenizer.decode(lesson.ids[lesson.shares > 0], skip_special=False) for lesson in found]


def test_every_form_learns_what_it_is_for(make, chats):
    assert learnt(make, [{"text": "abc"}]) == ["abc<|im_end|>"]
    assert learnt(make, [{"prompt": "2+2=", "completion": "4"}]) == ["4<|im_end|>"]
    assert learnt(make, [{"prompt": "2+2=", "completion": "4"}], "all") == ["2+2=4<|im_end|>"]
    two = [{"messages": [*chats[0]["messages"], *chats[1]["messages"]]}]
    assert learnt(make, two) == ["it is 00<|im_end|>it is 11<|im_end|>"] == learnt(make, two, "assistant")
    assert learnt(make, two, "completion") == ["it is 11<|im_end|>"]
    assert learnt(make, two, "all")[0].startswith("<|im_start|>user\nsay 0<|im_end|>\n<|im_start|>assistant\nit is 00")
    split = [{"prompt": two[0]["messages"][:3], "completion": two[0]["messages"][3:]}]
    assert learnt(make, split) == ["it is 11<|im_end|>"]


def test_tools_and_calls_are_written_as_when_they_are_served(make):
    row = {"messages": [{"role": "user", "content": "1+1?"}, CALL], "tools": TOOLS}
    (text,) = learnt(make, [row])
    assert text.startswith("<tool_call>") and '"add"' in text and text.endswith("<|im_end|>")
    assert '"add"' in make().tokenizer.decode(read(make, [row]).lessons[0].ids)  # described before the user speaks


def test_files_of_every_kind_give_the_same_lessons(make, chats, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in chats))
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "messages"])
        writer.writeheader()
        writer.writerows({"id": i, "messages": json.dumps(row["messages"])} for i, row in enumerate(chats))
    write_table(pyarrow.Table.from_pylist(chats), tmp_path / "a.parquet")
    digests = {read(make, tmp_path / f"a.{ending}").digest() for ending in ("jsonl", "csv", "parquet")}
    assert digests == {read(make, chats).digest()} and read(make, chats[::-1]).digest() not in digests


def test_rows_that_are_too_long(make):
    rows = [{"text": "short"}, {"text": "abcdefghijkl"}]
    with pytest.raises(TooLongError, match=r"\[data\] row 2 has 13 tokens, more than 8; raise --max-length, or"):
        read(make, rows, max_length=8)
    cut = read(make, rows, max_length=8, too_long="cut")
    assert [len(lesson.ids) for lesson in cut.lessons] == [6, 8] and cut.cut == 1
    drop = read(make, rows, max_length=8, too_long="drop")
    assert len(drop.lessons) == 1 and drop.dropped == 1 and drop.rows == 2
    split = read(make, rows, max_length=5, too_long="split")
    assert split.split == 2 and split.sources == [0, 0, 1, 1, 1]
    tokenizer = make().tokenizer
    assert [tokenizer.decode(one.ids, skip_special=False) for one in split.lessons[2:]] == [
        "abcde",
        "efghi",
        "ijkl<|im_end|>",
    ]
    assert split.targets == 5 + 12  # every token but the first of each row is predicted once
    with pytest.raises(InputError, match="has 1 rows, and none is left to learn from"):
        read(make, rows[1:], max_length=8, too_long="drop")


def test_a_part_is_held_back_by_rows(make, chats):
    found = read(make, chats)
    rest, held = found.parted(0.25, seed=3)
    assert (held.rows, rest.rows) == (6, 18) and not set(held.sources) & set(rest.sources)
    assert found.parted(0.25, seed=3)[1].sources == held.sources != found.parted(0.25, seed=4)[1].sources


def test_sequences_packed_together_do_not_see_each_other(checkpoint, make, chats):
    """Each lesson's losses and their gradient are those it has alone."""
    learner = Learner(checkpoint, {"model.layers.1.self_attn.q_proj.weight": LowRank(2, 1.0)})
    rng = np.random.default_rng(0)
    parameters = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in learner.shapes.items()}
    lessons = read(make, [*chats[:5], {"text": "a longer text than the others, of other words"}]).lessons
    together = learner.each_loss(lessons, parameters)
    alone = [learner.each_loss([lesson], parameters)[0] for lesson in lessons]
    assert all(np.array_equal(one, other) for one, other in zip(together, alone))


def test_pairs_of_every_form(make):
    tokenizer = make().tokenizer
    talk = [{"role": "user", "content": "hi"}]
    good, bad = ({"role": "assistant", "content": text} for text in ("yes", "no"))
    rows = [
        {"prompt": "p", "chosen": "yes", "rejected": "no"},
        {"prompt": talk, "chosen": "yes", "rejected": "no"},
        {"prompt": talk, "chosen": [good], "rejected": [bad]},
        {"chosen": [*talk, good], "rejected": [*talk, bad]},
    ]
    pairs = read_pairs(rows, make(), max_length=100).lessons
    for pair in pairs:
        for lesson, text in ((pair.chosen, "yes"), (pair.rejected, "no")):
            assert tokenizer.decode(lesson.ids[lesson.shares > 0], skip_special=False) == f"{text}<|im_end|>"
    assert len({tokenizer.decode(pair.chosen.ids, skip_special=False) for pair in pairs[1:]}) == 1
