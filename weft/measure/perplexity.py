"""Perplexity: how surprised a model is by a text, token by token, in windows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.measure.windows import STRIDE, WINDOW, Window, halves, sliding
from weft.runtime.checkpoint import open_checkpoint
from weft.runtime.decoder import Decoder
from weft.train.measure import chosen_logits
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

CHUNK = 128  # tokens of a step: their logits are in memory together
WIDE_ROWS = 16  # of them that are float64 together


@frozen
class Surprise:
    """How surprised a model was by some tokens: the sums of their losses (in nats) and of the squares of these."""

    total: float
    squares: float
    targets: int
    right: int  # of the tokens that the model would have chosen
    nbytes: int  # of text that they stand for
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """The mean loss of a token, in nats."""
        return self.total / self.targets

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def error(self) -> float:
        """The standard error of the perplexity, as if losses of tokens were independent."""
        if self.targets < 2:
            return math.inf
        spread = max(0.0, self.squares / self.targets - self.loss**2)
        return self.perplexity * math.sqrt(spread / (self.targets - 1))

    @property
    def accuracy(self) -> float:
        return self.right / self.targets

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits for each byte of the text: comparable between models of different tokenizers."""
        return self.total / math.log(2) / self.nbytes if self.nbytes else math.nan

    def as_dict(self) -> dict[str, Any]:
        return {
            "perplexity": self.perplexity,
            "error": self.error,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "bits_per_byte": self.bits_per_byte,
            "targets": self.targets,
            "seconds": self.seconds,
        }


def summed(parts: Iterable[Surprise]) -> Surprise:
    """The surprise of all parts together."""
    every = list(parts)
    return Surprise(
        total=math.fsum(one.total for one in every),
        squares=math.fsum(one.squares for one in every),
        targets=sum(one.targets for one in every),
        right=sum(one.right for one in every),
        nbytes=sum(one.nbytes for one in every),
        seconds=math.fsum(one.seconds for one in every),
    )


class Perplexity:
    """Iterate over it: the surprise of each window of a text, in their order; `len` is the number of windows.

    `text` is a text, or the path of a UTF-8 file, of which the first `tokens` tokens count. The tokenizer's special
    tokens are added at its beginning as for a prompt. Windows have `window` tokens and begin every `stride`; of the
    first all tokens but the very first are scored, of each later one those that are new. With `llama` they are
    llama.cpp's instead: side by side, each begins with bos where the tokenizer adds one, the second half is scored,
    what is left over is not read.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        text: str | Path,
        *,
        window: int = WINDOW,
        stride: int | None = None,
        tokens: int | None = None,
        llama: bool = False,
        adapter: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        located = locate(os.fspath(model)).alone("eval")
        if llama and stride is not None:
            raise InputError("eval", "excludes llama, whose windows lie side by side", field="stride", given=stride)
        if window < 4:
            raise InputError("eval", "must be 4 or more", field="window", given=window)
        checkpoint = open_checkpoint(located.path)
        self.decoder = Decoder(checkpoint, context=window, kv_tokens=window, draft_head=False, **options)
        self.adapter = None if adapter is None else self.decoder.adapters.load("measured", Path(adapter))
        self.tokenizer: Tokenizer = self.decoder.tokenizer
        self.ids = ids_of(self.tokenizer, text, tokens)
        self.windows = windows_of(len(self.ids), window, stride, llama)
        self.bos = self.tokenizer.bos_id if llama and self.ids[0] == self.tokenizer.bos_id else None
        self._sizes = [len(token) for token in self.tokenizer.token_bytes()]

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[Surprise]:
        for window in self.windows:
            begun, parts = time.perf_counter(), []
            for places, logits in scored_logits(self.decoder, self.ids, window, bos=self.bos, adapter=self.adapter):
                parts.append(self._surprise(self.ids[places], logits))
            yield summed([*parts, Surprise(0.0, 0.0, 0, 0, 0, time.perf_counter() - begun)])

    def _surprise(self, wanted: np.ndarray, logits: np.ndarray) -> Surprise:
        losses = losses_of(logits, wanted).tolist()
        right = int((logits.argmax(axis=1) == wanted).sum())
        sizes = sum(self._sizes[id] for id in wanted.tolist())
        return Surprise(math.fsum(losses), math.fsum(x * x for x in losses), len(losses), right, sizes)


def perplexity_of(model: str | os.PathLike[str], text: str | Path, **options: Any) -> Surprise:
    """The perplexity of a model on a text, or on the file at a Path. Options are those of `Perplexity`."""
    return summed(Perplexity(model, text, **options))


def text_of(text: str | Path) -> str:
    """The text itself, or that of a file, as it is there: line ends and all."""
    if isinstance(text, str):
        return text
    try:
        return text.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InputError("eval", "no such file", field="text", given=str(text)) from None
    except OSError as error:
        raise InputError("eval", f"cannot be read: {error.strerror}", field="text", given=str(text)) from None
    except UnicodeDecodeError as error:
        what = f"malformed UTF-8 at byte {error.start}"
        raise InputError("eval", what, field="text", given=str(text), advice="give a text file in UTF-8") from None


def ids_of(tokenizer: Tokenizer, text: str | Path, tokens: int | None = None) -> np.ndarray:
    """The first `tokens` ids of a text, int32. Special tokens that are written in it are text."""
    import numpy as np

    if tokens is not None and tokens < 2:
        raise InputError("eval", "must be 2 or more", field="tokens", given=tokens)
    found = np.asarray(tokenizer.encode(text_of(text)), np.int32)
    return found[:tokens]


def windows_of(count: int, window: int, stride: int | None, llama: bool) -> list[Window]:
    """The windows over so many tokens; InputError where there is none."""
    if llama:
        found = halves(count, window)
    else:
        found = sliding(count, window, min(STRIDE, window // 2) if stride is None else stride)
    if not found:
        least = f"{window}, one window" if llama else "2"
        what = f"has {count} tokens; at least {least} are needed"
        raise InputError("eval", what, field="text", advice="give a longer text")
    return found


def scored_logits(
    decoder: Decoder, ids: np.ndarray, window: Window, *, bos: int | None = None, adapter: Any = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The places of the scored tokens of a window in `ids`, and the logits for them, CHUNK tokens at a time."""
    import numpy as np

    read = ids[window.first : window.last - 1].copy()  # the last token is only guessed
    if bos is not None:
        read[0] = bos
    scored = np.arange(len(read)) >= window.scored - 1 - window.first
    for places, logits in chosen_logits(decoder, read, scored, adapter, CHUNK):
        yield window.first + places + 1, logits


def losses_of(logits: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The loss of each wanted token in nats, float64; float64 logits are made a few rows at a time."""
    import numpy as np

    return np.concatenate(
        [
            -log_chances(logits[first : first + WIDE_ROWS])[np.arange(len(part)), part]
            for first in range(0, len(wanted), WIDE_ROWS)
            for part in [wanted[first : first + WIDE_ROWS]]
        ]
    )


def log_chances(logits: np.ndarray) -> np.ndarray:
    """The logarithms of the softmax of each row, float64."""
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
