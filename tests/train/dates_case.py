"""The training that PEFT's losses are recorded of: SmolLM2 in Q4_1 learns whole texts of examples/dates.py.

The loss is of all tokens: what nobody can know of a date stays, so that the last losses are not close to zero.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from weft import train
from weft.train import Training

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.dates import row

MODEL = "smollm2-135m-instruct"
STEPS, CLOSE = 200, 20  # all, and those whose losses are compared one by one
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OPTIONS: dict[str, Any] = {"rank": 8, "alpha": 16, "rate": 2e-4, "batch_tokens": 26, "loss": "all", "seed": 0}


def rows() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Those that are learnt, and those that are held out: days of a year, in random order."""
    made = []
    for month in range(1, 13):
        for day in range(1, 29):
            said = row(1911, month, day)["prompt"].removeprefix("the ").replace(" nineteen eleven", "")
            made.append({"prompt": said, "completion": f" {json.dumps([month, day])}"})
    random.Random(0).shuffle(made)
    return made[36:], made[:36]


def training(model: Any = MODEL, **options: Any) -> Training:
    """The training of 200 steps, whose validation loss is measured after the last."""
    learnt, held = rows()
    given = {**OPTIONS, "steps": STEPS, "valid_every": STEPS, "targets": list(TARGETS), "valid": held, **options}
    return train.lora(model, learnt, **given)
