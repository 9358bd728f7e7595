"""What Python's `verify` refuses of a program, the check that C hosts make refuses too.

But for one thing: the core reads flags and words of attributes as numbers, so that 1 for true, or another word,
passes there if the number is one that the op may have. Only attributes that are numbers are changed here.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from seeds_bundle import decoder
from tiny_chat import write_chat_model

from weft._core import verify_program
from weft.errors import FormatError, WeftError
from weft.export import export
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


@pytest.fixture(scope="module")
def programs(st_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of an encoder, and of decoders that write and read a state: in f32, with adapters too, and in int8 arithmetic."""
    folder = tmp_path_factory.mktemp("programs")
    found = {"encoder": st_bundle}
    found["decoder"] = export(str(write_chat_model(folder / "m.gguf")), folder / "m.weft", adapters=True).path
    found["int8"] = decoder(folder, "q8_0", None)
    texts = {name: (bundle / "program.json").read_text() for name, bundle in found.items()}
    return {**texts, "adapted": (found["decoder"] / "program-adapted.json").read_text()}


@pytest.mark.parametrize(
    ("kind", "seed"),
    [*(("encoder", seed) for seed in range(4)), ("decoder", 5), ("int8", 6), ("adapted", 7), ("adapted", 8)],
)
def test_native_verify_refuses_what_python_does(programs: dict[str, str], kind: str, seed: int) -> None:
    text = programs[kind]
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


def test_adapters_must_be_those_of_the_rows(programs: dict[str, str]) -> None:
    """The kernel looks up the token of a row that is asked for, and then its sequence."""
    body = json.loads(programs["adapted"])["body"]
    owners = {number: one["in"][5] for number, one in enumerate(body) if one["op"] == "lora"}

    def refused(number: int, operand: int, name: str | None) -> None:
        document = json.loads(programs["adapted"])
        document["body"][number]["in"][operand] = name
        with pytest.raises(WeftError):
            verify_program(json.dumps(document))

    head = next(number for number, rows in owners.items() if rows == "rows")
    refused(head, 5, None)
    inner = next(number for number, rows in owners.items() if rows is None)
    refused(inner, 5, "rows")
    for number in (head, inner):
        refused(number, 3, "adapters")
        refused(number, 4, "rows")
        refused(number, 4, None)
        refused(number, 2, "positions")
    document = json.loads(programs["adapted"])
    table = next(value for value in document["values"] if value["kind"] == "table")
    table["shape"][0] += 1
    with pytest.raises(WeftError):
        verify_program(json.dumps(document))


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
