"""Joining pairs in words of every length, against the plain rule: the lowest rank first, of equals the leftmost."""

import random
from itertools import pairwise

import numpy as np
import pytest
from test_tokenizer import byte_text, gguf_bpe

from weft.text.tokenizer import Tokenizer

LENGTHS = (1, 2, 47, 48, 49, 60, 2047, 2048, 2049, 2500, 7000)


def random_merges(rng: random.Random, letters: str, count: int) -> list[tuple[str, str]]:
    """Merges of tokens that exist, in any order: a token's own may come behind those that use it."""
    tokens = [*letters]
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < count:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left + right) <= 24 and (left, right) not in pairs:
            pairs[left, right] = None
            tokens.append(left + right)
    merges = [*pairs]
    if rng.random() < 0.7:
        rng.shuffle(merges)
    return merges


def joined(text: str, merges: list[tuple[str, str]]) -> list[str]:
    rank_of = {pair: rank for rank, pair in enumerate(merges)}
    never = len(merges)
    tokens = [*text]
    ranks = np.array([rank_of.get(pair, never) for pair in pairwise(tokens)], np.int64)
    while len(ranks) and ranks.min() < never:
        at = int(ranks.argmin())
        tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
        ranks = np.delete(ranks, at)
        for i in (at - 1, at):
            if 0 <= i < len(ranks):
                ranks[i] = rank_of.get((tokens[i], tokens[i + 1]), never)
    return tokens


@pytest.mark.parametrize("seed", range(12))
def test_words_of_every_length_are_joined_by_the_plain_rule(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcd"[: rng.randint(1, 4)]
    merges = random_merges(rng, letters, rng.choice([3, 12, 60]))
    texts = dict.fromkeys([*(byte_text(b) for b in range(256)), *(left + right for left, right in merges)])
    vocabulary = {token: id for id, token in enumerate(texts)}
    written = [f"{left} {right}" for left, right in merges]
    tokenizer = Tokenizer.from_gguf(gguf_bpe(tokens=[*texts], merges=written, token_type=None, eos_token_id=None))
    for length in LENGTHS:
        text = "".join(rng.choices(letters, k=length))
        assert tokenizer.encode(text) == [vocabulary[token] for token in joined(text, merges)], (length, merges)
