"""Pairs and matrices that the test of preference training and the script of its golden share."""

import numpy as np
import tiny

NAME, RANK, SCALE, BETA = "llama-grouped", 4, 0.5, 0.3
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
PAIRS = ((9, 4, 7), (5, 6, 2), (12, 1, 3))  # tokens of prompt, chosen and rejected answer


def weights() -> dict[str, tuple[int, int]]:
    """The adapted weights and their shapes."""
    shapes = tiny.shapes(tiny.CONFIGS[NAME])
    names = [f"model.layers.{layer}.{module}.weight" for layer in range(2) for module in MODULES]
    return {name: (shapes[name][0], shapes[name][1]) for name in sorted(names)}


def matrices() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`down` and `up` of each weight."""
    rng = np.random.default_rng(11)
    made = {}
    for name, (rows, cols) in weights().items():
        down, up = rng.standard_normal((RANK, cols)) * 0.2, rng.standard_normal((rows, RANK)) * 0.2
        made[name] = down.astype(np.float32), up.astype(np.float32)
    return made


def sequences() -> list[tuple[np.ndarray, int]]:
    """Ids of chosen, rejected, chosen …, and how many of them are the prompt."""
    found = []
    for number, (prompt, *answers) in enumerate(PAIRS):
        start = tiny.token_ids(tiny.CONFIGS[NAME], prompt, seed=100 + number)
        for side, length in enumerate(answers):
            end = tiny.token_ids(tiny.CONFIGS[NAME], length, seed=200 + 2 * number + side)
            found.append((np.concatenate([start, end]), prompt))
    return found
