"""What Python's `verify` refuses of a program, the check that C hosts make refuses too.

But for one thing: the core reads flags and words of attributes as numbers, so that 1 for true, or another word,
passes there if the number is one that the op may have. Only attributes that are numbers are changed here.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from weft._core import verify_program
from weft.errors import FormatError, WeftError
from weft.graph import Program
from weft.graph.verify import verify

SIZES = ["T", "B", "L", "B+1", "2*T", 0, 1, 2, 3, 7, 35, 36, 37, 48, 108, 1 << 20, 1 << 39]


def mutate(document: dict[str, Any], rng: random.Random) -> None:
    """Change one thing: a value's shape, type, kind or slot, an instruction's operands, attributes or op, a slot."""
    value, instruction = rng.choice(document["values"]), rng.choice(document["body"])
    names = [one["name"] for one in document["values"]]
    kind = rng.randrange(10)
    if kind == 0:
        value["shape"][rng.randrange(len(value["shape"]))] = rng.choice(SIZES)
    elif kind == 1:
        value["dtype"] = rng.choice(["f32", "i32", "f16", "bf16", "q8_0", "a8_32", "i8", "i64"])
    elif kind == 2 and "slot" in value:
        value["slot"] = rng.randrange(len(document["slots"]) + 1)
    elif kind == 3:
        instruction["in"][rng.randrange(len(instruction["in"]))] = rng.choice([*names, None])
    elif kind == 4 and instruction["out"]:
        instruction["out"][rng.randrange(len(instruction["out"]))] = rng.choice(names)
    elif kind == 5:
        instruction["op"] = rng.choice([one["op"] for one in document["body"]])
    elif kind == 6 and (numbers := [name for name, one in instruction["attrs"].items() if type(one) in (int, float)]):
        instruction["attrs"][rng.choice(numbers)] = rng.choice([0, 1, -1, 0.5, 3])
    elif kind == 7:
        rng.choice(document["slots"])["T"] = rng.choice([0, 4, 100])
    elif kind == 8:
        document["body"].remove(instruction)
    else:
        a, b = rng.randrange(len(document["body"])), rng.randrange(len(document["body"]))
        document["body"][a], document["body"][b] = document["body"][b], document["body"][a]


@pytest.mark.parametrize("seed", range(4))
def test_native_verify_refuses_what_python_does(st_bundle: Path, seed: int) -> None:
    text = (st_bundle / "program.json").read_text()
    verify_program(text)
    rng, refused, wrong = random.Random(seed), 0, []
    for _ in range(150):
        document = json.loads(text)
        mutate(document, rng)
        changed = json.dumps(document)
        try:
            verify(Program.from_json(changed))
        except FormatError as error:
            refused += 1
            try:
                verify_program(changed)
            except WeftError:
                continue
            wrong.append(str(error))
    assert refused > 50
    assert not wrong, "\n".join(wrong)


def test_indices_must_be_those_of_a_step(st_bundle: Path) -> None:
    """Python trusts its own programs to look rows up by the right input; a bundle is not trusted."""
    document = json.loads((st_bundle / "program.json").read_text())
    taken = next(one for one in document["body"] if one["op"] == "take_rows")
    taken["in"][1] = "segments"
    with pytest.raises(WeftError):
        verify_program(json.dumps(document))
    document = json.loads((st_bundle / "program.json").read_text())
    embedding = next(one for one in document["body"] if one["op"] == "embedding")
    embedding["in"][0] = "rows"
    with pytest.raises(WeftError):
        verify_program(json.dumps(document))
