"""An encoder: sequences of ids in, one vector per sequence or the hidden states out. No state, nothing padded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.nn.pooling import DenseLayer, Head
from weft.runtime.adapters import Adapters
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.programs import Programs, step_inputs
from weft.runtime.threads import plan_threads

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program, Tensor, Trace
    from weft.nn import Scope
    from weft.runtime.prepared import Facts, Prepared
    from weft.text import Tokenizer

__all__ = ["COMPUTES", "DenseLayer", "Encoder", "Head"]

COMPUTES = ("f32", "bf16", "bf16x3", "int8")  # what factors of products are; bf16x3: sums of two, near f32


class Encoder:
    """The executables of one encoder checkpoint; `head` says what is computed from the last hidden state."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        head: Head,
        *,
        compute: str = "f32",
        threads: int | None = None,
        level: str | None = None,
    ) -> None:
        if compute not in COMPUTES:
            raise UnsupportedError(f"[embed] compute {compute!r}; one of {', '.join(COMPUTES)}")
        self.checkpoint = checkpoint
        self.head = head
        self.thread_plan = plan_threads(threads)
        self._programs = Programs(checkpoint, compute=compute, threads=self.thread_plan.count, level=level)
        self._prepared = self._prepare("vectors", self._build_vectors)
        self._make_tokenizer = checkpoint.tokenizer
        self.adapters = Adapters(checkpoint, lambda: self._adapted)
        facts = self._prepared.facts
        self.max_tokens: int = facts["positions"]
        self.vocab_size: int = facts["vocab_size"]
        self.dimension: int = head.dense[-1].outputs if head.dense else facts["hidden_size"]

    def _prepare(self, name: str, build: Any) -> Prepared:
        return self._programs.prepared((name, self.head), build, self._facts)

    def _facts(self) -> dict[str, int]:
        if self._programs.module.KIND != "encoder":
            raise UnsupportedError(f"[embed] {self.checkpoint.model_type} generates text; use weft.load")
        config = self.config
        with self.checkpoint.naming():
            return {name: getattr(config, name) for name in ("positions", "vocab_size", "hidden_size")}

    @property
    def config(self) -> Any:
        """An instance of the model's Config."""
        return self._programs.config

    def start(self) -> None:
        """Let other threads pack the weights and make the tokenizer while the caller goes on; who needs them waits."""
        _ = self._packing
        if self.checkpoint.make_tokenizer is not None and self.thread_plan.count > 1:
            self._make_tokenizer = self.checkpoint.tokenizer_soon()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def info(self) -> dict[str, Any]:
        return self._programs.info

    def adapted_vectors(self, sequences: Sequence[np.ndarray], adapters: np.ndarray) -> np.ndarray:
        """As `vectors`, sequence i with the adapter of index adapters[i], int32; 0 is none, and gives what `vectors`
        gives."""
        import numpy as np

        if adapters.shape != (len(sequences),) or adapters.dtype != np.int32:
            raise InputError(
                f"[embed] adapters must be int32 [{len(sequences)}]: got {adapters.dtype} {adapters.shape}"
            )
        found = np.empty((len(sequences), self.dimension), np.float32)
        # Rounded activations would be rounded elsewhere in the program with adapters, so who has none is not in it.
        for chosen, adapted in ((np.flatnonzero(adapters == 0), False), (np.flatnonzero(adapters), True)):
            some = [sequences[int(i)] for i in chosen]
            if some and adapted:
                with self.adapters.using(adapters):
                    inputs = {**self._step(some), "adapters": adapters[chosen]}
                    found[chosen] = self._adapted_executable.run(inputs)["vectors"]
            elif some:
                found[chosen] = self.vectors(some)
        return found

    @cached_property
    def _adapted(self) -> Prepared:
        return self._programs.prepared(("vectors", self.head), self._build_vectors, self._facts, adapters=True)

    @cached_property
    def _adapted_executable(self) -> Any:
        self._packing.finish()  # most weights are shared
        return self._programs.compile(self._adapted, self.adapters.tables)

    def vectors(self, sequences: Sequence[np.ndarray]) -> np.ndarray:
        """One vector per sequence of ids, float32 [len(sequences), dimension]."""
        if not sequences:
            import numpy as np

            return np.empty((0, self.dimension), np.float32)
        return self._vectors.run(self._step(sequences))["vectors"]

    def vectors_each(self, batches: Sequence[Sequence[np.ndarray]]) -> Iterator[np.ndarray]:
        """The vectors of each batch, in order. Several batches run side by side, one thread each: nobody waits for
        the others after every instruction.
        """
        if len(batches) == 1 or self.thread_plan.count == 1:
            yield from map(self.vectors, batches)
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        lanes: SimpleQueue[Any] = SimpleQueue()
        for lane in self._lanes:
            lanes.put(lane)

        def run(batch: Sequence[np.ndarray]) -> np.ndarray:
            lane = lanes.get()
            try:
                return cast("np.ndarray", lane.run(self._step(batch))["vectors"])
            finally:
                lanes.put(lane)

        waiting: deque[Future[np.ndarray]] = deque()
        with ThreadPoolExecutor(len(self._lanes)) as threads:
            try:
                for batch in batches:
                    waiting.append(threads.submit(run, batch))
                    if len(waiting) > 2 * len(self._lanes):
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # an interrupt leaves at most a step for each lane to wait for
                for future in waiting:
                    future.cancel()

    def hidden_states(self, ids: Sequence[int]) -> np.ndarray:
        """The last hidden state of every token, float32 [len(ids), hidden]."""
        import numpy as np

        if not len(ids):
            raise InputError("[hidden_states] no ids; at least one is needed")
        return self._hidden.run(self._step([np.asarray(ids)]))["hidden"]

    def program(self) -> Program:
        """The planned program that makes vectors."""
        return self._prepared.program

    def memory_plan(self, tokens: int) -> dict[str, int]:
        """Bytes of weights and of the working memory of a step of `tokens` tokens, however many texts they are."""
        return {"weights": self.checkpoint.size_bytes, "work": self._prepared.work_bytes(T=tokens, B=tokens)}

    @cached_property
    def _packing(self) -> Any:
        return self._programs.pack(self._prepared)

    @cached_property
    def _vectors(self) -> Any:
        return self._executable()

    def _executable(self, threads: int | None = None) -> Any:
        packing = self._packing
        executable = self._programs.executable(self._prepared, {}, threads=threads)
        packing.finish()
        return executable

    @cached_property
    def _lanes(self) -> list[Any]:
        """The same program once for every thread."""
        return [self._executable(threads=1) for _ in range(self.thread_plan.count)]

    @cached_property
    def _hidden(self) -> Any:
        prepared = self._prepare("hidden", self._build_hidden)
        self._packing.finish()  # most weights are shared
        return self._programs.compile(prepared, {})

    def _build_hidden(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        return {"hidden": self._programs.module.hidden_states(w, self.config, step_inputs(trace, types=True))}

    def _build_vectors(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        from weft.nn import pooled

        step = step_inputs(trace, types=True)
        hidden = self._programs.module.hidden_states(w, self.config, step)
        return {"vectors": pooled(hidden, w, step, self.head)}

    def _step(self, sequences: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        import numpy as np

        lengths = [len(sequence) for sequence in sequences]
        longest = max(lengths)
        if longest > self.max_tokens:
            limit = self.max_tokens
            raise TooLongError(
                f"[embed] {longest} tokens, the model takes {limit}; shorten the text", length=longest, limit=limit
            )
        ids = np.concatenate(sequences).astype(np.int32, copy=False)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            raise InputError(f"[embed] token ids must be 0 to {self.vocab_size - 1}: got {ids.min()} to {ids.max()}")
        segments = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        positions = np.arange(len(ids), dtype=np.int32) - np.repeat(segments[:-1], lengths)
        return {
            "ids": ids,
            "positions": positions.astype(np.int32),
            "segments": segments,
            "rows": np.empty(0, np.int32),
            "types": np.zeros(len(ids), np.int32),
        }
