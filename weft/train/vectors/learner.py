"""A learner of vectors: an encoder with some weights trained, and the gradients of any loss of its vectors.

A loss may compare all vectors of a batch, of which only a few fit in memory while they are differentiated. So a batch
goes through twice: `first_vectors` in any number of parts, then `gradients` in any number of parts, with the gradient
of the loss at each vector. A batch of one part goes through once: `begun` keeps what `Begun.gradients` goes on with.
All of them run the same instructions, so how a batch is cut changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from weft.errors import InputError, UnsupportedError
from weft.graph.grad import SEED, SEQUENCES
from weft.graph.passes import cut_rows, dead_code
from weft.graph.passes.halves import Halves, halves
from weft.graph.passes.learn import LowRank
from weft.graph.passes.trained import trainable
from weft.nn import Scope
from weft.nn.learning import DRAWS
from weft.runtime.programs import Programs
from weft.runtime.tracing import CheckedTrace
from weft.train.learner import Arrays, BaseLearner

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable
    from weft.graph import Program
    from weft.runtime.encoder import Encoder, Tokens

    Sequences = Sequence[np.ndarray | Tokens]

VECTORS = "vectors"


def matrices(encoder: Encoder) -> dict[str, tuple[int, int]]:
    """The weights that rows are multiplied by and that can be changed by matrices of low rank, with their shapes."""
    program, _ = traced(encoder)
    found = {name: program.table[name].shape for name in _multiplied(program)}
    return {name: (int(rows), int(cols)) for name, (rows, cols) in found.items()}  # type: ignore[arg-type]


def weights(encoder: Encoder) -> dict[str, tuple[int, ...]]:
    """The weights that can be trained themselves, and their shapes: matrices, biases, norms and tables."""
    program, constants = traced(encoder)
    return {name: shape for name, shape in trainable(program).items() if name not in constants}


def _multiplied(program: Program) -> list[str]:
    products = [instr for instr in program.body if instr.op == "matmul" and instr.inputs[3] is None]
    return sorted({str(instr.inputs[1]) for instr in products})


def traced(encoder: Encoder, dropout: float | None = 0.0) -> tuple[Program, Arrays]:
    """The program that makes vectors, before ops are fused, and its constants; `dropout` as of a VectorLearner."""
    checkpoint = encoder.checkpoint
    with checkpoint.naming(), CheckedTrace(checkpoint.model_type, checkpoint) as trace:
        trace.dropout = dropout
        found = encoder.build_vectors(trace, Scope(trace, checkpoint.stored), encoder.facts)
        trace.output(VECTORS, found[VECTORS])
    return cut_rows(dead_code(trace.program())), trace.constants


class VectorLearner(BaseLearner):
    """Vectors of an encoder, and gradients of what is trained; `changes` names the weights with trained changes, and
    `weights` those that are trained themselves.

    A sequence is an array of ids, int32 [n], or Tokens. Of a reranker's encoder the vectors are its scores.

    `dropout` is the part of its activations that the encoder leaves out while it learns, None for what its config says.
    `vectors` sees all of them. Elsewhere each sequence has a text in `draws` that decides, with a token's place in its
    sequence, what is left out; neither other sequences nor the cut of a batch nor threads do.
    """

    def __init__(
        self,
        encoder: Encoder,
        changes: Mapping[str, LowRank] | None = None,
        weights: Sequence[str] = (),
        *,
        dropout: float | None = 0.0,
    ) -> None:
        self.encoder = encoder
        self._cuts: dict[tuple[str, int], Halves | None] = {}
        programs = Programs(encoder.checkpoint, encoder.backend, compute="f32")
        learnt = None if dropout == 0 else traced(encoder, dropout)[0]
        self._drawn = learnt is not None and DRAWS in learnt.table
        if dropout and not self._drawn:
            what = f"models of type {encoder.checkpoint.model_type} have no place for it in weft"
            raise UnsupportedError("train", what, field="dropout", given=dropout, advice="leave it out")
        super().__init__(programs, traced(encoder), changes or {}, weights, learnt=learnt if self._drawn else None)

    def vectors(self, sequences: Sequences, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """One vector per sequence, f32 [len(sequences), dimension]."""
        executable, names = self._results
        given = self._given(sequences) | dict(parameters)
        return executable.run({name: given[name] for name in names})[VECTORS]

    def first_vectors(
        self, sequences: Sequences, parameters: Mapping[str, np.ndarray], draws: Sequence[str] = ()
    ) -> np.ndarray:
        """What `vectors` gives, by the instructions that `gradients` begins with: it may differ in last digits, and
        with dropout in more."""
        if self._halves is None:
            assert not self._drawn, "no encoder that leaves something out has effects"
            return self.vectors(sequences, parameters)
        executable, names = self._first
        given = self._given(sequences, draws) | dict(parameters)
        return executable.run({name: given[name] for name in names})[VECTORS]

    def begun(
        self, sequences: Sequences, parameters: Mapping[str, np.ndarray], draws: Sequence[str] = ()
    ) -> Begun | None:
        """The vectors of a whole batch, and what its gradients need of their making; None where this does not work."""
        if self._halves is None:
            return None
        executable, names = self._ahead
        given = self._given(sequences, draws) | dict(parameters)
        found = executable.run({name: given[name] for name in names})
        if self._halves.output is not None:
            found[self._halves.output] = found[VECTORS]
        return Begun(self, found[VECTORS], given | found)

    @property
    def _halves(self) -> Halves | None:
        key = self.compute, self.again
        if key not in self._cuts:
            self._cuts[key] = halves(self._lowered_gradients, VECTORS)
        return self._cuts[key]

    @cached_property
    def _first(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._prepared(self._cut.first))

    @cached_property
    def _ahead(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._prepared(self._cut.ahead))

    @cached_property
    def _second(self) -> tuple[Executable, tuple[str, ...]]:
        return self._compiled(self._prepared(self._cut.second))

    @property
    def _cut(self) -> Halves:
        assert self._halves is not None
        return self._halves

    def _forget(self, *made: str) -> None:
        super()._forget(*made, "_first", "_ahead", "_second")

    def _work(self, sizes: Mapping[str, int]) -> int:
        """Of the whole program, or of both halves with what is kept between them."""
        whole = super()._work(sizes)
        if self._halves is None:
            return whole
        parts = [self._prepared(part).work_bytes(**sizes) for part in (self._halves.ahead, self._halves.second)]
        kept = sum(value.spec.at(**sizes).nbytes for value in self._halves.ahead.outputs)
        return max(whole, sum(parts) + kept)

    def gradients(
        self,
        sequences: Sequences,
        parameters: Mapping[str, np.ndarray],
        to_vectors: np.ndarray,
        sums: Arrays,
        draws: Sequence[str] = (),
    ) -> Arrays:
        """`sums` with the gradient of the sum of vectors * to_vectors added, maybe in place.

        to_vectors [len(sequences), dimension]
        """
        import numpy as np

        wanted = (len(sequences), self.encoder.dimension)
        if to_vectors.shape != wanted:
            raise InputError("train", f"must be {list(wanted)}", field="to_vectors", given=list(to_vectors.shape))
        executable, names = self._gradients
        given = self._given(sequences, draws) | dict(parameters) | self._into(sums)
        given[SEED + VECTORS] = np.ascontiguousarray(to_vectors, np.float32)
        return self._added(executable, {name: given[name] for name in names}, sums)[1]

    def fit(self, memory: int, tokens: int, sequences: int = 1) -> bool:
        """Compute as little again as lets `gradients` of so many tokens work in `memory` bytes; False where even all
        is too little. What is computed again changes no bit."""
        return self._fit(memory, {"T": tokens, "B": sequences, "L": tokens})

    def work_bytes(self, tokens: int, sequences: int = 1) -> int:
        """The working memory of `gradients` for so many tokens."""
        return self._work({"T": tokens, "B": sequences, "L": tokens})

    def _given(self, sequences: Sequences, draws: Sequence[str] = ()) -> Arrays:
        import numpy as np

        if not sequences:
            raise InputError("train", "must have at least one sequence", field="sequences", given=[])
        return {
            **self.encoder.step_of(sequences).arrays(),
            SEQUENCES: np.arange(len(sequences) + 1, dtype=np.int32),
            **self._drawing(list(map(len, sequences)), draws),
        }

    def _drawing(self, lengths: Sequence[int], draws: Sequence[str]) -> Arrays:
        """What rows draw with: the key of their sequence, and their place in it."""
        import numpy as np

        if not self._drawn or not draws:
            return {}
        assert len(draws) == len(lengths), "a draw for each sequence"
        keys = np.frombuffer(b"".join(sha256(draw.encode()).digest()[:8] for draw in draws), "<i4").reshape(-1, 2)
        places = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        return {DRAWS: np.column_stack([np.repeat(keys, lengths, axis=0), places])}


class Begun:
    """A batch whose vectors are made and whose gradients are not."""

    def __init__(self, learner: VectorLearner, vectors: np.ndarray, given: Arrays) -> None:
        self.vectors = vectors
        self._learner, self._given = learner, given

    def gradients(self, to_vectors: np.ndarray, sums: Arrays) -> Arrays:
        """As those of the learner, once."""
        import numpy as np

        executable, names = self._learner._second
        given = self._given | self._learner._into(sums)
        given[SEED + VECTORS] = np.ascontiguousarray(to_vectors, np.float32)
        return self._learner._added(executable, {name: given[name] for name in names}, sums)[1]
