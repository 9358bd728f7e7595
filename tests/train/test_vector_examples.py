"""Rows of every form become examples; what does not fit a loss is refused with the row's place."""

import json
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError
from weft.train.order import distinct_batches, shuffled
from weft.train.vectors.examples import read_examples

PAIR = {"anchor": "a", "positive": "p"}
SCORED = {"sentence1": "a", "sentence2": "b", "score": 0.5}


def test_rows_of_every_form() -> None:
    assert read_examples([PAIR, {"query": "q", "answer": "d"}], "ranking").texts == [("a", "p"), ("q", "d")]
    several = {"question": "q", "positive": "p", "negative_2": "y", "negative_1": "x", "negatives": ["z"]}
    assert read_examples([several], "ranking").texts == [("q", "p", "x", "y", "z")]
    assert read_examples([several], "triplet").texts == [("q", "p", "x"), ("q", "p", "y"), ("q", "p", "z")]
    found = read_examples([SCORED, {"text1": "c", "text2": "d", "label": -1}], "cosine")
    assert found.texts == [("a", "b"), ("c", "d")] and found.labels is not None and found.labels.tolist() == [0.5, -1]
    assert not found.asked and read_examples([PAIR], "ranking").asked
    taught = read_examples([{"text": "a", "vector": [1, 2.5]}, {"text": "b", "vector": [0, 1]}], "mse")
    assert taught.width == 1 and np.array_equal(taught.labels, [[1, 2.5], [0, 1]])
    ranked = read_examples([{"query": "q", "positive": "p", "negative": "n"}], "binary")
    assert ranked.texts == [("q", "p"), ("q", "n")] and ranked.labels is not None and ranked.labels.tolist() == [1, 0]


def test_a_csv_file_has_numbers_as_text(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\na,b,0.25\nc,d,1\n")
    found = read_examples(path, "cosent")
    assert found.labels is not None and found.labels.tolist() == [0.25, 1.0]
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in [PAIR, PAIR]))
    assert read_examples(lines, "ranking").rows == 2


@pytest.mark.parametrize(
    ("rows", "loss", "message"),
    [
        ([], "ranking", "has no rows"),
        ([{"anchor": "a"}], "ranking", "row 1 has other fields: 'anchor'.*takes 'anchor' and 'positive'"),
        ([PAIR, {**PAIR, "negative": "n"}], "ranking", "row 2 has 3 texts, and the rows before it have 2"),
        ([SCORED], "ranking", "row 1 has the field 'score', which the loss ranking does not use"),
        ([PAIR], "triplet", "row 1 has 2 texts.*'anchor', 'positive' and 'negative'"),
        ([PAIR], "cosine", "row 1 has no label"),
        ([{**SCORED, "score": 4.2}], "cosine", "row 1 must have a number of -1 to 1 in the field 'score'.*4.2"),
        ([{**SCORED, "score": "high"}], "cosent", "row 1 must have a number in the field 'score'"),
        ([{**SCORED, "score": True}], "cosent", "row 1 must have a number"),
        ([{**SCORED, "score": float("nan")}], "cosent", "row 1 must have a number"),
        (
            [{"anchor": " ", "positive": "p"}],
            "ranking",
            "row 1 must have a text that is not empty in the field 'anchor'",
        ),
        ([{"anchor": 3, "positive": "p"}], "ranking", "row 1 must have a text that is not empty"),
        ([{"text": "a"}], "mse", "row 1 has no vector"),
        ([{"text": "a", "vector": [1, "x"]}], "mse", "row 1 must have a list of numbers"),
        ([{"text": "a", "vector": [1]}, {"text": "a", "vector": [1, 2]}], "mse", "row 2 has a vector of 2 numbers"),
        ([{"query": "q", "document": "d", "label": 2}], "binary", "row 1 must have a number of 0 to 1"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: list[dict], loss: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_examples(rows, loss)


def test_a_part_is_held_out_by_rows() -> None:
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "negatives": ["x", "y"]} for n in range(10)]
    rest, held = read_examples(rows, "triplet").parted(0.2, seed=1)
    assert (rest.rows, held.rows, len(rest), len(held)) == (8, 2, 16, 4)
    assert not {texts[0] for texts in rest.texts} & {texts[0] for texts in held.texts}
    assert rest.digest() != held.digest()
    assert read_examples(rows, "triplet").parted(0.2, seed=1)[1].texts == held.texts


def test_no_text_is_in_a_batch_twice_and_every_example_comes_once() -> None:
    texts = [(f"a{n % 7}", f"p{n}") for n in range(40)]
    order = shuffled(len(texts), seed=5, epoch=0)
    batches = list(distinct_batches(texts, order, 6))
    assert sorted(number for batch in batches for number in batch) == list(range(40))
    for batch in batches:
        found = [text for number in batch for text in texts[number]]
        assert len(found) == len(set(found)) and len(batch) <= 6
    assert list(distinct_batches([(f"{n}",) for n in range(10)], range(10), 4)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
