"""A two-layer decoder with everything a real one has: grouped heads, rope, paged or stateless attention, a gated mlp.

`python tests/graph/toy_model.py > tests/golden/programs/toy.txt` prints the golden program.
"""

import math
from collections.abc import Sequence

import numpy as np

from weft.graph import B, L, T, Tensor, Trace, named
from weft.graph.passes import optimise
from weft.graph.plan import plan
from weft.graph.program import Program
from weft.graph.text import to_text
from weft.ops import attention, attention_paged, embedding, gated, kv_write, matmul, rms_norm, rope, take_rows
from weft.ops.samples import integers, segments, weight
from weft.ops.state import KvArray

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, MLP, VOCAB, PAGES = 2, 32, 4, 2, 8, 64, 50, 4


class Toy:
    """Traces the toy; `paged` keeps keys and values in a state, otherwise a step is whole sequences."""

    def __init__(self, paged: bool, dtype: str = "f32") -> None:
        self.paged, self.dtype = paged, dtype
        with Trace("toy") as self.trace:
            self.ids = self.trace.input("ids", (T,), "i32")
            self.positions = self.trace.input("positions", (T,), "i32")
            self.segments = self.trace.input("segments", (B + 1,), "i32")
            self.rows = self.trace.input("rows", (L,), "i32")
            if paged:
                self.pages = self.trace.input("pages", (B, PAGES), "i32")
            self.forward()

    def linear(self, x: Tensor, name: str, out: int) -> Tensor:
        return matmul(x, self.trace.weight(f"{name}.weight", (out, x.shape[-1]), self.dtype))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.trace.weight(f"{name}.weight", (x.shape[-1],)), eps=1e-5)

    def attend(self, x: Tensor, name: str, layer: int) -> Tensor:
        frequencies = self.trace.constant("rope.inv_freq", 10000.0 ** -(np.arange(DIM // 2) / (DIM // 2)))
        q = self.linear(x, f"{name}.q", HEADS * DIM).reshape(T, HEADS, DIM)
        k = self.linear(x, f"{name}.k", KV_HEADS * DIM).reshape(T, KV_HEADS, DIM)
        v = self.linear(x, f"{name}.v", KV_HEADS * DIM).reshape(T, KV_HEADS, DIM)
        q, k = rope(q, self.positions, frequencies), rope(k, self.positions, frequencies)
        if self.paged:
            state = self.trace.kv(f"kv.{layer}", (KV_HEADS, DIM))
            kv_write(k, v, state, self.positions, self.segments, self.pages)
            out = attention_paged(q, state, self.positions, self.segments, self.pages, scale=1 / math.sqrt(DIM))
        else:
            out = attention(q, k, v, self.segments, causal=True, scale=1 / math.sqrt(DIM))
        return self.linear(named(out, "attn_out").reshape(T, -1), f"{name}.o", HIDDEN)

    def mlp(self, x: Tensor, name: str) -> Tensor:
        inner = gated(self.linear(x, f"{name}.gate", MLP), self.linear(x, f"{name}.up", MLP), kind="silu")
        return self.linear(inner, f"{name}.down", HIDDEN)

    def forward(self) -> None:
        table = self.trace.weight("embed.weight", (VOCAB, HIDDEN), self.dtype)
        x = embedding(self.ids, table)
        for layer in range(LAYERS):
            x = x + self.attend(self.norm(x, f"{layer}.norm1"), f"{layer}.attn", layer)
            x = x + self.mlp(self.norm(x, f"{layer}.norm2"), f"{layer}.mlp")
        self.trace.output("logits", matmul(take_rows(self.norm(x, "norm"), self.rows), table))

    def program(self) -> Program:
        return self.trace.program()

    def weights(self) -> dict:
        rng = np.random.default_rng(11)
        made = {}
        for value in self.program().weights:
            made[value.name] = self.trace.constants.get(value.name)
            if made[value.name] is None:
                made[value.name] = weight(rng, value.dtype.name, *value.shape)
        return {
            name: w * np.float32(0.3) if isinstance(w, np.ndarray) and w.ndim == 2 else w for name, w in made.items()
        }


def states(pages: int, dtype: str) -> dict[str, KvArray]:
    """Empty states; of float64 for the oracle, whose cache rounds nothing."""
    return {f"kv.{layer}": KvArray.zeros(pages, KV_HEADS, DIM, dtype) for layer in range(LAYERS)}


def step(prompts: Sequence[np.ndarray], starts: Sequence[int], ends: Sequence[int], paged: bool) -> dict:
    """The step that computes tokens starts[b] to ends[b] of each prompt, asking for every row."""
    lengths = [end - start for start, end in zip(starts, ends)]
    inputs = {
        "ids": integers(np.concatenate([ids[start:end] for ids, start, end in zip(prompts, starts, ends)])),
        "positions": integers(np.concatenate([np.arange(start, end) for start, end in zip(starts, ends)])),
        "segments": segments(lengths),
        "rows": integers(np.arange(sum(lengths))),
    }
    if paged:  # sequence b owns pages b, b + n, b + 2n, …: never neighbours
        inputs["pages"] = integers([[b + len(prompts) * p for p in range(PAGES)] for b in range(len(prompts))])
    return inputs


if __name__ == "__main__":
    print(to_text(plan(optimise(Toy(paged=True).program()))), end="")
