"""An encoder: sequences of ids in, one vector per sequence or the hidden states out. No state, nothing padded.

A decoder without its head can be an encoder too: it reads a text once and keeps no state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from weft.backends import Backend, open_backend
from weft.computes import ENCODER_COMPUTES as COMPUTES
from weft.errors import InputError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.nn.pooling import SINGLE, DenseLayer, Head
from weft.runtime.adapters import Adapters
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step, check_step, joined, offsets
from weft.runtime.threads import plan_threads
from weft.weights.rotation import refuse_rotated, rotation_of

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable, Loading
    from weft.graph import Program, Tensor, Trace
    from weft.nn import Scope, Step
    from weft.runtime.prepared import Facts, Prepared
    from weft.text import Tokenizer

__all__ = ["DenseLayer", "Encoder", "Head", "Tokens"]


@frozen(eq=False)
class Tokens:
    """A sequence: token ids, int32 [n]; optionally the text of a pair that each token belongs to, int32 [n], and how
    many tokens at the start, those of a prompt, are not pooled."""

    ids: np.ndarray
    types: np.ndarray | None = None
    skip: int = 0

    def __len__(self) -> int:
        return len(self.ids)


class Encoder:
    """Computes one row per sequence with one checkpoint; `head` says how a row is made from the last hidden states.

    A sequence is an array of ids, int32 [n], or Tokens.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        head: Head,
        *,
        compute: str = "f32",
        threads: int | None = None,
        level: str | None = None,
        backend: str | Backend | None = None,
    ) -> None:
        if compute not in COMPUTES:
            raise UnsupportedError("embed", f"must be one of {', '.join(COMPUTES)}", field="compute", given=compute)
        rotation = rotation_of(checkpoint.config)
        if rotation is not None and rotation.stream and not head.odds:
            refuse_rotated("embed", checkpoint.config, "its vectors are not those that it was trained for")
        self.checkpoint = checkpoint
        self.head = head
        self.thread_plan = plan_threads(threads)
        self.backend = open_backend(backend, level=level, threads=self.thread_plan.count)
        self._programs = Programs(checkpoint, self.backend, compute=compute)
        self._prepared = self._prepare("vectors", self.build_vectors)
        self._make_tokenizer = checkpoint.tokenizer
        self.adapters = Adapters(checkpoint, self.backend, lambda: self.adapted)
        facts = self._prepared.facts
        self.max_tokens: int = facts["positions"]
        self.vocab_size: int = facts["vocab_size"]
        self.decodes: bool = bool(facts["decodes"])
        self.hidden_size: int = facts["hidden_size"]
        self.dimension: int = head.outputs(self.hidden_size)

    def _prepare(self, name: str, build: Any) -> Prepared:
        return self._programs.prepared((name, self.head), build, self._facts)

    def _facts(self) -> dict[str, int]:
        decodes = self._programs.module.KIND == "decoder"
        config = self.config
        with self.checkpoint.naming():
            positions = config.settled_positions if decodes else config.positions
        sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
        return {**sizes, "positions": positions, "decodes": int(decodes)}

    @property
    def facts(self) -> Facts:
        """What `build_vectors` needs to know of the model."""
        return self._prepared.facts

    @property
    def config(self) -> Any:
        """An instance of the model's Config."""
        return self._programs.config

    def start(self) -> None:
        """Start packing weights and making the tokenizer in other threads; the first use waits for them."""
        _ = self._loading
        if self.checkpoint.make_tokenizer is not None and self.thread_plan.count > 1:
            self._make_tokenizer = self.checkpoint.tokenizer_soon()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def info(self) -> dict[str, Any]:
        return self._programs.info

    def adapted_vectors(self, sequences: Sequence[np.ndarray | Tokens], adapters: np.ndarray) -> np.ndarray:
        """As `vectors`, with adapter adapters[i], int32, for sequence i; 0 is none and gives the bits of `vectors`."""
        import numpy as np

        if adapters.shape != (len(sequences),) or adapters.dtype != np.int32:
            raise InputError(
                "embed", f"adapters must be int32 [{len(sequences)}]: got {adapters.dtype} {adapters.shape}"
            )
        found = np.empty((len(sequences), self.dimension), np.float32)
        # Sequences without an adapter run the plain program: the adapter program rounds activations at other points,
        # which would change their bits.
        for chosen, adapted in ((np.flatnonzero(adapters == 0), False), (np.flatnonzero(adapters), True)):
            some = [sequences[int(i)] for i in chosen]
            if some and adapted:
                with self.adapters.using(adapters):
                    step = self.step_of(some, adapters=adapters[chosen].tolist())
                    found[chosen] = self._adapted_executable.run(step.arrays(self.adapted.inputs))["vectors"]
            elif some:
                found[chosen] = self.vectors(some)
        return found

    @cached_property
    def adapted(self) -> Prepared:
        """The planned program that makes vectors with adapters."""
        return self._programs.prepared(("vectors", self.head), self.build_vectors, self._facts, adapters=True)

    @cached_property
    def _adapted_executable(self) -> Executable:
        self._loading.finish()  # most weights are shared
        return self._programs.compile(self.adapted, self.adapters.tables)

    def vectors(self, sequences: Sequence[np.ndarray | Tokens]) -> np.ndarray:
        """One vector per sequence, float32 [len(sequences), dimension]."""
        if not sequences:
            import numpy as np

            return np.empty((0, self.dimension), np.float32)
        return self._run(self._vectors, sequences)

    def _run(self, executable: Executable, sequences: Sequence[np.ndarray | Tokens]) -> np.ndarray:
        found = executable.run(self.step_of(sequences).arrays(self._prepared.inputs))["vectors"]
        return cast("np.ndarray", found.astype("f4", copy=False))

    def vectors_each(self, batches: Sequence[Sequence[np.ndarray | Tokens]]) -> Iterator[np.ndarray]:
        """The vectors of each batch, in order. Several batches run at once on one thread each, so that threads need not
        wait for each other after every instruction. A few batches left at the end are run by all threads together.
        """
        if len(batches) == 1 or self.thread_plan.count == 1 or not self.backend.lanes:
            yield from map(self.vectors, batches)
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        lanes: SimpleQueue[Any] = SimpleQueue()
        for lane in self._lanes:
            lanes.put(lane)

        def run(batch: Sequence[np.ndarray | Tokens]) -> np.ndarray:
            lane = lanes.get()
            try:
                return self._run(lane, batch)
            finally:
                lanes.put(lane)

        waiting: deque[Future[np.ndarray]] = deque()
        whole = len(batches) - _left_over(len(batches), len(self._lanes))
        with ThreadPoolExecutor(len(self._lanes)) as threads:
            try:
                for batch in batches[:whole]:
                    waiting.append(threads.submit(run, batch))
                    if len(waiting) > 2 * len(self._lanes):
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # an interrupt leaves at most a step for each lane to wait for
                for future in waiting:
                    future.cancel()
        yield from map(self.vectors, batches[whole:])

    def hidden_states(self, ids: Sequence[int]) -> np.ndarray:
        """The last hidden state of every token, float32 [len(ids), hidden]."""
        import numpy as np

        if not len(ids):
            raise InputError("hidden_states", "must have at least one token", field="ids")
        step = self.step_of([np.asarray(ids)], rows=np.arange(len(ids), dtype=np.int32))
        prepared, executable = self._hidden
        return cast("np.ndarray", executable.run(step.arrays(prepared.inputs))["hidden"].astype("f4", copy=False))

    def program(self) -> Program:
        """The planned program that makes vectors."""
        return self._prepared.program

    @property
    def prepared(self) -> Prepared:
        """The planned program that makes vectors, and what binding it needs."""
        return self._prepared

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes of weights and of the working memory of a step of `tokens` tokens, however many texts they are."""
        return {"weights": self.checkpoint.size_bytes, "work": self._prepared.work_bytes(T=tokens, B=tokens, L=tokens)}

    @cached_property
    def _loading(self) -> Loading:
        return self._programs.load(self._prepared)

    @cached_property
    def _vectors(self) -> Executable:
        return self._executable()

    def _executable(self, threads: int | None = None) -> Executable:
        loading = self._loading
        executable = self._programs.executable(self._prepared, {}, threads=threads)
        loading.finish()
        return executable

    @cached_property
    def _lanes(self) -> list[Executable]:
        """The same program once for every thread."""
        return [self._executable(threads=1) for _ in range(self.thread_plan.count)]

    @cached_property
    def _hidden(self) -> tuple[Prepared, Executable]:
        prepared = self._prepare("hidden", self._build_hidden)
        self._loading.finish()  # most weights are shared
        return prepared, self._programs.compile(prepared, {})

    def _build_hidden(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        return {"hidden": self._last_hidden(w, self._inputs(trace, facts), facts)}

    def build_vectors(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        """Trace what makes vectors."""
        from weft import ops
        from weft.nn import pooled, vectors

        head, module = self.head, self._programs.module
        step = self._inputs(trace, facts, spans=self._spans(facts))
        x = self._last_hidden(w, step, facts)
        if not facts["decodes"] and (head.pooling in SINGLE or self._spans(facts)):
            x = ops.take_rows(x, step.rows)  # those of a decoder are the rows already
        y = pooled(x, step, head.pooling)  # [B, hidden]
        part = "classify" if head.labels else "token_logit" if head.odds else "hidden_states"
        if not hasattr(module, part):
            what = f"models of type {self.checkpoint.model_type} do not score pairs of texts"
            raise UnsupportedError("rerank", what, advice="use a cross-encoder")
        if head.labels:
            return {"vectors": module.classify(y, w, self.config, head.labels)}
        if head.odds:
            yes, no = (module.token_logit(y, w, self.config, id) for id in head.odds)
            return {"vectors": yes + ops.scale(no, by=-1.0)}
        return {"vectors": vectors(y, w, head)}

    def _spans(self, facts: Facts) -> bool:
        """Whether some tokens are pooled, and not all."""
        return self.head.pooling not in SINGLE and bool(self.head.skips or facts["decodes"])

    def _inputs(self, trace: Trace, facts: Facts, *, spans: bool = False) -> Step:
        from weft.nn.step import TracedStep

        return TracedStep(trace, spans=spans, context=facts["positions"] if facts["decodes"] else 0)

    def _last_hidden(self, w: Scope, step: Step, facts: Facts) -> Tensor:
        """[T, hidden], or of a decoder [L, hidden]."""
        trunk = w / "model" if facts["decodes"] else w
        return cast("Tensor", self._programs.module.hidden_states(trunk, self.config, step))

    def step_of(
        self,
        sequences: Sequence[np.ndarray | Tokens],
        *,
        rows: np.ndarray | None = None,
        adapters: list[int] | None = None,
    ) -> Step:
        """The step of these sequences; `rows` where they are not those that are pooled."""
        texts = [text.ids if isinstance(text, Tokens) else text for text in sequences]
        longest = max(map(len, texts))
        if longest > self.max_tokens:
            limit = self.max_tokens
            raise TooLongError(
                "embed", f"{longest} tokens, the model takes {limit}; shorten the text", length=longest, limit=limit
            )
        given: dict[str, Any] = dict(self._rows(sequences)) if rows is None else {"rows": rows}
        if "types" in self._prepared.inputs:
            given["types"] = _types(sequences)
        step = build_step(texts, adapters=adapters, **given)
        check_step("embed", step, vocab=self.vocab_size, context=self.max_tokens)
        return step

    def _rows(self, texts: Sequence[np.ndarray | Tokens]) -> dict[str, np.ndarray]:
        """The rows to pool: at least the last token of each text that has any."""
        import numpy as np

        pools_rows = self._spans(self._prepared.facts)
        if self.head.pooling not in SINGLE and not pools_rows:
            return {"rows": np.empty(0, np.int32)}
        segments = offsets(list(map(len, texts)))
        skips = [
            min(text.skip, max(len(text) - 1, 0)) if self.head.skips and isinstance(text, Tokens) else 0
            for text in texts
        ]
        if self.head.pooling in SINGLE and not all(map(len, texts)):  # it would be given another one's token
            raise InputError(
                "embed", f"an empty sequence has no {self.head.pooling} token to pool", advice="give some text"
            )
        starts = segments[:-1] + np.asarray(skips, np.int32)
        if self.head.pooling in SINGLE:
            return {"rows": starts if self.head.pooling == "first" else segments[1:] - np.int32(1)}
        counts = segments[1:] - starts
        spans = offsets(counts.tolist())
        kept = np.arange(spans[-1], dtype=np.int32) + np.repeat(starts - spans[:-1], counts)
        return {"rows": kept.astype(np.int32), "spans": spans}


def _types(sequences: Sequence[np.ndarray | Tokens]) -> np.ndarray:
    import numpy as np

    types = [text.types if isinstance(text, Tokens) else None for text in sequences]
    if all(own is None for own in types):
        return np.zeros(sum(map(len, sequences)), np.int32)
    return joined([np.zeros(len(text), np.int32) if own is None else own for text, own in zip(sequences, types)])


def _left_over(batches: int, lanes: int) -> int:
    """How many batches are left for a last round that would keep half of the lanes, or more, idle."""
    left = batches % lanes
    return left if batches < 4 * lanes and 2 * left <= lanes else 0


def token_ranges(sequences: Sequence[Any], budget: int) -> Iterator[tuple[int, int]]:
    """Ranges of sequences with at most `budget` tokens together, or one alone; order kept, nothing padded."""
    first, tokens = 0, 0
    for i, item in enumerate(sequences):
        if i > first and tokens + len(item) > budget:
            yield first, i
            first, tokens = i, 0
        tokens += len(item)
    if first < len(sequences):
        yield first, len(sequences)
