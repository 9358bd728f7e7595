"""A task that can be checked: dates in words, as JSON. A model that has never seen a word learns it; the how-to
docs/howto/train-an-adapter.md does the same with a real one."""

import json
import random
import sys
from pathlib import Path

import pytest
import tiny_chat

import weft
from weft import train
from weft.train.measure import evaluate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.dates import row

HELD = 40


def short(month: int, day: int) -> dict[str, str]:
    """A row of the example without its year, which a tiny model would need long for."""
    made = row(1911, month, day)
    return {
        "prompt": made["prompt"].removeprefix("the ").replace(" nineteen eleven", ""),
        "completion": json.dumps([month, day]),
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory, request):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_chat, "CONFIG", {**tiny_chat.CONFIG, **sizes, "head_dim": 16})
        return tiny_chat.write_chat_model(tmp_path_factory.mktemp("task") / "tiny.gguf")


def test_dates_that_were_never_seen_are_written_right(model, tmp_path):
    rows = [short(month, day) for month in range(1, 13) for day in range(1, 29)]
    random.Random(0).shuffle(rows)
    assert evaluate(model, rows[:HELD]).exact == 0
    options = {"rank": 64, "alpha": 64, "rate": 5e-3, "epochs": 14, "batch_tokens": 600}
    steps = list(train.lora(model, rows[HELD:], output=tmp_path / "a", **options))
    measured = evaluate(model, rows[:HELD], adapter=tmp_path / "a")
    assert measured.rows == HELD and measured.exact >= 0.9 * HELD, (steps[-1], measured)
    served = weft.load(model)
    served.adapters.load("dates", tmp_path / "a")
    answers = [served.generate(row["prompt"], temperature=0, max_tokens=20, adapter="dates") for row in rows[:HELD]]
    assert sum(a.text == row["completion"] for a, row in zip(answers, rows)) == measured.exact  # decoding says the same
