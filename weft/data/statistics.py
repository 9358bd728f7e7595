"""What a data set is like: fields, lengths, labels, and what is in it more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.data.rows import counted, folded, read_set, words_of
from weft.frozen import frozen
from weft.train.data.rows import Data

if TYPE_CHECKING:
    from weft.text import Tokenizer

LABELS = ("label", "category", "class")
BINS = 20  # of a histogram


@frozen
class Lengths:
    """Of all texts: the least, the mean, the most, and the lengths that half, 90 and 99 of 100 texts do not exceed.
    `bins` are pairs of a length and how many texts are at least that long and shorter than the next."""

    total: int
    least: int
    mean: float
    median: int
    p90: int
    p99: int
    most: int
    bins: list[tuple[int, int]]


@frozen
class Statistics:
    """All that is counted. `fields` says how many rows have each field and of which types, `repeated` how many rows
    have the text of an earlier one, `empty` how many have none."""

    name: str
    sha256: str
    rows: int
    empty: int
    repeated: int
    fields: dict[str, dict[str, int]]
    labels: dict[str, int]
    lengths: dict[str, Lengths]


def stats(
    data: Data,
    *,
    fields: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    progress: bool | None = None,
) -> Statistics:
    """Count a data set. With a `tokenizer` tokens are counted too."""
    found = read_set(data, fields)
    kinds: dict[str, Counter[str]] = {}
    labels: Counter[str] = Counter()
    sizes: dict[str, list[int]] = {"characters": [], "words": []}
    seen: set[str] = set()
    empty = repeated = 0
    with counted(len(found.rows), progress, "counting") as numbers:
        for number in numbers:
            row, text = found.rows[number], found.texts[number]
            for name, value in row.fields.items():
                kinds.setdefault(str(name), Counter())[_kind(value)] += 1
            label = next((row.fields[name] for name in LABELS if name in row.fields), None)
            if isinstance(label, (str, int, float)):
                labels[str(label)] += 1
            same = folded(text)
            empty += not same
            repeated += same in seen
            seen.add(same)
            sizes["characters"].append(len(text))
            sizes["words"].append(len(words_of(text)))
            if tokenizer is not None:
                sizes.setdefault("tokens", []).append(len(tokenizer.encode(text, add_special=False)))
    return Statistics(
        name=str(found.source.get("file", "data")),
        sha256=str(found.source["sha256"]),
        rows=len(found.rows),
        empty=empty,
        repeated=repeated,
        fields={name: dict(sorted(several.items())) for name, several in sorted(kinds.items())},
        labels=dict(sorted(labels.items(), key=lambda one: (-one[1], one[0]))),
        lengths={name: lengths_of(several) for name, several in sizes.items()},
    )


def lengths_of(sizes: Sequence[int]) -> Lengths:
    """What is said of lengths. A quantile is a length that is there: the one at that place of the sorted ones."""
    ordered = sorted(sizes)

    def at(share: int) -> int:
        return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]

    width = max(1, -(-(ordered[-1] + 1) // BINS))
    places = Counter(size // width for size in ordered)
    bins = [(place * width, places[place]) for place in range(ordered[-1] // width + 1)]
    mean = sum(ordered) / len(ordered)
    return Lengths(sum(ordered), ordered[0], mean, at(50), at(90), at(99), ordered[-1], bins)


def _kind(value: Any) -> str:
    known = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", dict: "object"}
    return "nothing" if value is None else known.get(type(value), type(value).__name__)
