"""What a student's loss is compared on: heads with a teacher's words, and tiny models with taught lessons."""

from typing import Any

import gradient_cases
import numpy as np

from weft.train.data.taught import Taught

WORDS = 5
# name -> temperature, soft, scale, softcap
HEADS: dict[str, tuple[float, float, float, float]] = {
    "plain": (1.0, 0.5, 1.0, 0.0),
    "hot": (4.0, 0.7, 1.0, 0.0),
    "cold": (0.5, 0.3, 0.125, 0.0),
    "capped": (2.0, 0.6, 1.0, 3.0),
    "teacher alone": (2.0, 1.0, 1.0, 0.0),
}
MODELS = {"llama-grouped": (2.0, 0.6), "gemma2": (3.0, 0.25)}  # name of a tiny config -> temperature, soft


def head(name: str) -> dict[str, np.ndarray]:
    """A head's operands: rows, a matrix, what was said, and the teacher's words with their log-probabilities."""
    rng = np.random.default_rng(sorted(HEADS).index(name))
    rows, vocabulary, width = 7, 90, 12
    words = np.stack([rng.permutation(vocabulary)[:WORDS] for _ in range(rows)])
    return {
        "x": rng.standard_normal((rows, width)),
        "weight": rng.standard_normal((vocabulary, width)),
        "targets": rng.integers(0, vocabulary, rows),
        "words": words,
        "logs": np.sort(-rng.gamma(2.0, 1.0, (rows, WORDS)), axis=1)[:, ::-1].copy(),
    }


def lessons(cfg: dict[str, Any]) -> list[Taught]:
    """The lessons of gradients with a teacher's words at most of their places."""
    made = []
    for number, lesson in enumerate(gradient_cases.lessons(cfg)):
        rng = np.random.default_rng(number)
        count = len(lesson.ids)
        words = np.stack([rng.permutation(cfg["vocab_size"])[:WORDS] for _ in range(count)]).astype(np.int32)
        logs = -rng.gamma(2.0, 1.0, (count, WORDS)).astype(np.float32)
        logs[::4] = -np.inf  # nothing is kept here
        logs[1::4, WORDS - 2 :] = -np.inf  # fewer words
        made.append(Taught(lesson.ids, lesson.shares, words, logs))
    return made
