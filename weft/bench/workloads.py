"""Workloads, the same on every machine: prompts of token ids, texts of given lengths, and one turn of each.

A turn asks a runner for one repetition and returns a rate or a time. The same turns measure weft in this process and
peers in their processes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from weft.bench.cost import Ceiling
from weft.bench.measure import slope
from weft.errors import InputError
from weft.frozen import frozen

Ask = Callable[[dict[str, Any]], dict[str, Any]]
Message = dict[str, str]

FEW, MANY = 32, 256  # tokens of the two runs whose slope is the decoding rate
FEW_TOGETHER, MANY_TOGETHER = 4, 64  # the same for several sequences at once
PROMPT = 16  # tokens before them
ATTEMPTS = 5
SHORT_REPEATS = 40  # of one short text in a turn; their median is the turn's latency
SHORT = "How do I return the book to the library when it is closed?"
VOCABULARY = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like my now "
    "over such our man me even most made after also did many off before must well back through years much where "
    "your way down should because long each just state those people too mr how little good world make very year "
    "still see own work men day get here old life both between being under three never know same last another "
    "while us might great go come since against right came take used himself few house use place during high "
    "without again home around small however found mrs part school thought went say general once upon water "
    "number night point though government almost enough river music winter copper ledger harbour weaving "
    "thermodynamics bibliography unscrupulous seventeenth marmalade, yesterday. 42"
)
WORDS = tuple(VOCABULARY.split())


@frozen
class Workload:
    """One line of a table.

    `check` is a job whose result is compared with the first runner's. `ceiling` gives the roof for a kind of arithmetic
    (f32, bf16, int8; "" is the model's default). `strict`: results that are too far apart are an error, since the
    runners then do not do the same work.
    """

    name: str
    meaning: str
    unit: str  # "tokens/s", or "ms" where less is better
    turn: Callable[[Ask], float]
    check: dict[str, Any]
    ceiling: Callable[[str], Ceiling | None] | None = None
    strict: bool = False


def prompt_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Ids spread over the vocabulary, the same for every runner."""
    return [(1000 + (i + 31 * seed) * 7919 % 20000) % vocab_size for i in range(count)]


def mixed_texts(tokens_of: Callable[[str], int], count: int, shortest: int, longest: int, seed: int = 7) -> list[str]:
    """`count` texts of `shortest` to `longest` tokens, drawn evenly."""
    rng = random.Random(seed)
    return [text_of(rng, tokens_of, rng.randint(shortest, longest)) for _ in range(count)]


def text_of(rng: random.Random, tokens_of: Callable[[str], int], tokens: int) -> str:
    """A text of `tokens` tokens, or of slightly fewer where the last word has several."""
    words = [rng.choice(WORDS) for _ in range(tokens)]
    while len(words) > 1 and (over := tokens_of(" ".join(words)) - tokens) > 0:
        del words[-max(1, over // 4) :]  # a word has a few tokens; if too many are removed, the loop below adds some
    while tokens_of(" ".join([*words, "the"])) <= tokens:
        words.append("the")
    return " ".join(words)


def decode(vocab_size: int, *, few: int = FEW, many: int = MANY, after: int = PROMPT) -> Workload:
    prompt = prompt_ids(after, vocab_size)

    def turn(ask: Ask) -> float:
        return _slope(ask, {"do": "decode", "prompt": prompt}, few, many)

    check = {"do": "decode", "prompt": prompt, "tokens": few, "keep": True}
    name, far = ("decode_1", "") if after == PROMPT else (f"decode_1_after_{after}", f" after {after}")
    return Workload(name, f"one sequence, slope of {few} to {many} tokens{far}", "tokens/s", turn, check)


def _slope(ask: Ask, job: dict[str, Any], few: int, many: int) -> float:
    """Tokens per second of one sequence between two lengths; repeated if the shorter run took longer."""
    for _ in range(ATTEMPTS):
        first, second = (ask({**job, "tokens": count})["seconds"][0] for count in (few, many))
        if second > first:
            break
    return slope(few, first, many, second)


def prefill(vocab_size: int, tokens: int) -> Workload:
    prompt = prompt_ids(tokens, vocab_size)

    def turn(ask: Ask) -> float:
        return tokens / ask({"do": "prefill", "prompt": prompt})["seconds"][0]

    check = {"do": "prefill", "prompt": prompt, "keep": True}
    return Workload(f"prefill_{tokens}", f"a prompt of {tokens} tokens and its next one", "tokens/s", turn, check)


def parallel(vocab_size: int, count: int, *, few: int = FEW_TOGETHER, many: int = MANY_TOGETHER) -> Workload:
    prompts = [prompt_ids(PROMPT, vocab_size, seed) for seed in range(count)]

    def turn(ask: Ask) -> float:
        return count * _slope(ask, {"do": "parallel", "prompts": prompts}, few, many)

    check = {"do": "parallel", "prompts": prompts, "tokens": many, "keep": True}
    meaning = f"{count} sequences together, slope of {few} to {many} tokens"
    return Workload(f"parallel_{count}", meaning, "tokens/s", turn, check)


def short_text(repeats: int = SHORT_REPEATS) -> Workload:
    def turn(ask: Ask) -> float:
        return 1000 * statistics.median(ask({"do": "embed", "texts": [SHORT], "repeat": repeats})["seconds"])

    check = {"do": "embed", "texts": [SHORT], "keep": True}
    return Workload("embed_1", "one short text, from text to vector", "ms", turn, check)


def many_texts(name: str, meaning: str, texts: Sequence[str], tokens: int) -> Workload:
    """`tokens` is the total of all texts, with special tokens and without padding."""
    if not tokens:
        raise InputError("bench", f"the texts of {name} have no tokens", advice="give a model with a tokenizer")

    def turn(ask: Ask) -> float:
        return tokens / ask({"do": "embed", "texts": list(texts)})["seconds"][0]

    return Workload(name, meaning, "tokens/s", turn, {"do": "embed", "texts": list(texts), "keep": True})


def embedding(tokens_of: Callable[[str], int], most_tokens: int, count: int = 1000) -> list[Workload]:
    """The workloads of the embedding tables, for a model that reads at most `most_tokens` tokens per text."""
    rng = random.Random(11)
    texts = mixed_texts(tokens_of, count, 8, min(64, most_tokens))
    found = [
        short_text(),
        many_texts(f"embed_{count}_mixed", f"{count} texts of 8 to 64 tokens", texts, sum(map(tokens_of, texts))),
    ]
    for tokens, documents in ((256, 64), (512, 32)):
        if tokens <= most_tokens:
            texts = [text_of(rng, tokens_of, tokens) for _ in range(max(1, documents * count // 1000))]
            meaning = f"{len(texts)} documents of {tokens} tokens"
            found.append(many_texts(f"embed_{tokens}", meaning, texts, sum(map(tokens_of, texts))))
    return found


def chat_of(rng: random.Random, tokens_of: Callable[[list[Message]], int], tokens: int) -> list[Message]:
    """A question and its answer, each of about half of `tokens`: as many words as make it no longer than that."""
    low, high = 2, max(3, tokens)
    words = [rng.choice(WORDS) for _ in range(high)]

    def chat(count: int) -> list[Message]:
        half = count // 2
        said = {"user": words[:half], "assistant": words[half:count]}
        return [{"role": role, "content": " ".join(some)} for role, some in said.items()]

    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens_of(chat(middle)) <= tokens else (low, middle)
    return chat(low)


def spread(count: int, shortest: int, longest: int) -> list[int]:
    """`count` lengths at equal distances, the longest first."""
    between = max(1, count - 1)
    return [longest - (longest - shortest) * number // between for number in range(count)]


def learning(name: str, meaning: str, lessons: Sequence[dict[str, list[int]]]) -> Workload:
    """Steps of training on these lessons: each has `ids`, and `learnt`, 1 for those that are predicted, else 0.

    The first step warms up. Its loss, found before anything is learnt, is compared.
    """
    tokens = sum(len(lesson["ids"]) for lesson in lessons)

    def turn(ask: Ask) -> float:
        return tokens / ask({"do": "step"})["seconds"][0]

    return Workload(
        name, meaning, "tokens/s", turn, {"do": "begin", "lessons": list(lessons), "keep": True}, strict=True
    )
