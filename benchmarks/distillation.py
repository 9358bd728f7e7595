"""How near a student comes to its teacher, on messages that this script makes.

python benchmarks/distillation.py FOLDER [--taught 240] [--labelled 600] [--tests 300] [--teacher smollm2-135m-instruct]
                                         [--student all-MiniLM-L6-v2] [--seed 0]

The teacher is a text generator with an adapter that has learnt a few labelled messages, merged. It labels messages
without labels through `weft distill label local:`. A classifier on an embedder's vectors
learns from that. Both are judged by messages that nobody has learnt; where the teacher gives none of the labels, it is
wrong.
Prints a line of JSON.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

INTENTS: dict[str, tuple[str, ...]] = {
    "refund": (
        "I want my money back for the {thing}",
        "please refund the {thing} {when}",
        "where is the money I am owed",
    ),
    "delivery": ("where is my {thing}", "the {thing} has not arrived {when}", "when will you bring the {thing}"),
    "password": ("I cannot log in {when}", "my password does not work {when}", "I am locked out of my account, help"),
    "cancel": ("please cancel the {thing}", "I do not want the {thing} any more", "stop my order of the {thing}"),
    "praise": ("the {thing} is wonderful, thank you", "great service {when}", "I love the {thing}"),
    "broken": ("the {thing} came in pieces", "the {thing} stopped working {when}", "there is a crack in the {thing}"),
}
THINGS = ("lamp", "shoes", "phone", "blue jacket", "coffee machine", "book", "chair", "watch", "garden hose", "toy car")
TIMES = (
    "since monday",
    "after two weeks",
    "this morning",
    "for three days",
    "again",
    "yesterday",
    "before the holidays",
)
FRAMES = ("{}", "Hello, {}.", "{}!!", "Hi there. {} Regards, {name}", "{} Can you help?", "So, {} I think.")
NAMES = ("Ann", "Bo", "Carla", "Dev", "Eve", "Femi")
TEMPLATE = "Message: {text}\nIntent:"


def message(number: int, seed: int) -> dict[str, Any]:
    """One message and its intent, the same for the same numbers."""
    own = random.Random(f"{seed} {number}")
    label = own.choice(list(INTENTS))
    said = own.choice(INTENTS[label]).format(thing=own.choice(THINGS), when=own.choice(TIMES))
    if own.random() < 0.3:  # a slip of the finger
        place = own.randrange(1, len(said) - 2)
        said = said[:place] + said[place + 1] + said[place] + said[place + 2 :]
    return {"id": number, "text": own.choice(FRAMES).format(said, name=own.choice(NAMES)), "label": label}


def messages(first: int, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """So many messages that differ from each other."""
    return [message(number, seed) for number in range(first, first + count)]


def asked(row: dict[str, Any]) -> str:
    return TEMPLATE.format(text=row["text"])


def accuracy(given: list[Any], rows: list[dict[str, Any]]) -> float:
    return sum(label == row["label"] for label, row in zip(given, rows, strict=True)) / len(rows)


def made_teacher(args: argparse.Namespace, rows: list[dict[str, Any]]) -> Path:
    """The generator with what it has learnt from labelled rows."""
    from weft.train import lora
    from weft.train.merge import merge

    path = Path(args.folder) / "teacher.gguf"
    if not path.exists():
        said = [
            {"messages": [{"role": "user", "content": asked(row)}, {"role": "assistant", "content": row["label"]}]}
            for row in rows
        ]
        how = {"rate": args.rate, "epochs": args.epochs, "batch_tokens": 512, "seed": args.seed}
        for step in lora(args.teacher, said, output=Path(args.folder) / "adapter", **how):
            print(json.dumps({"step": step.number, "loss": round(step.loss, 4)}), flush=True)
        merge(args.teacher, Path(args.folder) / "adapter", path, type="q8_0", max_loss=0.1)
    return path


def labels_of(teacher: Path, rows: list[dict[str, Any]], folder: Path) -> tuple[list[Any], Any]:
    """The teacher's label of each row, None where it gave none, and what the labelling says."""
    from weft import distill

    plain = [{"id": row["id"], "text": row["text"]} for row in rows]
    prompting = distill.Prompting(TEMPLATE, labels=tuple(INTENTS))
    done = distill.label(plain, f"local:{teacher}", folder, prompting=prompting, max_tokens=6)
    found = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    given = {row["id"]: row["label"] for row in found}
    return [given.get(row["id"]) for row in rows], done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name, value in (("taught", 240), ("labelled", 600), ("tests", 300), ("seed", 0), ("epochs", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--teacher", default="smollm2-135m-instruct")
    parser.add_argument("--student", default="all-MiniLM-L6-v2")
    args = parser.parse_args()
    from weft import Classifier, distill

    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = messages(0, args.taught, args.seed)
    left, tests = messages(10**6, args.labelled, args.seed), messages(2 * 10**6, args.tests, args.seed)
    seen = {row["text"] for row in (*own, *left)}
    tests = [row for row in tests if row["text"] not in seen]
    began = time.perf_counter()
    teacher = made_teacher(args, own)
    times = {"teacher": time.perf_counter() - began}
    _, done = labels_of(teacher, left, folder / "labelled")
    times["labels"] = time.perf_counter() - began - sum(times.values())
    found = {"teacher": accuracy(labels_of(teacher, tests, folder / "judged")[0], tests)}
    times["judged"] = time.perf_counter() - began - sum(times.values())
    output = folder / f"student-{time.time_ns()}"
    distill.train("classifier", args.student, folder / "labelled", output=output)
    given = Classifier(output).classify([row["text"] for row in tests])
    found["classifier"] = accuracy([one.best for one in given], tests)
    times["classifier"] = time.perf_counter() - began - sum(times.values())
    facts = {"labelled": done.labelled, "failed": done.failed, "tests": len(tests)}
    seconds = {name: round(value, 1) for name, value in times.items()}
    print(json.dumps({"accuracy": found, **facts, "seconds": seconds}))


if __name__ == "__main__":
    main()
