"""Dates in words and as JSON, to learn from: python examples/dates.py 600 train.jsonl 200 held-out.jsonl

No date is in two files, so that what is measured was not learnt by heart.
"""

import json
import random
import re
import sys
from calendar import month_name

ONES = re.findall(
    r"\w+", "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
)
ONES += ["sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
FIRST = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
FIRST |= {"twelve": "twelfth", "twenty": "twentieth"}


def words(number: int) -> str:
    return ONES[number] if number < 20 else TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")


def row(year: int, month: int, day: int) -> dict[str, str]:
    *tens, last = words(day).split("-")
    said = f"the {'-'.join([*tens, FIRST.get(last, f'{last}th')])} of {month_name[month]}"
    answer = json.dumps({"year": year, "month": month, "day": day})
    return {"prompt": f"{said} {words(year // 100)} {words(year % 100)}:", "completion": f" {answer}"}


if __name__ == "__main__":
    every = [(y, m, d) for y in range(1801, 2000) if y % 100 > 9 for m in range(1, 13) for d in range(1, 29)]
    random.Random(0).shuffle(every)
    for count, name in zip(map(int, sys.argv[1::2]), sys.argv[2::2]):
        with open(name, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row(*every.pop())) + "\n" for _ in range(count))
    print(row(1998, 3, 21))
