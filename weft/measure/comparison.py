"""Two models beside each other on a text: how far apart what they expect is, where most, and in which layers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.measure.layers import LayeredDecoder
from weft.measure.perplexity import WIDE_ROWS, ids_of, log_chances, scored_logits, windows_of
from weft.measure.windows import WINDOW
from weft.runtime.checkpoint import open_checkpoint
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.measure.windows import Window

SHOWN = 5  # positions
BEFORE = 16  # tokens of text before a position
LAYER_TOKENS = 256  # of the text whose hidden states are compared
SPEED_PROMPT, SPEED_TOKENS = 16, 48
SPEED_TRIES = 5


@frozen
class Position:
    """A token of the text where both models differ: what stood before it, and what each would have written."""

    place: int
    divergence: float
    before: str
    token: str
    a: str
    b: str
    loss_a: float
    loss_b: float


@frozen
class Compared:
    """How far the second model is from the first. Divergences are those of Kullback and Leibler, in nats."""

    mean: float
    median: float
    p99: float
    max: float
    agreement: float  # part of the tokens for which both would have chosen the same
    perplexity_a: float
    perplexity_b: float
    targets: int
    worst: tuple[Position, ...]
    layers: tuple[float, ...]  # mean over tokens of |b - a| / |a| of the hidden state after each layer
    bytes_a: int
    bytes_b: int
    speed_a: float | None = None  # tokens per second, decoding
    speed_b: float | None = None

    def as_dict(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self)


class Comparison:
    """Iterate over it: the number of tokens scored after each window; then `result()`.

    `a` is what `b` is held to: the model before it was made smaller. Both must have the same tokens. Other arguments
    are those of `Perplexity`; with `speed` both decode a few tokens, `layers` compares hidden states.
    """

    def __init__(
        self,
        a: str | os.PathLike[str],
        b: str | os.PathLike[str],
        text: str | Path,
        *,
        window: int = WINDOW,
        stride: int | None = None,
        tokens: int | None = None,
        layers: bool = True,
        speed: bool = True,
        shown: int = SHOWN,
        **options: Any,
    ) -> None:
        if window < 4:
            raise InputError("eval", "must be 4 or more", field="window", given=window)
        self.layers, self.speed, self.shown = layers, speed, shown
        found = [locate(os.fspath(model)).alone("eval").path for model in (a, b)]
        room = max(window, SPEED_PROMPT + SPEED_TOKENS) if speed else window
        self.decoders = [
            LayeredDecoder(open_checkpoint(path), context=room, kv_tokens=room, draft_head=False, **options)
            for path in found
        ]
        first, second = (ids_of(decoder.tokenizer, text, tokens) for decoder in self.decoders)
        sizes = [decoder.vocab_size for decoder in self.decoders]
        if first.tolist() != second.tolist() or sizes[0] != sizes[1]:
            what = f"have different tokens (vocabularies of {sizes[0]:,} and {sizes[1]:,})"
            advice = "compare their bits per byte: weft eval ppl A B TEXT"
            raise InputError("eval", f"{a} and {b} {what}", advice=advice)
        self.ids = first
        self.windows: list[Window] = windows_of(len(first), window, stride, False)
        self._parts: list[tuple[np.ndarray, ...]] = []

    @property
    def targets(self) -> int:
        return sum(window.targets for window in self.windows)

    def __iter__(self) -> Iterator[int]:
        done, self._parts = 0, []
        for window in self.windows:
            both = [scored_logits(decoder, self.ids, window) for decoder in self.decoders]
            for (places, a), (_, b) in zip(*both, strict=True):
                self._parts.append((places, *_apart(a, b, self.ids[places])))
            done += window.targets
            yield done

    def result(self) -> Compared:
        """What was found; after all windows."""
        import numpy as np

        places, apart, loss_a, loss_b, best_a, best_b = (np.concatenate(column) for column in zip(*self._parts))
        worst = np.argsort(-apart, kind="stable")[: self.shown].tolist()
        speeds = [_speed(decoder, self.ids) for decoder in self.decoders] if self.speed else [None, None]
        sizes = [decoder.checkpoint.size_bytes for decoder in self.decoders]
        return Compared(
            mean=math.fsum(apart.tolist()) / len(apart),
            median=float(np.median(apart)),
            p99=float(np.quantile(apart, 0.99)),
            max=float(apart.max()),
            agreement=float((best_a == best_b).mean()),
            perplexity_a=math.exp(min(700.0, math.fsum(loss_a.tolist()) / len(apart))),
            perplexity_b=math.exp(min(700.0, math.fsum(loss_b.tolist()) / len(apart))),
            targets=len(apart),
            worst=tuple(
                self._position(int(places[at]), apart[at], (best_a[at], best_b[at]), (loss_a[at], loss_b[at]))
                for at in worst
            ),
            layers=tuple(self._layer_errors()) if self.layers else (),
            bytes_a=sizes[0],
            bytes_b=sizes[1],
            speed_a=speeds[0],
            speed_b=speeds[1],
        )

    def _position(self, place: int, apart: float, best: Sequence[int], losses: Sequence[float]) -> Position:
        before = self._text(self.ids[max(0, place - BEFORE) : place])
        token, a, b = (self._text([int(id)]) for id in (self.ids[place], *best))
        return Position(place, float(apart), before, token, a, b, float(losses[0]), float(losses[1]))

    def _text(self, ids: Any) -> str:
        return self.decoders[0].tokenizer.decode([int(id) for id in ids], skip_special=False)

    def _layer_errors(self) -> Iterator[float]:
        import numpy as np

        part = self.ids[: min(LAYER_TOKENS, self.windows[0].last)]
        a, b = (decoder.hidden_states(part) for decoder in self.decoders)
        if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b)):
            return
        for x, y in zip(a, b):
            size = np.maximum(np.linalg.norm(x, axis=1), 1e-30)
            yield float((np.linalg.norm(y - x, axis=1) / size).mean())


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str], text: str | Path, **options: Any) -> Compared:
    """How far model `b` is from model `a` on a text, or on the file at a Path. Options are those of `Comparison`."""
    comparison = Comparison(a, b, text, **options)
    for _ in comparison:
        pass
    return comparison.result()


def _apart(a: np.ndarray, b: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each row: the divergence of b from a, both losses of the wanted token, and what each model would choose."""
    import numpy as np

    apart, losses = np.empty(len(wanted)), np.empty((2, len(wanted)))
    for first in range(0, len(wanted), WIDE_ROWS):
        rows = slice(first, min(first + WIDE_ROWS, len(wanted)))
        mine, other = log_chances(a[rows]), log_chances(b[rows])
        each = np.arange(rows.stop - rows.start)
        losses[0, rows], losses[1, rows] = -mine[each, wanted[rows]], -other[each, wanted[rows]]
        apart[rows] = np.maximum(0.0, (np.exp(mine) * (mine - other)).sum(axis=1))
    return apart, losses[0], losses[1], a.argmax(axis=1), b.argmax(axis=1)


def _speed(decoder: LayeredDecoder, ids: np.ndarray) -> float | None:
    """Tokens per second of one sequence, by the engine, after a first run; None where a busy machine hides them."""
    from weft.generate.engine import Engine
    from weft.generate.request import Request

    engine = Engine(decoder, None, prefix_cache=False, speculate=False, draft="none")
    prompt = tuple(int(id) for id in ids[:SPEED_PROMPT])

    def seconds(count: int) -> float:
        begun = time.perf_counter()
        engine.submit(Request(prompt, max_tokens=count, ignore_eos=True)).result()
        return time.perf_counter() - begun

    try:
        seconds(8)
        for _ in range(SPEED_TRIES):
            few, many = seconds(SPEED_TOKENS // 4), seconds(SPEED_TOKENS)
            if many > few:  # else something else ran beside the few
                return (SPEED_TOKENS - SPEED_TOKENS // 4) / (many - few)
    finally:
        engine.close()
    return None
